"""Each backend finds and proves brute force's optimum *by itself*, whatever the problem holds.

Instances mix replicas, reductions, short warm-ups, recomputation, tied weights, constraints, and tight memory.

CP-SAT and CBC normally begin from the dynamic programme's bound and partition, which would hide a wrong row or a solver
that proves too much. Here they begin from nothing as well.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helpers.partitions import (
    brute_force,
    chain_partitions,
    every_partition,
    fits,
    late_endings,
    memory_of,
    nothing_known,
    objective,
    recomputed,
    short_of_memory,
    short_of_received,
)
from pipeplan_formulations.common import recomputation as recompute
from pipeplan_formulations.common.report import Limits, Status
from pipeplan_formulations.partition import BACKENDS, exact, pareto

LIMITS = Limits(time=60)
CBC_GAP = 1e-6
"""CBC counts in doubles: on large times its proof ends a little early, and it says so."""


def check_all(problem) -> None:
    """Every backend, cold and warm, against brute force."""
    best = brute_force(problem)
    programme = exact.solve(problem, LIMITS)
    if not problem.paths:
        check(programme, problem, best)
    elif best is not None:
        relaxed = brute_force(problem.with_paths(()))
        assert programme.bound == relaxed <= best
        assert objective(problem, programme.solution) == programme.objective
    for start in (nothing_known(problem), None):
        check(BACKENDS["cpsat"].solve(problem, LIMITS, start=start), problem, best)
        check(BACKENDS["cbc"].solve(problem, LIMITS, start=start), problem, best, cbc_gap(problem, best))


def cbc_gap(problem, best) -> float:
    """Gap of CBC's proof; above 0 only if N T is large, because the rows of the bottleneck contain N T."""
    large = best and best * (problem.samples or problem.micro_batches) > 10**6
    return max(CBC_GAP, 1.5 / best) if large else 0


def check(report, problem, best, gap=0.0) -> None:
    """The report has the optimum and proves it (within ``gap``), and its partition has that value."""
    if best is None:
        assert report.status is Status.INFEASIBLE
        return
    assert report.objective == best
    assert report.bound <= best
    assert report.gap <= gap
    assert fits(problem, report.solution)
    assert objective(problem, report.solution) == best


@settings(max_examples=120)
@given(chain_partitions())
def test_every_partition_has_its_value(problem):
    """Whether it fits, and its value, are those of an evaluation written by itself; no bound is above any of them."""
    low = problem.lower_bound()
    for boundaries in every_partition(problem):
        assert problem.feasible(boundaries) == fits(problem, boundaries)
        if fits(problem, boundaries):
            assert low <= problem.evaluate(boundaries) == objective(problem, boundaries)


@settings(max_examples=60)
@given(chain_partitions())
def test_all_backends_equal_brute_force(problem):
    """All backends find and prove brute force's optimum, or that there is none."""
    check_all(problem)


@settings(max_examples=300)
@given(chain_partitions(cuts=0))
def test_the_dynamic_programme_equals_brute_force(problem):
    """Without path cuts the dynamic programme alone finds and proves brute force's optimum, or that there is none."""
    check(exact.solve(problem, LIMITS), problem, brute_force(problem))


@pytest.mark.parametrize("backend", ["cpsat", "cbc"])
def test_received_bytes_count_in_rows_of_memory(backend):
    """Where they decide which partitions fit, and some layers are recomputed: then windows do not imply the limit."""
    binding = 0
    for seed in range(25):
        problem = short_of_received(seed)
        best = brute_force(problem)
        check(BACKENDS[backend].solve(problem, LIMITS, start=nothing_known(problem)), problem, best)
        binding += brute_force(replace(problem, received=np.zeros(problem.layers - 1, np.int64))) != best
    assert binding > 3


