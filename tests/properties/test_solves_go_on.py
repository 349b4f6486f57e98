"""Solves of the allocation problem that are stopped again and again, against brute force."""

from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.allocations import brute_force, chain_allocations
from helpers.happening import happens
from helpers.many_micro_batches import many_micro_batches
from pipeplan_formulations import allocation
from pipeplan_formulations.allocation import ChainAllocation, exact
from pipeplan_formulations.allocation.suffix_bounds import refinement
from pipeplan_formulations.allocation.suffix_bounds.spans import Spans
from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.layer_tables import Array
from pipeplan_formulations.common.objective import OBJECTIVES
from pipeplan_formulations.common.report import Limits, Report, Stop

GLANCES = st.sampled_from([2, exact.GLANCE])
"""Prefixes opened before boxes are split: hardly any, or all those of small problems."""
PROBLEMS = st.one_of(chain_allocations(objectives=OBJECTIVES), many_micro_batches())


@pytest.mark.happens(0.3)
@given(PROBLEMS, st.sampled_from([None, 0, 1, 40]), st.sampled_from([0, 3, 30]), st.integers(0, 4), GLANCES)
@settings(max_examples=1000, deadline=None)
def test_a_solve_that_is_stopped_loses_nothing(
    problem: ChainAllocation, offset: int | None, lower: int, checks: int, glance: int
) -> None:
    """Its bounds hold whenever it is stopped; in the end it has the optimum, or has reached the cutoff.

    The cutoff comes closer while it is stopped, as if a better plan had been found elsewhere.
    """
    best = brute_force(problem)
    last = None if offset is None or best is None else best + offset
    solver = allocation.Solver(problem, cutoff=None if last is None else last + lower)
    reports = stopped(solver, checks, last, glance, problem.endless)
    happens(len(reports) > 1)
    for report in reports:
        assert best is None or report.bound <= best or report.bound == solver.cutoff
    if best is None:
        assert report.solution is None
    elif last is not None and last <= best:
        assert report.bound == best
    else:
        assert (report.objective, report.bound) == (best, best)


def stopped(solver: allocation.Solver, checks: int, cutoff: int | None, glance: int, endless: bool) -> list[Report]:
    """The reports of a solver that has begun, and is stopped after some looks at its clock, each time after one more.

    It looks at its clock wherever spans may have to recompute, too, as it does where they are many.
    """
    found: list[Report] = []
    plain = Spans.extra

    def extra(spans: Spans, *span: Array) -> Array:
        spans._clock.check()
        return plain(spans, *span)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "GLANCE", glance)
        if not endless:  # most would be proved before they are stopped
            patch.setattr(refinement, "_offer", lambda *_: None)
        patch.setattr(Spans, "extra", extra)
        for more in count(checks):
            left = iter(range(more))
            patch.setattr(Clock, "check", lambda _, left=left: _check(solver, left))
            found.append(solver.run(Limits(time=60), cutoff if found else None))
            if found[-1].stop is not Stop.TIME:
                return found
    raise AssertionError


def _check(solver: allocation.Solver, left: Iterator[int]) -> None:
    if solver.begun and next(left, None) is None:
        raise OutOfTimeError
