"""The chain allocation problem: contiguous layers of a chain on devices of several kinds, at any depth and widths.

`instance` states the equations and lists the function that computes each. The solver bounds the optimum by a dynamic
programme (`suffix_bounds`) and closes the gap by a search (`best_first`). Both are imported when they are used: small
questions need the instance only.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pipeplan_formulations.allocation.furthest_end import FurthestEnd
from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.place import Allocation, ModeKey, Place
from pipeplan_formulations.allocation.tables import InFlightRule

if TYPE_CHECKING:
    from pipeplan_formulations.allocation.best_first.beam import promising
    from pipeplan_formulations.allocation.exact import Solver, solve
    from pipeplan_formulations.allocation.suffix_bounds.suffix import frontier

__all__ = [
    "Allocation",
    "ChainAllocation",
    "FurthestEnd",
    "InFlightRule",
    "ModeKey",
    "Place",
    "Solver",
    "frontier",
    "promising",
    "solve",
]

_LATE = {
    "frontier": "suffix_bounds.suffix",
    "promising": "best_first.beam",
    "Solver": "exact",
    "solve": "exact",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
    return globals()[name]
