"""Whether the numbers of a chain allocation problem fit together."""

from typing import TYPE_CHECKING

import numpy as np

from pipeplan_formulations.common.recomputation import IMPOSSIBLE
from pipeplan_formulations.common.report import BeyondIntegersError

if TYPE_CHECKING:
    from pipeplan_formulations.allocation.instance import ChainAllocation


def check(problem: "ChainAllocation") -> None:
    """Raise ValueError if they do not."""
    if problem.forward.ndim != 2 or not problem.forward.size:
        raise ValueError(f"forward has shape {problem.forward.shape}, expected (kinds, layers)")
    if not problem.widths or list(problem.widths) != sorted(set(problem.widths)) or problem.widths[0] < 1:
        raise ValueError(f"widths are {problem.widths}; list each once, from 1 up, ascending")
    _shapes(problem)
    if problem.micro_batches < 1 or problem.unit < 1:
        raise ValueError(f"{problem.micro_batches} micro-batches, {problem.unit} devices a unit: both are at least 1")
    if int(problem.node.min()) < 1:
        raise ValueError(f"a node has at least one unit, not {int(problem.node.min())}")
    for name, choices in {
        "overlap": ("none", "copy", "stream"),
        "objective": ("step", "bottleneck"),
        "flight": ("sno", "so", "fbp", "full", "falling"),
    }.items():
        if getattr(problem, name) not in choices:
            raise ValueError(f"{name} is {getattr(problem, name)!r}; choose from {', '.join(choices)}")
    if problem.alternating and problem.phases:
        raise ValueError("lists either alternate or run all forwards first; choose alternating or phases")
    for kind, width in problem.first + problem.last:
        if not 0 <= kind < problem.kinds or width not in problem.widths:
            raise ValueError(f"a forced stage has kind {kind} and width {width}; widths are {problem.widths}")
    if problem.largest >= IMPOSSIBLE // 2:
        raise BeyondIntegersError(f"times add up to {problem.largest}, beyond {IMPOSSIBLE // 2}; scale them")


def _shapes(problem: "ChainAllocation") -> None:
    kinds, layers = problem.forward.shape
    table, per_cut = (kinds, len(problem.widths), layers), (kinds, kinds, 2, layers - 1)
    shapes = {
        **dict.fromkeys(("forward", "backward"), (kinds, layers)),
        **dict.fromkeys(("update", "reduce", "resident"), table),
        **dict.fromkeys(("saved", "output", "workspace", "recomputable"), (layers,)),
        **dict.fromkeys(("limit", "units", "node"), (kinds,)),
        **dict.fromkeys(("send", "send_back"), per_cut),
        **dict.fromkeys(("received", "cuts"), (layers - 1,)),
        **{"reduce_base": table[:2], "latency": per_cut[:3]},
    }
    for name, shape in shapes.items():
        array = getattr(problem, name)
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}, expected {shape}")
        if array.size and array.dtype != np.bool_ and int(array.min()) < 0:
            raise ValueError(f"{name} holds a negative number: {int(array.min())}")
