"""Builders, oracles and random cases that several tests share."""
