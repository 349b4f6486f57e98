"""Recomputation, tied weights, constraints and replicas in the chain partition problem, on small instances."""

from dataclasses import replace

import numpy as np
import pytest

from helpers.partitions import chain_partition, nothing_known, uneven
from pipeplan_formulations import partition
from pipeplan_formulations.common.report import Limits, Status
from pipeplan_formulations.partition import BACKENDS, PathCut, Tie, exact


def recomputing(limit):
    """Four equal layers that save 10 bytes or hold 2; two micro-batches in flight on device 0, one on device 1."""
    problem = chain_partition(np.full((2, 4), 3), np.full((2, 4), 6), micro_batches=3)
    four = np.full(4, 10)
    return replace(
        problem,
        resident=np.zeros(4, int),
        saved=four,
        output=np.full(4, 2),
        recomputable=np.ones(4, bool),
        limit=np.array([limit, 100]),
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_recomputation_buys_room(backend):
    """One layer recomputed on the first device costs 3 ns; a layer moved to the second would cost more."""
    free = partition.solve(recomputing(40), Limits(), backend=backend)
    assert (free.objective, free.solution) == (18 + 3 * 18, (0, 2, 4))
    # Two layers held whole need 40 bytes; with one of them recomputed 2 (10 + 2) + 10. It delays the second device.
    tight = recomputing(34)
    report = partition.solve(tight, Limits(), backend=backend)
    assert (report.status, report.solution, report.objective) == (Status.OPTIMAL, (0, 2, 4), 21 + 3 * 18)
    assert tight.recompute(0, 0, 2) == (0,)
    assert tight.recompute(1, 2, 4) == ()
    assert tight.memory((0, 2, 4)) == (34, 20)


def test_an_infeasible_span_has_no_recomputation():
    """If recomputing all layers does not fit, there is no set, and the memory is the least over all sets."""
    problem = recomputing(17)
    assert problem.recompute(0, 0, 2) is None
    assert problem.memory((0, 2, 4))[0] == 2 * 4 + 10
    assert not problem.feasible((0, 2, 4))


@pytest.mark.parametrize("backend", BACKENDS)
def test_tied_weights_move_together(backend):
    """Splitting layers 0 and 3 costs both stages time, and the later one memory and an update for its copy."""
    problem = chain_partition(np.ones((2, 5), int), np.ones((2, 5), int))
    tie = Tie((0, 3), resident=(2, 2), update=(0, 7), reduce=(0, 50), home=(30, 0))
    problem = replace(problem, resident=np.array([3, 1, 1, 1, 1]), saved=np.zeros(5, int), ties=(tie,))
    problem = replace(problem, limit=np.array([6, 5]))
    assert [problem.feasible((0, b, 5)) for b in range(1, 5)] == [False, True, True, True]
    report = partition.solve(problem, Limits(), backend=backend)
    assert (report.status, report.solution, report.objective) == (Status.OPTIMAL, (0, 4, 5), 4 * 8)
    split = partition.solve(replace(problem, limit=np.array([5, 5])), Limits(), backend=backend)
    assert (split.solution, split.objective) == ((0, 3, 5), 3 + 4 * 4 + 50 + 7)


@pytest.mark.parametrize("backend", ["cpsat", "cbc"])
@pytest.mark.parametrize(("room", "again"), [(46, ()), (40, (2,)), (39, (2, 3))])
def test_a_copy_of_tied_weights_takes_memory(backend, room, again):
    """Two layers whole need 40 bytes, with one recomputed 34, with both 18; the copy on stage 1 needs 6 more."""
    tie = Tie((0, 3), resident=(0, 6), update=(0, 0), reduce=(0, 0), home=(0, 0))
    problem = replace(recomputing(100), in_flight=np.array([2, 2]), ties=(tie,), limit=np.array([100, room]))
    only = replace(problem, cuts=np.array([False, True, False]))
    report = BACKENDS[backend].solve(only, Limits(), start=nothing_known(only))
    assert (report.status, report.solution, report.objective) == (Status.OPTIMAL, (0, 2, 4), only.evaluate((0, 2, 4)))
    assert report.bound == report.objective
    assert only.recompute(1, 2, 4) == again


@pytest.mark.parametrize("backend", BACKENDS)
def test_constraints_are_kept(backend):
    """A forbidden cut and a pinned layer move the boundaries; contradicting constraints are infeasible."""
    problem = uneven(objective="bottleneck")
    cuts = np.ones(7, bool)
    cuts[[2, 3]] = False
    report = partition.solve(replace(problem, cuts=cuts), Limits(), backend=backend)
    assert (report.objective, report.solution) == (12, (0, 2, 5, 8))
    where = np.ones((3, 8), bool)
    where[:2, 5] = False  # layer 5 on the last device
    pinned = partition.solve(replace(problem, where=where), Limits(), backend=backend)
    assert pinned.solution[2] <= 5
    where[2, 5] = False
    nowhere = partition.solve(replace(problem, where=where), Limits(), backend=backend)
    assert nowhere.status is Status.INFEASIBLE


@pytest.mark.parametrize("backend", BACKENDS)
def test_replicas_take_their_share(backend):
    """With two replicas for the first stage and one for the second, layers go where M_s w_s balances."""
    problem = chain_partition(np.ones((2, 8), int), np.ones((2, 8), int), micro_batches=12)
    assert partition.solve(problem, Limits(), backend=backend).solution == (0, 4, 8)
    report = partition.solve(replace(problem, counts=np.array([6, 12])), Limits(), backend=backend)
    assert (report.solution, report.objective) == ((0, 6, 8), 6 * 12)


def test_resources_carry_what_is_certain():
    """Between one replica and three each resource carries a third; between two and three only one is certain."""
    counts = np.array([12, 4, 6])
    problem = replace(uneven(micro_batches=12), counts=counts)
    assert [(c.into, c.out) for c in problem.through] == [(1, 4), (4, 1), (1, 1)]
    told = replace(problem, link_counts=np.array([4, 2]))
    assert [c.out for c in told.through] == [4, 2, 1]


def test_what_is_known_moves_to_the_problem_with_paths():
    """Adding path cuts keeps the lists of recomputation that were made already."""
    problem = recomputing(34)
    exact.solve(problem, Limits())
    other = problem.with_paths((PathCut((1, 1), (1, 1), (1, 1), (0,), (0,), reduce=(1, 0)),))
    assert other.recomputing is problem.recomputing
    assert len(other.paths) == 1
