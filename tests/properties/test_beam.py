"""Allocations that the beam search returns, against brute force."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.allocations import brute_force, chain_allocations
from helpers.happening import happens
from helpers.many_micro_batches import many_micro_batches
from pipeplan_formulations import allocation
from pipeplan_formulations.allocation import ChainAllocation
from pipeplan_formulations.allocation.best_first import beam
from pipeplan_formulations.common.objective import OBJECTIVES
from pipeplan_formulations.common.report import Limits

PROBLEMS = st.one_of(chain_allocations(objectives=OBJECTIVES), many_micro_batches())


@pytest.mark.happens(0.3)
@given(PROBLEMS, st.sampled_from([None, 1, 20]), st.booleans())
@settings(max_examples=500, deadline=None)
def test_a_beam_returns_allocations_and_a_wide_one_the_best(
    problem: ChainAllocation, above: int | None, wide: bool
) -> None:
    """All fit and are below the cutoff; where nothing is dropped, the best of all is the first."""
    best = brute_force(problem)
    cutoff = None if above is None or best is None else best + above
    with pytest.MonkeyPatch.context() as patch:
        for name in ("WIDTH", "ALIKE", "COUNTS") if wide else ():
            patch.setattr(beam, name, 10**9)
        found = allocation.promising(problem, Limits(time=60), cutoff)
    values = [problem.evaluate(stages) for stages in found]
    happens(bool(found) and not wide)
    assert all(problem.feasible(stages) for stages in found)
    assert values == sorted(values)
    assert all(cutoff is None or value < cutoff for value in values)
    if wide:
        assert values[:1] == ([] if best is None else [best])


@given(many_micro_batches())
@settings(max_examples=5, deadline=None)
def test_a_beam_without_time_returns_nothing(problem: ChainAllocation) -> None:
    assert not allocation.promising(problem, Limits(time=0.0))
