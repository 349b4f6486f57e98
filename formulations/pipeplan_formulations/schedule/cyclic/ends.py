"""Greedy heads and tails of a step around the steady state, tried from several times on; the best one is kept.

From a given time on, every device runs the operation that can start first, backwards before forwards before W
(`dispatched`). The order of a pattern suits the middle of a step. Before its first backward and after its last forward
it leaves devices idle::

    pattern, cut off     F0 F1 I0 W0 F2 I1 W1 ·· I2 W2
    greedy from F2 on    F0 F1 I0 W0 F2 I1 ·· I2 W1 W2            W1 waits for its place after the last I
"""

import heapq
import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.schedule.instance import Kind, Op, Orders, PipelineSchedule
from pipeplan_formulations.schedule.objective import evaluate, makespan, starts

RANK: dict[Kind, int] = {"I": 0, "F": 1, "W": 2}


@dataclass(frozen=True)
class Rule:
    """Greedy rule of a device's choice.

    Attributes
    ----------
    patience : float
        A W waits for an F or I that may start within this multiple of its own time.
    backwards_first : bool
        True if I comes before F when both may start.
    """

    patience: float = 0.0
    backwards_first: bool = True


def dispatched(problem: PipelineSchedule, prefix: Orders, rule: Rule) -> Orders | None:
    """Complete a prefix greedily; None if memory is full and no operation can free any.

    ``prefix`` has a beginning of each device's list; all inputs of its operations are in it too.
    """
    return _Dispatch(problem, rule).run(prefix)


def joined(prefix: Orders, orders: Orders) -> Orders:
    """Complete a prefix in the order of ``orders``."""
    lists = []
    for begun, order in zip(prefix, orders, strict=True):
        done: Collection[Op] = set(begun)
        lists.append((*begun, *(op for op in order if op not in done)))
    return tuple(lists)


class _Dispatch:
    """Greedy list scheduling after a prefix, by a heap of the devices' next starts."""

    def __init__(self, problem: PipelineSchedule, rule: Rule) -> None:
        self.problem, self.rule = problem, rule
        self.ends: dict[Kind, list[list[int]]] = {k: [[] for _ in problem.device] for k in ("F", "I", "W")}
        self.free = [0] * problem.devices
        self.held = [0] * problem.devices
        self.lists: list[list[Op]] = [[] for _ in problem.base]

    def run(self, prefix: Orders) -> Orders | None:
        if not self._replay(prefix):
            return None
        problem = self.problem
        heap: list[tuple[int, int]] = []
        next_one: list[tuple[int, Op] | None] = [None] * problem.devices

        def look(d: int) -> None:
            """Update the next operation of device d; older entries of the heap for it become invalid."""
            chosen = next_one[d] = self._choice(d)
            if chosen is not None:
                heapq.heappush(heap, (chosen[0], d))

        for d in range(problem.devices):
            look(d)
        while heap:
            begin, d = heapq.heappop(heap)
            chosen = next_one[d]
            if chosen is None or chosen[0] != begin:
                continue
            self._append(d, chosen[1], begin)
            s = chosen[1].stage
            for e in {d} | {problem.device[t] for t in (s - 1, s + 1) if 0 <= t < problem.stages}:
                look(e)
        total = problem.micro_batches * sum(len(problem.kinds(s)) for s in range(problem.stages))
        return tuple(map(tuple, self.lists)) if sum(map(len, self.lists)) == total else None

    def _replay(self, prefix: Orders) -> bool:
        """Run the prefix, device by device, as far as inputs allow, until all of it has run."""
        following = [0] * self.problem.devices
        moved = True
        while moved:
            moved = False
            for d, order in enumerate(prefix):
                while following[d] < len(order):
                    op = order[following[d]]
                    ready = self._ready(op.kind, op.stage)
                    if ready is None:
                        break
                    self._append(d, op, max(ready, self.free[d]))
                    following[d] += 1
                    moved = True
        return all(n == len(order) for n, order in zip(following, prefix, strict=True))

    def _append(self, device: int, op: Op, begin: int) -> None:
        self.free[device] = begin + self.problem.duration(op)
        self.ends[op.kind][op.stage].append(self.free[device])
        self.held[device] += self.problem.delta[op.kind][op.stage]
        self.lists[device].append(op)

    def _ready(self, kind: Kind, stage: int) -> int | None:
        """Time when the inputs of the next operation of this kind have arrived; None if not known yet."""
        problem, ends = self.problem, self.ends
        i = len(ends[kind][stage])
        if i == problem.micro_batches:
            return None
        if kind == "F":
            if stage == 0:
                return 0
            before = ends["F"][stage - 1]
            return before[i] + problem.lag[stage - 1] if i < len(before) else None
        own = ends["F" if kind == "I" else "I"][stage]
        if i >= len(own):
            return None
        if kind == "W" or stage + 1 == problem.stages:
            return own[i]
        beyond = ends["I"][stage + 1]
        return max(own[i], beyond[i] + problem.lag_back[stage]) if i < len(beyond) else None

    def _admits(self, device: int, stage: int) -> bool:
        """True if a forward fits, and after it one more forward of each later stage of the device."""
        problem = self.problem
        later = sum(problem.taken[t] for t in problem.hosted[device] if t > stage)
        return self.held[device] + problem.taken[stage] + later <= problem.room[device]

    def _choice(self, device: int) -> tuple[int, Op] | None:
        problem, free = self.problem, self.free[device]
        ready: list[tuple[int, Kind, int]] = []
        for s in problem.hosted[device]:
            for kind in problem.kinds(s):
                at = self._ready(kind, s)
                if at is not None and (kind != "F" or self._admits(device, s)):
                    ready.append((max(at, free), kind, s))
        if not ready:
            return None
        first = min(ready)[0]
        pick = min((c for c in ready if c[0] == first), key=self._rank)
        if pick[1] == "W":
            until = first + int(self.rule.patience * problem.weight[pick[2]])
            pick = min((c for c in ready if c[1] != "W" and c[0] <= until), default=pick)
        return pick[0], Op(pick[1], pick[2], len(self.ends[pick[1]][pick[2]]))

    def _rank(self, candidate: tuple[int, Kind, int]) -> tuple[int, int]:
        """Sort key: I before F before W, or F before I; deeper forwards and shallower backwards first."""
        _, kind, stage = candidate
        rank = RANK[kind] if self.rule.backwards_first or kind == "W" else 1 - RANK[kind]
        return rank, -stage if kind == "F" else stage


