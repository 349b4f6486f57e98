"""Lower bounds without a solver: windows of all operations, and one-machine bounds within them.

Windows
-------
Every operation has a head, its earliest start, and a tail, the least time from its end to the end of the step. Both are
longest paths over inputs, the order of micro-batches, and the precedences by memory (`Admission`). They also
include the work that the operation's device must do before or after it:

    head of A ≥ packed(head, time of everything that A's device must have ended before A)
    tail of A ≥ packed(tail, time of everything that A's device cannot have started before A's end)

with `packed`. Before F_s(i) the device of stage s runs

    F_s(j), j < i;    F_t(j), j ≤ i, of its stages t < s;    and, with n I and k W ended, for one choice of (n, k),
    I_s(j), j < n;    W_s(j), j < k;    F_t(j), I_t(j), j < n, of its stages t > s,

and before I_s(i) all F_t(j), j ≤ i, of its stages, I_t(j), j ≤ i, of those t > s, and I_s(j), j < i. The operations
after it are the same read backwards. All of them have ended with one lane or two; on a device with two lanes each lane
is packed separately. A transfer is packed with the transfers on its resources that precede it by the chain of their
micro-batch.

If the problem is large, only the last `REACH` micro-batches before (the next ones after) are packed, and all others are
left out: fewer items never make a packing longer.

Bounds on fewer micro-batches (`Spans`) are heads of stage 0's last operation on each micro-batch and tails of its
forward.

Fewer micro-batches
-------------------
Take any schedule of M micro-batches and keep only the last n. The rest is a schedule of n micro-batches: no operation
waits for a removed one, and no more memory is held than before. It begins with F_0(M − n), so from there to the end of
the step it takes at least as long as a shortest step of n. If only the first n are kept, stage 0's last operation on
them ends no earlier than it can in a schedule of n.

::

    F_0(0) ……… W_0(n − 1) ……… F_0(M − n) ……… end
    ╰─── first[n] ──────╯     ╰── step[n] ──╯

The bound
---------
By its window every operation A has a head, its time and a tail, hence T ≥ head + time + tail. A lane or link resource
runs one operation at a time, each within its head and tail. So T is at least the value of Jackson's preemptive rule
(`jackson`) on all operations of a lane or resource. For the device of a single stage s with one lane this includes

    joined   T ≥ head of F_s(0) + M (F_s + B_s) + tail of I_s
    split    T ≥ head of F_s(0) + M (F_s + I_s + W_s) + ending_s
             T ≥ head of F_s(0) + M (F_s + I_s) + tail of I_s

(keep only the operations named, and the least tail of them). For K_s micro-batches in memory, M = (q + 1) K_s + r, it
includes the round trips F_s(0) → … → I_s(0) → F_s(K_s) → … → I_s(K_s) → …, one after the other: the period of a stage
is at least its round trip divided by K_s.

Index: windows → `windows`, with `_Heads` (heads) and `_Tails` (tails); packing → `packed`; Jackson's rule → `jackson`;
the bound → `lower_bound`; bounds on fewer micro-batches → `Spans`, computed by `russian_dolls`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

from pipeplan_formulations.schedule.instance import Kind, Op, PipelineSchedule, Row
from pipeplan_formulations.schedule.precedence import Admission, depth

Item = tuple[int, int]
"""Pair (release, time); read backwards, (tail, time)."""


def packed(items: Iterable[Item]) -> int:
    """Earliest end of a machine that processes all items after their releases, by ascending release.

    Read backwards, with tails as releases, it is the least time from the first item's start to the end of all tails.
    """
    end = 0
    for release, time in sorted(items):
        end = (release if release > end else end) + time
    return end


def jackson(items: Iterable[tuple[int, int, int]]) -> int:
    """Least end of items (release, time, tail) on one machine with preemption: always the longest tail first.

    J. R. Jackson (1955); with preemption his rule is optimal, without it the value is a lower bound.
    """
    # coming: items by release; waiting: heap of released items by tail; left: remaining time of each item.
    coming = sorted(items)
    waiting: list[tuple[int, int]] = []
    left = [time for _, time, _ in coming]
    end = now = k = 0
    while k < len(coming) or waiting:
        if not waiting:
            now = max(now, coming[k][0])
        while k < len(coming) and coming[k][0] <= now:
            heappush(waiting, (-coming[k][2], k))
            k += 1
        # Run the item of the longest tail until it ends or the next item is released.
        tail, job = waiting[0]
        until = coming[k][0] if k < len(coming) else now + left[job]
        run = min(left[job], until - now)
        now += run
        left[job] -= run
        if not left[job]:
            heappop(waiting)
            end = max(end, now - tail)
    return end


@dataclass(frozen=True)
class Spans:
    """Lower bounds by number n of micro-batches; any n may be missing.

    Attributes
    ----------
    step : mapping
        Lower bounds on a step of n micro-batches, endings included.
    first : mapping
        Lower bounds on the time from the start of a step to the end of the last operation of stage 0 on the first n:
        W_0(n − 1), or I_0(n − 1) if the backward of stage 0 is joined.
    """

    step: Mapping[int, int] = field(default_factory=dict)
    first: Mapping[int, int] = field(default_factory=dict)


SMALL = 2048
"""Largest product of stages and micro-batches for which packings contain all operations."""
REACH = 16
"""Number of micro-batches before and after an operation in packings of larger problems."""

Table = dict[Kind, list[list[int]]]
"""One number per kind, stage and micro-batch."""


@dataclass(frozen=True)
class Windows:
    """Heads and tails of all operations and transfers.

    Attributes
    ----------
    head : Table
        Least time from the start of the step to the start of an operation.
    tail : Table
        Least time from the end of an operation to the end of the step; for an operation that lasts until its tensor
        has been sent, from its end without waiting.
    """

    head: Table
    tail: Table


def windows(problem: PipelineSchedule, spans: Spans | None = None) -> Windows:
    """Heads and tails of all operations of a `possible` problem, tightened by `spans`."""
    spans = spans or Spans()
    admissions = [Admission(problem, s) for s in range(problem.stages)]
    everything = problem.stages * problem.micro_batches <= SMALL
    reach = problem.micro_batches if everything else REACH
    return Windows(_Heads(problem, admissions, reach, spans).table, _Tails(problem, admissions, reach, spans).table)


class _Side:
    """Base of heads and tails: the table, and packings of its items."""

    def __init__(self, problem: PipelineSchedule, admissions: list[Admission], reach: int, spans: Spans) -> None:
        self.problem, self.admissions, self.reach, self.spans = problem, admissions, reach, spans
        m = problem.micro_batches
        self.table: Table = {"F": [], "I": [], "W": [], "A": [], "G": []}
        for rows in self.table.values():
            rows.extend([0] * m for _ in problem.device)

    def items(self, kind: Kind, stage: int, begin: int, end: int) -> list[Item]:
        """Items of a row's micro-batches begin ≤ j < end."""
        time = self.problem.time[kind][stage]
        return [(value, time) for value in self.table[kind][stage][max(begin, 0) : end]]

    def packed(self, stage: int, forwards: list[Item], others: list[Item]) -> int:
        """Earliest end of both sets of items on the stage's device."""
        if self.problem.has_lanes(self.problem.device[stage]):
            return max(packed(forwards), packed(others))
        return packed(forwards + others)

    def on_resources(self, row: Row, least: int, ranges: tuple[tuple[int, int], tuple[int, int]], sign: int) -> int:
        """Largest packing over the resources of a transfer, and at least ``least``.

        ``ranges`` are the micro-batches to pack of its own row, and of rows on its side of the chain (``sign`` 1:
        before it, −1: after it).
        """
        problem = self.problem
        place = sign * depth(problem, Op(*row, 0))
        for rows in problem.carried.values():
            if row in rows:
                items = self.items(*row, *ranges[0])
                for other in rows:
                    if sign * depth(problem, Op(*other, 0)) < place:
                        items += self.items(*other, *ranges[1])
                least = max(least, packed(items))
        return least


