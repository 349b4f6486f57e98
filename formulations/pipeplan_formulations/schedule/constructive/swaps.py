"""Tabu search over adjacent operations on the critical path.

Only where two neighbours on a device are critical, with no pause between them, can their exchange shorten the step::

    device 1   F2 I0│W0 F3│I1                   F2 I0│F3 W0│I1
                    └critical┘        ──▶

Each exchange is judged by the longest path through the two with everything else as it was: a lower bound on what comes
of it, by a few additions (Taillard, "Parallel taboo search techniques for the job shop scheduling problem", 1994). The
best is carried out and timed exactly, and may not be taken back for some iterations unless that makes a new best.
"""

import time
from collections.abc import Iterator
from itertools import pairwise
from random import Random

from pipeplan_formulations.schedule.constructive.network import Network, Timed
from pipeplan_formulations.schedule.constructive.numbers import Numbered

_STALE = 300  # steps without a new best after which a search ends
_RANDOM = 10

_Move = tuple[int, int, int]
"""Estimate, device, place of the first of the two."""


def improved(network: Network, orders: Numbered, until: float, seed: int = 0) -> tuple[int, Numbered]:
    """The best lists found until a moment of `time.monotonic`, or until many steps brought none; and their makespan.

    They are no worse than those given, which must end and fit. With a ``seed`` other than 0 the first steps are random.
    """
    timed = network.timed(orders)
    assert timed is not None
    best, most = orders, timed.makespan
    orders = [list(order) for order in orders]
    random, forbidden, turn, found = Random(seed), dict[tuple[int, int], int](), 0, 0
    while turn < found + _STALE and time.monotonic() < until:
        turn += 1
        candidates = sorted(moves(network, orders, timed))
        if seed and turn <= _RANDOM:
            random.shuffle(candidates)
        for estimate, device, place in candidates:
            order = orders[device]
            a, b = order[place], order[place + 1]
            if forbidden.get((b, a), 0) >= turn and estimate >= most:
                continue
            order[place], order[place + 1] = b, a
            after = network.timed(orders)
            if after is not None:
                break
            order[place], order[place + 1] = a, b
        else:
            if not candidates:
                break
            forbidden.clear()
            continue
        forbidden[a, b] = turn + random.randint(8, 16)
        timed = after
        if timed.makespan < most:
            best, most, found = [list(order) for order in orders], timed.makespan, turn
    return most, best


def moves(network: Network, orders: Numbered, timed: Timed) -> Iterator[_Move]:
    """Exchanges of critical neighbours with no pause between them that fit, each with a lower bound on its makespan."""
    heads, tails, durations, delta = timed.heads, timed.tails, network.durations, network.delta
    many, longest = network.problem.micro_batches, timed.makespan
    for device, order in enumerate(orders):
        left = network.problem.room[device]
        for place, (a, b) in enumerate(pairwise(order)):
            start = heads[a]
            left -= delta[a]
            if start + tails[a] < longest or heads[b] + tails[b] < longest or start + durations[a] != heads[b]:
                continue
            if a // many == b // many or any(other == b for other, _ in network.after[a]):
                continue
            if left + delta[a] < delta[b]:
                continue
            before = order[place - 1] if place else -1
            behind = order[place + 2] if place + 2 < len(order) else -1
            yield _estimate(network, timed, before, a, b, behind), device, place


def _estimate(network: Network, timed: Timed, before: int, a: int, b: int, behind: int) -> int:
    """The longest path through ``b`` and ``a``, in this order between ``before`` and ``behind``."""
    heads, tails, durations = timed.heads, timed.tails, network.durations
    free = heads[before] + durations[before] if before >= 0 else 0
    b_head = max([free, *(heads[op] + durations[op] + lag for op, lag in network.before[b])])
    a_head = max([b_head + durations[b], *(heads[op] + durations[op] + lag for op, lag in network.before[a])])
    rest = tails[behind] if behind >= 0 else 0
    a_tail = durations[a] + max([rest, network.ending[a], *(lag + tails[op] for op, lag in network.after[a])])
    b_tail = durations[b] + max([a_tail, network.ending[b], *(lag + tails[op] for op, lag in network.after[b])])
    return max(b_head + b_tail, a_head + a_tail)
