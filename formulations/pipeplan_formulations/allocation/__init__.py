"""The chain allocation problem: contiguous layers of a chain on devices of several kinds, at any depth and widths.

`instance` states the equations and lists the function that computes each. The solver bounds the optimum by a dynamic
programme (`suffix_bounds`) and closes the gap by a search (`best_first`).
"""

from pipeplan_formulations.allocation.exact import solve
from pipeplan_formulations.allocation.furthest_end import FurthestEnd
from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.place import Allocation, ModeKey, Place
from pipeplan_formulations.allocation.suffix_bounds.suffix import frontier
from pipeplan_formulations.allocation.tables import InFlightRule

__all__ = [
    "Allocation",
    "ChainAllocation",
    "FurthestEnd",
    "InFlightRule",
    "ModeKey",
    "Place",
    "frontier",
    "solve",
]