class _Heads(_Side):
    """Heads, computed micro-batch by micro-batch: forwards along the stages, then backwards and W."""

    def __init__(self, problem: PipelineSchedule, admissions: list[Admission], reach: int, spans: Spans) -> None:
        super().__init__(problem, admissions, reach, spans)
        for i in range(problem.micro_batches):
            for s in range(problem.stages):
                self.table["F"][s][i] = self._forward(s, i)
                self._send(("F", s), i)
            for s in reversed(range(problem.stages)):
                self.table["I"][s][i] = self._backward(s, i)
                self._send(("I", s), i)
                self.table["W"][s][i] = self._weight(s, i)

    def _send(self, row: Row, i: int) -> None:
        """Set the head of the transfer after an operation, if it occupies resources."""
        transfer = self.problem.sent.get(row)
        if transfer is not None:
            least = self.table[row[0]][row[1]][i] + self.problem.ready[transfer]
            first = i - self.reach
            self.table[transfer[0]][transfer[1]][i] = self.on_resources(
                transfer, least, ((first, i), (first, i + 1)), 1
            )

    def _arrival(self, row: Row, i: int) -> int:
        """Earliest end of the transfer after an operation; 0 if it occupies no resources."""
        transfer = self.problem.sent.get(row)
        if transfer is None:
            return 0
        kind, s = transfer
        return self.table[kind][s][i] + self.problem.time[kind][s]

    def _forward(self, s: int, i: int) -> int:
        # By the chain: the arrival from stage s − 1.
        problem, head = self.problem, self.table
        first = i - self.reach
        least = 0
        if s:
            gone = max(head["F"][s - 1][i] + problem.forward[s - 1], self._arrival(("F", s - 1), i))
            least = gone + problem.lag[s - 1]
        # By packing: the operations that precede in any case, and the least over the choices (n, k) of `Admission`.
        stages = problem.hosted[problem.device[s]]
        before = self.items("F", s, first, i)
        for t in stages:
            if t < s:
                before += self.items("F", t, first, i + 1)
        waits = []
        for n, k in self.admissions[s].choices(i):
            forwards, others = list(before), self.items("I", s, first, n) + self.items("W", s, first, k)
            for t in stages:
                if t > s:
                    forwards += self.items("F", t, first, n)
                    others += self.items("I", t, first, n)
            waits.append(self.packed(s, forwards, others))
        return max(least, min(waits))

    def _backward(self, s: int, i: int) -> int:
        problem, head = self.problem, self.table
        first = i - self.reach
        least = head["F"][s][i] + problem.forward[s]
        if s < problem.stages - 1:
            gone = max(head["I"][s + 1][i] + problem.backward[s + 1], self._arrival(("I", s + 1), i))
            least = max(least, gone + problem.lag_back[s])
        if not s and not problem.split[0]:
            least = max(least, self.spans.first.get(i + 1, 0) - problem.backward[0])
        forwards, others = list[Item](), self.items("I", s, first, i)
        for t in problem.hosted[problem.device[s]]:
            forwards += self.items("F", t, first, i + 1)
            if t > s:
                others += self.items("I", t, first, i + 1)
        return max(least, self.packed(s, forwards, others))

    def _weight(self, s: int, i: int) -> int:
        least = self.table["I"][s][i] + self.problem.backward[s]
        if not s:
            least = max(least, self.spans.first.get(i + 1, 0) - self.problem.weight[0])
        return max(least, packed(self.items("W", s, i - self.reach, i)))