TAILS = (1.0, 0.7, 1.4, 0.5, 2.0)
"""Begins of greedy tails, in latencies before the end of the step."""
HEADS = (0.5, 0.75, 0.35, 1.0, 1.5)
"""Ends of greedy heads, in latencies after the beginning."""
RULES = (Rule(0.5), Rule(0.0), Rule(1.0), Rule(0.5, backwards_first=False), Rule(1.0, backwards_first=False))


def with_ends(problem: PipelineSchedule, orders: Orders, latency: int, clock: Clock) -> Orders:
    """Improve orders by other heads and tails until the clock runs out; the result is at least as good."""
    for candidates in (_whole, _tails, _heads, _tails):
        if clock.left <= 0:
            break
        orders = _best(problem, orders, candidates(problem, orders, latency), clock)
    return orders


def with_tail(problem: PipelineSchedule, orders: Orders, latency: int, clock: Clock) -> Orders:
    """Improve orders by other tails alone."""
    return _best(problem, orders, _tails(problem, orders, latency), clock)


def _best(problem: PipelineSchedule, orders: Orders, trials: Iterator[Orders | None], clock: Clock) -> Orders:
    """Best of ``orders`` and the trials, until the clock runs out."""
    best, value = orders, evaluate(problem, orders)
    for trial in trials:
        worth = None if trial is None else evaluate(problem, trial)
        if trial is not None and worth is not None and (value is None or worth < value):
            best, value = trial, worth
        if clock.left <= 0:
            break
    return best


def _whole(problem: PipelineSchedule, orders: Orders, _: int) -> Iterator[Orders | None]:
    """Greedy schedules of the whole step, which are hard to beat with ample memory."""
    return (dispatched(problem, tuple(() for _ in orders), rule) for rule in RULES)


def _tails(problem: PipelineSchedule, orders: Orders, latency: int) -> Iterator[Orders | None]:
    begun = starts(problem, orders)
    if begun is None:
        return
    end = makespan(problem, begun)
    for share, rule in itertools.product(TAILS, RULES):
        cut = end - int(share * latency)
        yield dispatched(problem, tuple(tuple(op for op in order if begun[op] < cut) for order in orders), rule)


def _heads(problem: PipelineSchedule, orders: Orders, latency: int) -> Iterator[Orders | None]:
    for rule in RULES:
        greedy = dispatched(problem, tuple(() for _ in orders), rule)
        begun = None if greedy is None else starts(problem, greedy)
        if greedy is None or begun is None:
            continue
        for share in HEADS:
            cut = int(share * latency)
            yield joined(tuple(tuple(op for op in order if begun[op] < cut) for order in greedy), orders)
