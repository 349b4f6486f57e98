"""Validation of a chain allocation instance."""

from pipeplan_formulations.allocation.tables import AllocationTables
from pipeplan_formulations.common.objective import OBJECTIVES
from pipeplan_formulations.common.report import BeyondIntegersError
from pipeplan_formulations.common.span_options import IMPOSSIBLE


def check(problem: AllocationTables) -> None:
    """Raise ``ValueError`` if the numbers of a chain allocation problem do not fit together."""
    if not problem.widths or list(problem.widths) != sorted(set(problem.widths)) or problem.widths[0] < 1:
        raise ValueError(f"widths are {problem.widths}; list each once, from 1 up, ascending")
    if problem.micro_batches < 1 or problem.unit < 1:
        raise ValueError(f"{problem.micro_batches} micro-batches, {problem.unit} devices a unit: both are at least 1")
    problem.check_roles()
    if (problem.hides > problem.backward).any():
        raise ValueError("a layer's backward hides sums for longer than it takes: hides exceeds backward")
    if (problem.gather_hides > problem.forward).any():
        raise ValueError("a layer's forward hides gathers for longer than it takes: gather_hides exceeds forward")
    if int(problem.takes.min()) < 1 or set(problem.pool.tolist()) != set(range(len(problem.units))):
        raise ValueError(
            f"kinds take {problem.takes.tolist()} units of pools {problem.pool.tolist()}: at least 1, of each of "
            f"{len(problem.units)} pools"
        )
    if int(problem.node.min()) < 1:
        raise ValueError(f"a node has at least one unit, not {int(problem.node.min())}")
    for name, choices in {
        "overlap": ("none", "copy", "stream"),
        "objective": OBJECTIVES,
        "in_flight_rule": ("sno", "so", "fbp", "full", "non_increasing"),
    }.items():
        if getattr(problem, name) not in choices:
            raise ValueError(f"{name} is {getattr(problem, name)!r}; choose from {', '.join(choices)}")
    if problem.alternating and problem.phases:
        raise ValueError("lists either alternate or run all forwards first; choose alternating or phases")
    if problem.slices > 1 and (problem.alternating or problem.phases or problem.round_trip != "ahead"):
        raise ValueError("slices neither alternate nor have phases, and a round trip is that of the first; see slices")
    for kind, width in problem.first + problem.last:
        if not 0 <= kind < problem.kinds or width not in problem.widths:
            raise ValueError(f"a forced stage has kind {kind} and width {width}; widths are {problem.widths}")
    if problem.largest >= IMPOSSIBLE // 2:
        raise BeyondIntegersError(f"times add up to {problem.largest}, beyond {IMPOSSIBLE // 2}; scale them")
