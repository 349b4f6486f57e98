"""The dynamic programme with a cutoff."""

from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.partitions import brute_force, chain_partitions
from pipeplan_formulations.common.report import Limits, Status
from pipeplan_formulations.partition import ChainPartition, exact


@given(chain_partitions(cuts=0), st.integers(0, 4), st.booleans())
@settings(max_examples=300, deadline=None)
def test_a_cutoff_spares_work_and_no_better_partition(problem: ChainPartition, fifths: int, near: bool) -> None:
    """Below the cutoff the optimum is found; where there is none, the bound reaches the cutoff or the optimum."""
    optimum = brute_force(problem)
    base = optimum or 5
    cutoff = base + fifths - 2 if near else base * (3 + fifths) // 5
    report = exact.solve(problem, Limits(60), cutoff=cutoff)
    if optimum is None:
        assert report.status is Status.INFEASIBLE
        return
    assert report.bound <= optimum
    if not problem.recomputable.any() and optimum < cutoff:
        assert report.objective == report.bound == optimum
    if optimum >= cutoff:
        assert report.bound >= min(cutoff, optimum) or problem.recomputable.any()
