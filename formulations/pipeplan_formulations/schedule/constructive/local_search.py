"""Local search over the orders of devices: tabu search on the critical path, and simulated annealing.

Tabu search (`improved`)
------------------------
Only an exchange of two critical neighbours on a device without idle time between them can shorten the step::

    device 1   F2 I0│W0 F3│I1                   F2 I0│F3 W0│I1
                    └critical┘        ──▶

Each exchange is estimated by the longest path through the two operations with all others unchanged. This is a lower
bound on the new makespan by a few additions (Taillard, "Parallel taboo search techniques for the job shop scheduling
problem", 1994). The best exchange is made and timed exactly. It may not be reversed for some iterations unless that
gives a new best.

The lists form a network (`Network`): its arcs are those of the pipeline and from each operation on a device to its
next. Times are exact, as in `evaluate`; operations are encoded as integers, since each is visited thousands of times.

Simulated annealing (`annealed`)
--------------------------------
For devices with two lanes, and link resources that serve first come, first served; each order is evaluated as in
`evaluate`.

::

    device 1   F2 I0 W0 F3 I1        a random operation moves a few places forward or back
                  ╰────▶

A longer schedule is accepted with a probability that falls with the time left (Kirkpatrick, Gelatt and Vecchi,
"Optimization by simulated annealing", 1983). Tabu search changes the critical path only and is faster, but its network
has no second lane and no link resources.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import exp
from random import Random

from pipeplan_formulations.schedule.constructive.dispatch import KINDS, Numbered, number
from pipeplan_formulations.schedule.instance import Op, Orders, PipelineSchedule
from pipeplan_formulations.schedule.objective import evaluate, evaluate_complete

Arcs = list[list[tuple[int, int]]]
"""Adjacency lists: for every operation its neighbours, each with the lag between them."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Times of given lists.

    Attributes
    ----------
    makespan : int
    heads : list of int
        Start of each operation.
    tails : list of int
        Longest path from the start of each operation to the end of the step.
    """

    makespan: int
    heads: list[int]
    tails: list[int]


class Network:
    """Arcs of the pipeline, and computation of times for any lists."""

    def __init__(self, problem: PipelineSchedule) -> None:
        stages, many = problem.stages, problem.micro_batches
        self.problem = problem
        self.size = 3 * stages * many
        rows = (problem.forward, problem.backward, problem.weight)
        self.durations = [row[s] for row in rows for s in range(stages) for _ in range(many)]
        self.ending = [problem.ending[s] for _ in rows for s in range(stages) for _ in range(many)]
        self.delta = self._delta()
        self.after: Arcs = [[] for _ in range(self.size)]
        self.before: Arcs = [[] for _ in range(self.size)]
        for (kind, s), inputs in problem.inputs.items():
            for (other, t), lag in inputs:
                for m in range(many):
                    a, b = (number(problem, KINDS.index(k), at, m) for k, at in ((other, t), (kind, s)))
                    self._arc(a, b, lag)
        self._waits = [len(arcs) for arcs in self.before]

    def _delta(self) -> list[int]:
        problem = self.problem
        rows = (problem.taken, [-x for x in problem.freed], [-x for x in problem.freed_by_weight])
        return [row[s] for row in rows for s in range(problem.stages) for _ in range(problem.micro_batches)]

    def _arc(self, a: int, b: int, lag: int) -> None:
        self.after[a].append((b, lag))
        self.before[b].append((a, lag))

    def timed(self, orders: Numbered) -> Timed | None:
        """Times with every operation as early as possible; None if the lists deadlock. Memory is not checked."""
        # next_one: successor on the device; waits: number of predecessors not yet placed.
        durations, after = self.durations, self.after
        next_one, waits = [-1] * self.size, list(self._waits)
        for order in orders:
            for a, b in pairwise(order):
                next_one[a] = b
                waits[b] += 1
        heads = [0] * self.size
        sequence = [order[0] for order in orders if order and not waits[order[0]]]
        # Topological order; ``sequence`` grows during the loop. Calls of max would take half of the time.
        for op in sequence:
            end = heads[op] + durations[op]
            for other, lag in after[op]:
                if heads[other] < end + lag:
                    heads[other] = end + lag
                waits[other] -= 1
                if not waits[other]:
                    sequence.append(other)
            other = next_one[op]
            if other >= 0:
                if heads[other] < end:
                    heads[other] = end
                waits[other] -= 1
                if not waits[other]:
                    sequence.append(other)
        if len(sequence) < sum(map(len, orders)):
            return None
        return self._with_tails(heads, sequence, next_one)

    def _with_tails(self, heads: list[int], sequence: list[int], next_one: list[int]) -> Timed:
        tails, durations, after = [0] * self.size, self.durations, self.after
        longest = 0
        for op in reversed(sequence):
            other = next_one[op]
            tail = tails[other] if other >= 0 else 0
            for other, lag in after[op]:
                if tail < lag + tails[other]:
                    tail = lag + tails[other]
            if tail < self.ending[op]:
                tail = self.ending[op]
            tails[op] = tail = tail + durations[op]
            if longest < heads[op] + tail:
                longest = heads[op] + tail
        return Timed(longest, heads, tails)


_STALE = 300  # steps without a new best after which a search ends
_RANDOM = 10  # random first steps with a seed other than 0

_Move = tuple[int, int, int]
"""Exchange (estimate, device, place of the first operation)."""


def improved(network: Network, orders: Numbered, until: float, seed: int = 0) -> tuple[int, Numbered]:
    """Tabu search: return the makespan and the best lists found until ``until`` (by `time.monotonic`).

    It also ends after `_STALE` steps without a new best. The result is no worse than the given lists, which must be
    feasible. With a ``seed`` other than 0 the first steps are random.
    """
    timed = network.timed(orders)
    assert timed is not None
    best, most = orders, timed.makespan
    orders = [list(order) for order in orders]
    random, forbidden, iteration, found = Random(seed), dict[tuple[int, int], int](), 0, 0
    while iteration < found + _STALE and time.monotonic() < until:
        iteration += 1
        candidates = sorted(moves(network, orders, timed))
        if seed and iteration <= _RANDOM:
            random.shuffle(candidates)
        # Make the first exchange that is not forbidden and does not deadlock.
        for estimate, device, place in candidates:
            order = orders[device]
            a, b = order[place], order[place + 1]
            if forbidden.get((b, a), 0) >= iteration and estimate >= most:
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
        forbidden[a, b] = iteration + random.randint(8, 16)
        timed = after
        if timed.makespan < most:
            best, most, found = [list(order) for order in orders], timed.makespan, iteration
    return most, best


def moves(network: Network, orders: Numbered, timed: Timed) -> Iterator[_Move]:
    """Exchanges of adjacent critical operations that respect memory, each with a lower bound on its makespan."""
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
    """Longest path through ``b`` and ``a``, in this order between ``before`` and ``behind``."""
    heads, tails, durations = timed.heads, timed.tails, network.durations
    free = heads[before] + durations[before] if before >= 0 else 0
    b_head = max([free, *(heads[op] + durations[op] + lag for op, lag in network.before[b])])
    a_head = max([b_head + durations[b], *(heads[op] + durations[op] + lag for op, lag in network.before[a])])
    rest = tails[behind] if behind >= 0 else 0
    a_tail = durations[a] + max([rest, network.ending[a], *(lag + tails[op] for op, lag in network.after[a])])
    b_tail = durations[b] + max([a_tail, network.ending[b], *(lag + tails[op] for op, lag in network.after[b])])
    return max(b_head + b_tail, a_head + a_tail)


_FAR = 3  # largest move in places
_WARM = 0.005  # initial temperature as a share of the makespan
_COLD = 4000  # number of orders without a new best after which annealing ends


def annealed(
    problem: PipelineSchedule, orders: Orders, seconds: float, seed: int = 0, bound: int = 0
) -> tuple[int, Orders]:
    """Simulated annealing: return the makespan and the best orders found within ``seconds`` of wall time.

    The result is no worse than the given orders.

    Parameters
    ----------
    orders : Orders
        Feasible lists of the devices; a list of transfers is ignored.
    bound : int
        Makespan that is good enough, such as a lower bound: the search ends once it is reached.
    """
    begin, random = time.monotonic(), Random(seed)
    here = orders[: problem.devices]
    value = evaluate(problem, here)
    assert value is not None
    best, least, stale = here, value, 0
    left = 1.0
    while least > bound and stale < _COLD and (left := 1 - (time.monotonic() - begin) / max(seconds, 1e-9)) > 0:
        stale += 1
        trial = _moved(here, random)
        after = None if trial is None else evaluate_complete(problem, trial)
        if trial is None or after is None:
            continue
        if after <= value or random.random() < exp((value - after) / (_WARM * value * left)):
            here, value = trial, after
            if value < least:
                best, least, stale = here, value, 0
    return least, best


def _moved(orders: Orders, random: Random) -> Orders | None:
    """Orders with one operation moved a few places; None if it would pass one that it must precede or follow."""
    device = random.randrange(len(orders))
    order = list(orders[device])
    if len(order) < 2:
        return None
    start = random.randrange(len(order))
    end = start + random.choice((-1, 1)) * random.randint(1, _FAR)
    if not 0 <= end < len(order):
        return None
    op = order.pop(start)
    order.insert(end, op)
    passed = order[start:end] if start < end else order[end + 1 : start + 1]
    if any(_tied(op, other) for other in passed):
        return None
    return (*orders[:device], tuple(order), *orders[device + 1 :])


def _tied(a: Op, b: Op) -> bool:
    """True if the order of a and b is fixed: same kind and stage, or same micro-batch and stage."""
    return a.stage == b.stage and (a.kind == b.kind or a.micro_batch == b.micro_batch)
