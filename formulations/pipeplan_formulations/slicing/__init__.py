"""Slices of a sequence: cut it so that a pipeline of equal stages works through them soonest."""

from pipeplan_formulations.slicing.instance import Cuts, Slicing
from pipeplan_formulations.slicing.intervals import solve

__all__ = ["Cuts", "Slicing", "solve"]
