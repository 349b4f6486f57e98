"""Which plans are compared under disturbances.

A plan that takes v undisturbed takes at least v on average (docs/bounds.md, where no wires are shared). So what takes
longer undisturbed than another plan does on average cannot have a smaller mean, and need not be sampled.
"""

from collections.abc import Iterable, Iterator
from math import inf

from pipeplan.chain import Boundaries
from pipeplan.search.candidates import Candidate
from pipeplan.search.flights import FREE
from pipeplan.search.judge import Judged, judge
from pipeplan.search.space import Space
from pipeplan.structure import Groups

PARTITIONS = 4
"""Partitions, the fastest ones tried, that are looked at under every schedule of the space."""
ACTIONS = 400_000
"""Actions that may be simulated for that, over all plans."""


def distinct(plans: Iterable[Judged]) -> list[Judged]:
    """The plans, fastest first; of equal ones the first."""
    found: dict[object, Judged] = {}
    for judged in plans:
        found.setdefault(_identity(judged), judged)
    return sorted(found.values(), key=lambda judged: judged.value)


def relatives(space: Space, plans: list[Judged], limit: float = inf) -> Iterator[Judged]:
    """The best partitions of these plans under the space's other schedules and micro-batch sizes that they fit.

    A search looks for one best plan. As soon as it has one, it leaves out those that only promise as much. Among them
    may be one that waits less where times vary: with more micro-batches in flight, or with smaller ones, whose
    disturbances even out.

    Parameters
    ----------
    limit : float
        Nanoseconds: what cannot take less undisturbed is left out.
    """
    seen: set[object] = set()
    left = ACTIONS
    for judged in plans:
        boundaries, partition = judged.boundaries, _partition(judged)
        if partition in seen:
            continue
        seen.add(partition)
        if len(seen) > PARTITIONS:
            return
        for candidate in _variants(space, judged):
            if candidate.problem.evaluate(boundaries) > limit:
                continue
            left -= 2 * candidate.micro_batches * candidate.depth
            if left < 0:
                return
            yield judge(space.cluster, candidate, boundaries)


def _variants(space: Space, judged: Judged) -> Iterator[Candidate]:
    """The plan's own micro-batch size first, then the others that leave no replica without work."""
    chain = judged.candidate.chain
    others = [size for size in space.sizes if size != chain.micro_batch]
    for size in (chain.micro_batch, *others):
        if max(chain.replicas) <= space.job.batch // size:
            yield from _orders(space, chain.groups, size, judged.boundaries)


def _orders(space: Space, groups: Groups, size: int, boundaries: Boundaries) -> Iterator[Candidate]:
    """Every family of the space that the partition fits, and 1F1B with as much in flight as fits."""
    fitting = [candidate for candidate in space.candidates(groups, size) if candidate.fits(boundaries)]
    others = [candidate.with_max_in_flight(space.cluster, boundaries) for candidate in fitting]
    every = {(each.family.name, each.in_flight): each for each in (*fitting, *others) if each is not None}
    yield from every.values()


def _identity(judged: Judged) -> object:
    """What two offers of one plan have in common. 1F1B's counts say what it writes, whatever family asks for them."""
    candidate, family = judged.candidate, judged.candidate.family
    order: object = FREE if family.alternates and not family.two_lanes else family
    return _partition(judged), candidate.recompute(judged.boundaries), candidate.in_flight, order


def _partition(judged: Judged) -> object:
    chain = judged.candidate.chain
    groups = tuple(tuple(device.index for device in group) for group in chain.groups)
    return groups, chain.micro_batch, judged.boundaries
