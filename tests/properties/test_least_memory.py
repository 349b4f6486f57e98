"""Statements about jobs that do not fit, against every partition of every candidate of random questions."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise, product
from random import Random

import pytest

from pipeplan.core.errors import InputError
from pipeplan.costs.chain import UNLIMITED, Boundaries
from pipeplan.search.infeasible import held_memory_shortfall, least_memory
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.space import Space
from referee.bridge import objects
from referee.questions import question

SEEDS = range(60)


def space(seed: int, **changed: object) -> Space | None:
    """The space of a random question; None if it is refused."""
    try:
        model, cluster, job = objects(question(seed))
        return Space(model, cluster, replace(job, **changed))  # type: ignore[arg-type]
    except InputError:
        return None


def candidates(asked: Space, most: int = 200) -> Iterator[Candidate]:
    """Candidates of the space."""
    for size in asked.sizes:
        for number, (groups, _) in enumerate(asked.device_groups(size)):
            if number < most:
                yield from asked.candidates(groups, size)


def partitions(candidate: Candidate) -> Iterator[Boundaries]:
    """All boundaries without empty stages."""
    n = candidate.chain.layers
    return ((0, *inner, n) for inner in combinations(range(1, n), candidate.depth - 1))


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_fits_where_all_devices_together_are_too_small(seed: int) -> None:
    """GPipe with memory around the bytes that all plans hold: where they exceed it, no partition fits."""
    random = Random(seed)
    asked = space(seed, schedules=("gpipe",), objective="step", intra_layer=False)
    if asked is None or asked.any_order:
        return
    for memory in random.sample(range(1, 200), 6):
        tight = replace(asked.job, memory=memory)
        own = Space(asked.model, asked.cluster, tight)
        if held_memory_shortfall(own) is not None:
            assert not any(each.holds(edges) for each in candidates(own, 60) for edges in partitions(each))


@pytest.mark.parametrize("seed", SEEDS)
def test_least_memory_is_that_of_the_best_partition(seed: int) -> None:
    """The least over partitions of the largest stage, each stage with any of its layers recomputed."""
    asked = space(seed)
    for candidate in candidates(asked, 8) if asked is not None else ():
        chain, problem = candidate.chain, candidate.problem
        tables, best = problem.bytes, UNLIMITED
        for edges in partitions(candidate):
            allowed = all(candidate.cuts[b - 1] for b in edges[1:-1])
            allowed &= all(candidate.where[s, a:b].all() for s, (a, b) in enumerate(pairwise(edges)))
            largest = 0
            for s, (a, b) in enumerate(pairwise(edges)):
                sums = []
                for chosen in product((False, True), repeat=b - a):
                    held, peak = int(tables.received[s, a]), 0
                    for i, asked_again in zip(range(a, b), chosen, strict=True):
                        again = asked_again and chain.recomputable[i]
                        held += int(min(tables.output[s, i], tables.saved[s, i]) if again else tables.saved[s, i])
                        peak = max(peak, int(tables.again[s, i] if again else tables.workspace[s, i]))
                    beside = max(int(value) for value in tables.beside[s, a:b])
                    sums.append(int(problem.in_flight[s]) * held + peak + beside)
                largest = max(largest, chain.stays(s, a, b) + int(chain.runtime[s]) + min(sums))
            best = min(best, largest) if allowed else best
        assert least_memory(candidate) == best
