"""Shared by the formulations of all problems."""
