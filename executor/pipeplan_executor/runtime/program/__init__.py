"""Lowering of a schedule to the program of every rank: owners of actions, their order, sends and receives. No torch."""
