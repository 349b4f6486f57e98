r"""Lower bounds on period and step by a device's memory, for any schedule.

A *holding* is a weighted sum of the micro-batches on a device: α_s for each between the start of F_s and the end of
I_s, β_s for each between the end of I_s and the end of W_s. The sum never exceeds C. Two holdings follow from memory:

* bytes: α = taken, β = freed by weight, C = the largest sum within the room that such numbers can make;
* counts, if a device hosts one stage: α = 1, β = 0, C = K, the number of micro-batches of that stage that fit at once.

A count may last e longer than I_s(i), with e = min(I_s, W_s), if K micro-batches leave no room for the bytes that a W
frees. When F_s(i + K) begins, I_s(i) has ended. Either I_s(i + 1) has ended too, or i + 1 I have ended and K
micro-batches are in flight, so every W before them has ended, W_s(i) among them. Both take their time after I_s(i). So
at no time are more than K begun micro-batches counted. In all other cases e = 0.

Area. F_s(i) and I_s(i) are at least a round trip R_s apart, and W_s(i) ends W_s or more after I_s(i). So one
micro-batch adds at least  A = Σ_s (α_s (R_s + e) + β_s W_s)  to the integral of the sum over time. The sum is at most
C. Hence in an endless schedule of any pattern the mean time of one micro-batch is at least

    A / C  (*holding*),

and with M micro-batches the sum is above 0 for at least M A / C.

Ramps. The sum cannot jump to C and back. With one stage on the device, at time x after its first F at most
1 + ⌊x / f⌋ micro-batches have begun, f = max_{t≤s} F_t, because those of stage t alone are F_t apart. With several
stages, all F that have begun except the last have ended, so their times sum up to at most x, and their weights to at
most max_s α_s + x max_s α_s/F_s. Backwards from the last release the same holds for operations that release: at time y
before it, all bytes held are released by operations that end later. All of these except the first begin within y, so
the sum is at most max r + y max r/t over the kinds of operations that release r in time t. Each ramp lacks an area
below C ::

      C  ┄┄┄┄┄┄┄┄┏━━━━━━━━━━┓┄┄┄┄
               ┏━┛          ┗━┓              M A ≤ C X − (what both ramps lack)      if they do not overlap
             ┏━┛              ┗━┓
         ━━━━┛                  ┗━━━
         head│◀──────  X  ──────▶│ tail

They do not overlap if X is at least the sum of their lengths, which M A / C ≤ X may already imply. Before the device's
first F there is a head, after its last release a tail:

    step ≥ min_s head_s + (M A + lacking) / C + min_s tail of the last release − e  (*ramps*).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from pipeplan_formulations.schedule.instance import PipelineSchedule


@dataclass(frozen=True)
class Reach:
    """Least times along the chain of one micro-batch, one entry per stage.

    ::

        F_0 ─▶ F_1 ─▶ F_2 ─▶ F_3          head:        start of F_0 to start of F_2
                      │        │          round_trip:  start of F_2 to end of I_2
        I_0 ◀─ I_1 ◀─ I_2 ◀─ I_3          tail:        end of I_2 to the end of the step

    Attributes
    ----------
    head : tuple of int
        Σ_{t<s} (F_t + lag_t).
    round_trip : tuple of int
        Time from the start of F_s to the end of I_s.
    tail : tuple of int
        max over t ≤ s of  Σ_{t≤v<s} (back_v + I_v) + W_t + ending_t: least time after I_s(i), for every i.
    """

    head: tuple[int, ...]
    round_trip: tuple[int, ...]
    tail: tuple[int, ...]


def reach(problem: PipelineSchedule) -> Reach:
    """Heads, round trips and tails of all stages."""
    stages = range(problem.stages)
    head, trip = [0], [0] * problem.stages
    tail: list[int] = []
    for s in stages[1:]:
        head.append(head[-1] + problem.forward[s - 1] + problem.lag[s - 1])
    for s in reversed(stages):
        beyond = 0 if s == problem.stages - 1 else problem.lag[s] + trip[s + 1] + problem.lag_back[s]
        trip[s] = problem.forward[s] + beyond + problem.backward[s]
    for s in stages:
        own = problem.weight[s] + problem.ending[s]
        tail.append(max(own, problem.lag_back[s - 1] + problem.backward[s - 1] + tail[-1]) if s else own)
    return Reach(tuple(head), tuple(trip), tuple(tail))


SUMS = 20_000
"""Largest number of different sums listed to find the largest one within the room."""


@dataclass(frozen=True)
class Holding:
    """Weights of one device; the module's docstring defines the letters.

    Attributes
    ----------
    device : int
    held, waiting : dict of int
        α_s and β_s, by stage.
    capacity : int
        C ≥ 1.
    extra : int
        Additional time e of a count.
    """

    device: int
    held: dict[int, int]
    waiting: dict[int, int]
    capacity: int
    extra: int = 0

    @property
    def counts(self) -> bool:
        """True if this holding counts the micro-batches of one stage."""
        return list(self.held.values()) == [1] and not any(self.waiting.values())

    def area(self, problem: PipelineSchedule, along: Reach) -> int:
        """Area A of one micro-batch."""
        return sum(
            self.held[s] * (along.round_trip[s] + self.extra) + self.waiting[s] * problem.weight[s] for s in self.held
        )

    def step(self, problem: PipelineSchedule, along: Reach) -> int:
        """Lower bound on a step by ramps, rounded up."""
        area = problem.micro_batches * self.area(problem, along)
        lacking_up, up = self._ramp_up(problem)
        lacking_down, down = self._ramp_down(problem)
        span = Fraction(area, self.capacity)
        if span >= up + down:
            span += (lacking_up + lacking_down) / self.capacity
        head = min(along.head[s] for s in self.held)
        tail = min(
            (problem.ending[s] if self.waiting[s] else along.tail[s] for s in self.held if self.held[s]), default=0
        )
        return head + _ceil(span) + tail - self.extra

    def _ramp_up(self, problem: PipelineSchedule) -> tuple[Fraction, Fraction]:
        """Area that the first ramp lacks, and its length."""
        if len(self.held) == 1:
            (stage, weight), apart = next(iter(self.held.items())), 0
            apart = max(problem.forward[: stage + 1])
            steps = -(-self.capacity // weight) - 1  # number of further forwards after which the sum may be C
            lacking = apart * (steps * self.capacity - weight * steps * (steps + 1) // 2)
            return Fraction(lacking), Fraction(apart * steps)
        return self._slope([(w, problem.forward[s]) for s, w in self.held.items() if w])

    def _ramp_down(self, problem: PipelineSchedule) -> tuple[Fraction, Fraction]:
        """Area that the last ramp lacks, and its length."""
        releases = [(w - self.waiting[s], problem.backward[s]) for s, w in self.held.items()]
        releases += [(w, problem.weight[s]) for s, w in self.waiting.items()]
        return self._slope([(weight, time) for weight, time in releases if weight])

    def _slope(self, steps: list[tuple[int, int]]) -> tuple[Fraction, Fraction]:
        """Lacking area and length of a ramp of operations that each add ``weight`` in ``time``."""
        rise = max(0, self.capacity - max(weight for weight, _ in steps))
        pace = min(Fraction(time, weight) for weight, time in steps)
        return rise * rise * pace / 2, rise * pace


def holdings(problem: PipelineSchedule, endless: bool = False) -> Iterator[Holding]:
    """Holdings of all devices whose stages take memory.

    ``problem`` must be possible: then no capacity is 0. Unless ``endless``, at most M micro-batches are held.
    """
    m = problem.micro_batches
    for d, hosted in enumerate(problem.hosted):
        room = problem.room[d]
        taken = {s: problem.taken[s] for s in hosted}
        waiting = {s: problem.freed_by_weight[s] for s in hosted}
        if not any(taken.values()):
            continue
        weights = {w for w in (*taken.values(), *waiting.values()) if w}
        yield Holding(d, taken, waiting, largest_sum(weights, room if endless else min(room, m * sum(taken.values()))))
        if len(hosted) == 1:
            (s,) = hosted
            fit = room // taken[s] if endless else min(room // taken[s], m)
            full = fit * taken[s] + waiting[s] > room
            extra = min(problem.backward[s], problem.weight[s]) if full and problem.split[s] else 0
            yield Holding(d, {s: 1}, {s: 0}, fit, extra)


def largest_sum(weights: set[int], room: int) -> int:
    """Largest sum ≤ room of any multiples of the weights; ``room`` itself if there are too many sums to list."""
    sums = {0}
    for weight in sorted(weights, reverse=True):
        if sum((room - begun) // weight + 1 for begun in sums) > SUMS:
            return room
        sums = {total for begun in sums for total in range(begun, room + 1, weight)}
    return max(sums)


def period_bound(problem: PipelineSchedule, unit: int = 1) -> int:
    """Lower bound on the mean time of ``unit`` micro-batches in an endless schedule: holding, and each device's work.

    Returns 0 if the problem is impossible.
    """
    if not problem.possible:
        return 0
    along = reach(problem)
    work = max(problem.work) // problem.micro_batches * unit
    areas = (Fraction(unit * h.area(problem, along), h.capacity) for h in holdings(problem, endless=True))
    return max(work, max((_ceil(area) for area in areas), default=0))


def step_bound(problem: PipelineSchedule) -> int:
    r"""Lower bound on the step of M micro-batches: the largest of ramps over all holdings, and of work.

    For every device d:

        step ≥ min_s head_s + Σ_s M (F_s + I_s + W_s) + min_s tail of the last operation,
        step ≥ min_s head_s + Σ_s M (F_s + I_s)       + min_s tail_s,

    over the stages s of d. In the first the last operation of the device is a W, followed by ending_s, or a joined
    backward, followed by tail_s. In the second W is left out, and the last of the other operations is an I.

    The least period T_u of u micro-batches does not bound a step unless u = M: then M micro-batches in any order,
    repeated endlessly, are such a pattern, so step ≥ T_M. T_1 may exceed T_2 / 2: with eight equal stages and
    F = I = W a period of 3 F takes room for eight micro-batches, and a period of 6 F for two takes room for six. So
    holding is used here, which holds for all u at once.
    """
    if not problem.possible:
        return 0
    along, m = reach(problem), problem.micro_batches
    best = max(along.head[s] + problem.forward[s] + problem.backward[s] + along.tail[s] for s in range(problem.stages))
    for hosted, work in zip(problem.hosted, problem.work, strict=True):
        if not hosted:
            continue
        head = min(along.head[s] for s in hosted)
        after_all = min(problem.ending[s] if problem.split[s] else along.tail[s] for s in hosted)
        chained = m * sum(problem.forward[s] + problem.backward[s] for s in hosted)
        best = max(best, head + work + after_all, head + chained + min(along.tail[s] for s in hosted))
    return max([best, *(holding.step(problem, along) for holding in holdings(problem))])


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)
