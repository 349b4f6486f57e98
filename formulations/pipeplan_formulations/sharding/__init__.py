"""Operator sharding: one signature per operator of a graph."""

from pipeplan_formulations.sharding.blocks import Block, chain
from pipeplan_formulations.sharding.frontier import Frontier, Frontiers, frontier
from pipeplan_formulations.sharding.instance import Cap, Choice, Edge, Sharding, WeightedSharding

__all__ = ["Block", "Cap", "Choice", "Edge", "Frontier", "Frontiers", "Sharding", "WeightedSharding", "chain", "frontier"]
