"""Sums over a stage as linear functions of its two shares, and the constraints as rows in these shares."""

from dataclasses import dataclass

import numpy as np

from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.fractional.instance import TOLERANCE, Array, FractionalPartition


class Line:
    """Prefix sums of one quantity: the sum over shares from a + α to b + β is P[b] − P[a] − t_a α + t_b β."""

    def __init__(self, values: Array) -> None:
        self.each: list[float] = [*map(float, values), 0.0]  # behind the last layer lies nothing
        self.prefix: list[float] = [0.0, *np.cumsum(values, dtype=np.float64).tolist()]

    def sum(self, a: int, b: int, alpha: float, beta: float) -> float:
        """The sum from a + α to b + β."""
        return self.prefix[b] - self.prefix[a] - self.each[a] * alpha + self.each[b] * beta

    def parts(self, a: int, b: int) -> tuple[float, float, float]:
        """Coefficients (constant, x, y): the sum is constant + x α + y β."""
        return self.prefix[b] - self.prefix[a], -self.each[a], self.each[b]


@dataclass(frozen=True)
class Sums:
    """Times of a stage for one way of reading weights. ``chip``: True if it requires weights to fit on chip."""

    forward: Line
    backward: Line
    load: Line
    chip: bool


class Tables:
    """Prefix sums of the problem by stage, for the dynamic programme of `exact`."""

    def __init__(self, problem: FractionalPartition) -> None:
        p = self.problem = problem
        self.many = p.micro_batches if p.objective == "step" else 0
        self.fast = [_sums(p.forward[s], p.backward[s], p.streams[s]) for s in range(p.stages)]
        self.slow = [_sums(p.forward_streamed[s], p.backward_streamed[s], False) for s in range(p.stages)]
        self.update = Line(p.update[0])
        self.weights, self.resident, self.saved = Line(p.weights), Line(p.resident), Line(p.saved)
        self.workspace = [*map(float, p.workspace), 0.0]
        self.received = _pairs(p.bytes_through, p.bytes_own)
        self.send = [_pairs(p.through[s], p.own[s]) for s in range(p.stages - 1)]
        # rest[s]: least work of each layer on any stage behind s; share[s]: the part of T − H that stages behind s can
        # do by the way-back bound; least_round_trip: a lower bound on R without updates.
        work = p.forward + p.backward
        self.rest = [Line(work[s + 1 :].min(axis=0)) for s in range(p.stages - 1)]
        idle = 0.0 if p.two_lanes else 1 - 1 / max(self.many, 1)
        self.share = [1 - idle ** (p.stages - 1 - s) for s in range(p.stages)]
        latency = 2 * int(p.latency.sum(dtype=object))
        self.least_round_trip = int(work.min(axis=0).sum(dtype=object)) + latency

    def ways(self, s: int, a: int, b: int) -> list[Sums]:
        """Possible ways of reading weights for a stage from layer a to layer b."""
        if not self.problem.streams[s]:
            return [self.fast[s]]
        chip = int(self.problem.on_chip[s])
        if self.weights.sum(a, b, 1.0 if b > a else 0.0, 0.0) > chip * (1 + TOLERANCE):
            return [self.slow[s]]
        return [self.fast[s]] if self.weights.sum(a, b, 0.0, 1.0) <= chip else [self.fast[s], self.slow[s]]

    def most(self, target: int, head: float, guess: float) -> float:
        """Largest F_s + B_s of a stage, given that H is at least ``head``."""
        lanes = 2 if self.problem.two_lanes else 1
        if not self.many:
            return float(lanes * target)
        if self.problem.two_lanes:
            return lanes * (target - guess) / (self.many - 1) if self.many > 1 else target - head
        return (target - head) / self.many

    def ahead(self, s: int, a: int, b: int, sums: Sums, head: tuple[float, float], alpha: float, beta: float) -> float:
        """Value H of the next boundary: H_{s+1}, or R behind the last stage; 0 for the bottleneck."""
        constant, x, y = self._ahead(s, a, b, sums, head)
        return constant + x * alpha + y * beta

    def _ahead(self, s: int, a: int, b: int, sums: Sums, head: tuple[float, float]) -> tuple[float, float, float]:
        if not self.many:
            return 0.0, 0.0, 0.0
        constant, x, y = sums.load.parts(a, b)
        if s == 0:
            before = self.update.parts(a, b)
            constant, x, y = constant + before[0], x + before[1], y + before[2]
        if s < self.problem.stages - 1:
            constant += 2 * int(self.problem.latency[s])
        return constant + head[0], x + head[1], y

    def rows(
        self, s: int, a: int, b: int, sums: Sums, head: tuple[float, float], target: int, guess: float
    ) -> list[tuple[float, float, float, float]]:
        """The memory limit and the bounds, as rows (x, y, most, slack): x α + y β ≤ most."""
        rows = self._memory(s, a, b)
        if sums.chip:
            constant, x, y = self.weights.parts(a, b)
            chip = int(self.problem.on_chip[s])
            rows.append((x, y, chip - constant, TOLERANCE * chip))
        times = self._step(s, a, b, sums, head, target, guess) if self.many else self._bottleneck(s, a, b, sums, target)
        rows += [(x, y, most, TOLERANCE * target) for x, y, most in times]
        return rows

    def _bottleneck(self, s: int, a: int, b: int, sums: Sums, target: int) -> list[tuple[float, float, float]]:
        lanes = (sums.forward, sums.backward) if self.problem.two_lanes else (sums.load,)
        rows = [(x, y, target - constant) for constant, x, y in (lane.parts(a, b) for lane in lanes)]  # bottleneck
        if s < self.problem.stages - 1:
            through, own = self.send[s][b]
            rows.append((0.0, own, target - through))  # bottleneck
            left = self.rest[s].prefix
            # The work behind this boundary is at most T for each lane of the stages that are left.
            lane_count = (self.problem.stages - 1 - s) * len(lanes)
            rows.append((0.0, -self.rest[s].each[b], lane_count * target - (left[-1] - left[b])))
        return rows

    def _step(
        self, s: int, a: int, b: int, sums: Sums, head: tuple[float, float], target: int, guess: float
    ) -> list[tuple[float, float, float]]:
        # ``room``: T − ρ, where the guess ρ stands for R. ``head``: H in front of the stage, linear in α.
        many, room = self.many, target - guess
        constant, x, y = sums.load.parts(a, b)
        first = self.update.parts(a, b) if s == 0 else (0.0, 0.0, 0.0)
        rows = []
        if not self.problem.two_lanes:  # way-back bound
            most = target - head[0] - many * constant - first[0]
            rows.append((head[1] + many * x + first[1], many * y + first[2], most))
        delays = self._delays(s, a, b, sums)
        rows += [(x, y, room - c) for c, x, y in delays]  # services and warm-up bounds
        if s < self.problem.stages - 1:  # services bound for the activations sent to stage s + 1
            c, x, y = sums.forward.parts(a, b)
            through, own = self.send[s][b]
            rows.append((-x, many * own - y, room - many * through + c))
            # It holds for the stages behind too: their work is at most a share of T − H (with two lanes, all of it).
            constant, x, y = self._ahead(s, a, b, sums, head)
            part, work = self.share[s], self.rest[s].prefix[-1] - self.rest[s].prefix[b]
            rows.append((part * x, part * y - self.rest[s].each[b], part * (target - constant) - work))
            # R is at least H plus the work and latencies behind, which may exceed the guess.
            work += 2 * sum(map(int, self.problem.latency[s + 1 :]))
            rows += [(x + u, y + v - self.rest[s].each[b], target - constant - work - c) for c, u, v in delays]
        if s > 0:  # services bound for the gradients sent to stage s − 1
            c, x, y = sums.backward.parts(a, b)
            through, own = self.send[s - 1][a]
            rows.append((many * own - x, -y, room - many * through + c))
        return rows

    def _delays(self, s: int, a: int, b: int, sums: Sums) -> list[tuple[float, float, float]]:
        """Every term e of the services and warm-up bounds without a link, as constant and coefficients of α and β."""
        many, forward, backward = self.many, sums.forward.parts(a, b), sums.backward.parts(a, b)
        pairs = [(many - 1, 0), (0, many - 1)]
        if self.problem.ahead is not None:
            pairs.append((max(many - int(self.problem.ahead[s]), 0), many - 1))
        return [
            (f * forward[0] + g * backward[0], f * forward[1] + g * backward[1], f * forward[2] + g * backward[2])
            for f, g in pairs
        ]

    def _memory(self, s: int, a: int, b: int) -> list[tuple[float, float, float, float]]:
        """Rows of memory, one for each share whose workspace may be the largest: the first, the last, those between."""
        limit = int(self.problem.limit[s])
        if limit >= UNLIMITED:
            return []
        flight = int(self.problem.in_flight[s])
        (c, x, y), (held, hx, hy) = self.resident.parts(a, b), self.saved.parts(a, b)
        through, own = self.received[a] if s else (0.0, 0.0)
        constant = c + flight * (held + through)
        x, y = x + flight * (hx + own), y + flight * hy
        # Workspace of a share: (1 − α) of layer a, β of layer b, or (β − α) if both are the same layer.
        first, last = self.workspace[a], self.workspace[b]
        largest = [(-first, last, 0.0)] if a == b else [(-first, 0.0, first), (0.0, last, 0.0)]
        if b > a + 1:
            largest.append((0.0, 0.0, max(self.workspace[a + 1 : b])))
        return [(x + u, y + v, limit - constant - w, TOLERANCE * limit) for u, v, w in largest]


def _sums(forward: Array, backward: Array, chip: bool) -> Sums:
    return Sums(Line(forward), Line(backward), Line(forward + backward), chip)


def _pairs(through: Array, own: Array) -> list[tuple[float, float]]:
    """Pairs (through, own) of every layer; zeros behind the last layer."""
    return [*zip(map(float, through), map(float, own), strict=True), (0.0, 0.0)]
