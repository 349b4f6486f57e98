"""Given lists as a network: when every operation starts, and how long the step goes on after it.

The arcs are those of the pipeline and from each operation on a device to its next. Times are exact, as in
`evaluate`; here operations are numbers, because local search asks for them thousands of times.
"""

from dataclasses import dataclass
from itertools import pairwise

from pipeplan_formulations.schedule.constructive.numbers import KINDS, Numbered, number
from pipeplan_formulations.schedule.problem import PipelineSchedule

Arcs = list[list[tuple[int, int]]]
"""Of every operation its neighbours, each with the lag between them."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Lists with their times.

    Attributes
    ----------
    makespan : int
    heads : list of int
        Start of each operation.
    tails : list of int
        From the start of each operation to the end of the step, along the longest path.
    """

    makespan: int
    heads: list[int]
    tails: list[int]


class Network:
    """The arcs of the pipeline, and times under any lists."""

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

    def fits(self, device: int, order: list[int]) -> bool:
        """Whether the list keeps to the device's memory."""
        left, delta = self.problem.room[device], self.delta
        for op in order:
            left -= delta[op]
            if left < 0:
                return False
        return True

    def timed(self, orders: Numbered) -> Timed | None:
        """Times with every operation as early as possible; None if the lists deadlock. Memory is not looked at."""
        durations, after = self.durations, self.after
        next_one, waits = [-1] * self.size, list(self._waits)
        for order in orders:
            for a, b in pairwise(order):
                next_one[a] = b
                waits[b] += 1
        heads = [0] * self.size
        sequence = [order[0] for order in orders if order and not waits[order[0]]]
        for op in sequence:  # grows while it is read; comparisons are spelled out as calls of max take half of the time
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