@settings(max_examples=100)
@given(st.integers(0, 2**32))
@example(100663)
@example(100000)
def test_late_endings_equal_brute_force(seed):
    """If prefixes of equal H differ by the own-ending bound, the dynamic programme stays exact."""
    problem = late_endings(seed)
    check(exact.solve(problem, Limits(time=10)), problem, brute_force(problem))


@settings(max_examples=20)
@given(st.integers(0, 2**32))
@example(65)
@example(106)
def test_labels_that_a_quick_attempt_leaves_out_are_no_proof(seed):
    """The programme stays exact if its quick attempts keep one label per boundary, and so miss partitions."""
    problem = late_endings(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pareto, "BEAM", 1)
        check(exact.solve(problem, Limits(time=10)), problem, brute_force(problem))


@settings(max_examples=120)
@given(st.integers(0, 2**32))
def test_rows_include_the_memory_of_recomputation(seed):
    """CP-SAT without a start recomputes at least as much as memory requires, peaks included."""
    problem = short_of_memory(seed)
    check(BACKENDS["cpsat"].solve(problem, LIMITS, start=nothing_known(problem)), problem, brute_force(problem))


@pytest.mark.slow
@settings(max_examples=2000)
@given(chain_partitions(layers=8, stages=5, cuts=3))
def test_all_backends_equal_brute_force_at_length(problem):
    """The same on more and larger instances."""
    check_all(problem)


@settings(max_examples=100)
@given(chain_partitions(layers=9, stages=5, cuts=0, roomy=True))
def test_the_dynamic_programme_on_longer_chains(problem):
    """With several labels per boundary the dynamic programme stays exact."""
    check(exact.solve(problem, LIMITS), problem, brute_force(problem))


@settings(max_examples=200)
@given(chain_partitions())
def test_the_problem_equals_its_equations(problem):
    """Objective and memory equal the equations written term by term; no bound lies above, no value beyond `largest`."""
    for boundaries in every_partition(problem):
        value = objective(problem, boundaries)
        assert problem.evaluate(boundaries) == value <= problem.largest
        assert problem.feasible(boundaries) == fits(problem, boundaries)
        assert problem.lower_bound() <= value
        assert problem.evaluate(boundaries, optimistic=True) <= value
        if not fits(problem, boundaries):
            continue
        for s, (a, b) in enumerate(pairwise(boundaries)):
            again, oracle = problem.recompute(s, a, b), recomputed(problem, boundaries, s)
            assert len(again) == len(oracle)
            assert sum(problem.forward[s, list(again)]) == sum(problem.forward[s, list(oracle)])
            assert problem.memory(boundaries)[s] == memory_of(problem, boundaries, s, again) <= problem.limit[s]


@settings(max_examples=100)
@given(chain_partitions(layers=6), st.integers(2, 4))
def test_thinned_lists_bracket_the_optimum(problem, cap):
    """With thinned lists of choices, every backend's bound is at most brute force's optimum.

    Its partition fits and has the reported value, and status optimal means the optimum.
    """
    best = brute_force(problem)
    recompute._recomputation.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recompute, "CAP", cap)
        for solver in (exact, BACKENDS["cpsat"]):
            report = solver.solve(problem, LIMITS)
            if best is None:
                assert report.status is Status.INFEASIBLE
                continue
            assert report.bound <= best <= report.objective == problem.evaluate(report.solution)
            assert fits(problem, report.solution)
            assert (report.status is Status.OPTIMAL) == (report.bound == report.objective)
    recompute._recomputation.cache_clear()


@settings(max_examples=60)
@given(chain_partitions())
def test_any_hint_leads_to_the_same_optimum(problem):
    """A hint, good, bad or beyond memory, never changes the optimum of the dynamic programme."""
    best = exact.solve(problem, LIMITS)
    for hint in every_partition(problem):
        report = exact.solve(problem, LIMITS, hint)
        assert (report.status is Status.INFEASIBLE) == (best.status is Status.INFEASIBLE)
        assert report.bound == best.bound
        if report.objective is not None and problem.feasible(hint):
            assert report.objective <= problem.evaluate(hint)
