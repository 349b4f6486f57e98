"""For every operation: how early it can start, and how long before the end of the step it must have ended.

Both are longest ways over (1) to (3), the order of micro-batches, and what memory forces (`admitting`), each made
longer by the work that the operation's device must do before or after it:

    head of A ≥ packed(head, time of everything that A's device must have ended before A)
    tail of A ≥ packed(tail, time of everything that A's device cannot have started before A's end)

(`packing`). On the device of stage s there run before F_s(i)

    F_s(j), j < i;    F_t(j), j ≤ i, of its stages t < s;    and, with n I and k W ended, for one choice of (n, k),
    I_s(j), j < n;    W_s(j), j < k;    F_t(j), I_t(j), j < n, of its stages t > s,

and before I_s(i) all F_t(j), j ≤ i, of its stages, I_t(j), j ≤ i, of those t > s, and I_s(j), j < i. What comes after
is the same read backwards. Where the problem is large, only the last `REACH` micro-batches before (the next after) are
packed, and everything before that is left out: fewer items never make a packing longer.

What is known of fewer micro-batches (`spans`) is a head of stage 0's last operation on each and a tail of its forward.
"""

from dataclasses import dataclass

from pipeplan_formulations.schedule.admitting import Admission
from pipeplan_formulations.schedule.packing import Item, packed
from pipeplan_formulations.schedule.problem import Kind, PipelineSchedule
from pipeplan_formulations.schedule.spans import Spans

SMALL = 2048
"""Stages times micro-batches up to which packings take in everything."""
REACH = 16

Table = dict[Kind, list[list[int]]]
"""A number for each kind, stage and micro-batch."""


@dataclass(frozen=True)
class Windows:
    """Attributes
    ----------
    head : Table
        Least time from the start of the step to the start.
    tail : Table
        Least time from the end to the end of the step.
    """

    head: Table
    tail: Table


def windows(problem: PipelineSchedule, spans: Spans | None = None) -> Windows:
    """Heads and tails of all operations of a `possible` problem, of which `spans` may be known."""
    spans = spans or Spans()
    admissions = [Admission(problem, s) for s in range(problem.stages)]
    everything = problem.stages * problem.micro_batches <= SMALL
    reach = problem.micro_batches if everything else REACH
    return Windows(_Heads(problem, admissions, reach, spans).table, _Tails(problem, admissions, reach, spans).table)


class _Side:
    """What heads and tails share: the table, and items of it."""

    def __init__(self, problem: PipelineSchedule, admissions: list[Admission], reach: int, spans: Spans) -> None:
        self.problem, self.admissions, self.reach, self.spans = problem, admissions, reach, spans
        m = problem.micro_batches
        self.table: Table = {"F": [], "I": [], "W": []}
        for rows in self.table.values():
            rows.extend([0] * m for _ in problem.device)

    def items(self, kind: Kind, stage: int, begin: int, end: int) -> list[Item]:
        """Those of micro-batches begin ≤ j < end."""
        time = self.problem.time[kind][stage]
        return [(value, time) for value in self.table[kind][stage][max(begin, 0) : end]]


class _Heads(_Side):
    def __init__(self, problem: PipelineSchedule, admissions: list[Admission], reach: int, spans: Spans) -> None:
        super().__init__(problem, admissions, reach, spans)
        for i in range(problem.micro_batches):
            for s in range(problem.stages):
                self.table["F"][s][i] = self._forward(s, i)
            for s in reversed(range(problem.stages)):
                self.table["I"][s][i] = self._backward(s, i)
                self.table["W"][s][i] = self._weight(s, i)

    def _forward(self, s: int, i: int) -> int:
        problem, head = self.problem, self.table
        first = i - self.reach
        least = head["F"][s - 1][i] + problem.forward[s - 1] + problem.lag[s - 1] if s else 0
        stages = problem.hosted[problem.device[s]]
        before = self.items("F", s, first, i)
        for t in stages:
            if t < s:
                before += self.items("F", t, first, i + 1)
        waits = []
        for n, k in self.admissions[s].choices(i):
            items = before + self.items("I", s, first, n) + self.items("W", s, first, k)
            for t in stages:
                if t > s:
                    items += self.items("F", t, first, n) + self.items("I", t, first, n)
            waits.append(packed(items))
        return max(least, min(waits))

    def _backward(self, s: int, i: int) -> int:
        problem, head = self.problem, self.table
        first = i - self.reach
        least = head["F"][s][i] + problem.forward[s]
        if s < problem.stages - 1:
            least = max(least, head["I"][s + 1][i] + problem.backward[s + 1] + problem.lag_back[s])
        if not s and not problem.split[0]:
            least = max(least, self.spans.first.get(i + 1, 0) - problem.backward[0])
        items = self.items("I", s, first, i)
        for t in problem.hosted[problem.device[s]]:
            items += self.items("F", t, first, i + 1)
            if t > s:
                items += self.items("I", t, first, i + 1)
        return max(least, packed(items))

    def _weight(self, s: int, i: int) -> int:
        least = self.table["I"][s][i] + self.problem.backward[s]
        if not s:
            least = max(least, self.spans.first.get(i + 1, 0) - self.problem.weight[0])
        return max(least, packed(self.items("W", s, i - self.reach, i)))


class _Tails(_Side):
    def __init__(self, problem: PipelineSchedule, admissions: list[Admission], reach: int, spans: Spans) -> None:
        super().__init__(problem, admissions, reach, spans)
        m = problem.micro_batches
        # The W that must have ended in any case when a forward starts: those of n = i, the most I there can be.
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

    def _weight(self, s: int, i: int) -> int:
        end = i + self.reach + 1
        items = self.items("W", s, i + 1, end) + self.items("F", s, self.admits[s][i], end)
        return max(self.problem.ending[s], packed(items))

    def _backward(self, s: int, i: int) -> int:
        problem, tail = self.problem, self.table
        least, end = problem.ending[s], i + self.reach + 1
        items = self.items("I", s, i + 1, end) + self.items("F", s, i + self.admissions[s].most, end)
        if s:
            least = max(least, problem.lag_back[s - 1] + problem.backward[s - 1] + tail["I"][s - 1][i])
        for t in problem.hosted[problem.device[s]]:
            if t <= s and problem.split[t]:
                items += self.items("W", t, i, end)
            if t < s:
                items += self.items("I", t, i, end)
        return max(least, packed(items))

    def _forward(self, s: int, i: int) -> int:
        problem, tail = self.problem, self.table
        least, end = problem.backward[s] + tail["I"][s][i], i + self.reach + 1
        if s < problem.stages - 1:
            least = max(least, problem.lag[s] + problem.forward[s + 1] + tail["F"][s + 1][i])
        if not s:
            least = max(least, self.spans.step.get(problem.micro_batches - i, 0) - problem.forward[0])
        items = self.items("F", s, i + 1, end)
        for t in problem.hosted[problem.device[s]]:
            if t > s:
                items += self.items("F", t, i, end)
            items += self.items("I", t, i, end)
            if problem.split[t]:
                items += self.items("W", t, i, end)
        return max(least, packed(items))