class _Tails(_Side):
    """Tails, computed from the last micro-batch to the first: W and backwards along the stages, then forwards."""

    def __init__(self, problem: PipelineSchedule, admissions: list[Admission], reach: int, spans: Spans) -> None:
        super().__init__(problem, admissions, reach, spans)
        m = problem.micro_batches
        # The W that must have ended in any case when a forward starts: those of n = i, the largest possible n.
        self.admits = [[m] * m for _ in problem.device]  # the first forward that waits for W(j)
        for s, admission in enumerate(admissions):
            waited = 0
            for i in range(m):
                weights = admission.weights(i, i) or 0  # never falls with i
                self.admits[s][waited:weights] = [i] * (weights - waited)
                waited = weights
        for i in reversed(range(m)):
            for s in range(problem.stages):
                self.table["W"][s][i] = self._weight(s, i)
                self.table["I"][s][i] = self._backward(s, i)
            for s in reversed(range(problem.stages)):
                self.table["F"][s][i] = self._forward(s, i)

    def _onward(self, row: Row, i: int, arrived: int) -> int:
        """Tail of an operation that sends; ``arrived`` is the least time to the step's end once its tensor was sent."""
        problem, transfer = self.problem, self.problem.sent.get(row)
        if transfer is None:
            return arrived
        (kind, s), (sent, _), end = row, transfer, i + self.reach + 1
        self.table[sent][s][i] = tail = self.on_resources(transfer, arrived, ((i + 1, end), (i, end)), -1)
        return max(arrived, problem.ready[transfer] + problem.time[sent][s] - problem.time[kind][s] + tail)

    def _weight(self, s: int, i: int) -> int:
        end = i + self.reach + 1
        forwards, others = self.items("F", s, self.admits[s][i], end), self.items("W", s, i + 1, end)
        return max(self.problem.ending[s], self.packed(s, forwards, others))

    def _backward(self, s: int, i: int) -> int:
        problem, tail = self.problem, self.table
        least, end = problem.ending[s], i + self.reach + 1
        forwards, others = self.items("F", s, i + self.admissions[s].most, end), self.items("I", s, i + 1, end)
        if s:
            arrived = problem.lag_back[s - 1] + problem.backward[s - 1] + tail["I"][s - 1][i]
            least = max(least, self._onward(("I", s), i, arrived))
        for t in problem.hosted[problem.device[s]]:
            if t <= s and problem.split[t]:
                others += self.items("W", t, i, end)
            if t < s:
                others += self.items("I", t, i, end)
        return max(least, self.packed(s, forwards, others))

    def _forward(self, s: int, i: int) -> int:
        problem, tail = self.problem, self.table
        least, end = problem.backward[s] + tail["I"][s][i], i + self.reach + 1
        if s < problem.stages - 1:
            arrived = problem.lag[s] + problem.forward[s + 1] + tail["F"][s + 1][i]
            least = max(least, self._onward(("F", s), i, arrived))
        if not s:
            least = max(least, self.spans.step.get(problem.micro_batches - i, 0) - problem.forward[0])
        forwards, others = self.items("F", s, i + 1, end), list[Item]()
        for t in problem.hosted[problem.device[s]]:
            if t > s:
                forwards += self.items("F", t, i, end)
            others += self.items("I", t, i, end)
            if problem.split[t]:
                others += self.items("W", t, i, end)
        return max(least, self.packed(s, forwards, others))


def lower_bound(problem: PipelineSchedule, known: Windows | None = None) -> int:
    """Lower bound on the step time over all schedules; `known` are the problem's windows, if computed already.

    Returns 0 if no schedule is possible.
    """
    if not problem.possible:
        return 0
    known = known or windows(problem)
    bound = 0
    for rows in problem.machines:
        items = [
            (known.head[kind][s][i], problem.time[kind][s], known.tail[kind][s][i])
            for kind, s in rows
            for i in range(problem.micro_batches)
        ]
        bound = max([bound, jackson(items), *(sum(item) for item in items)])
    return bound
