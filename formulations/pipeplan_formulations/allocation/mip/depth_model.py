"""Linear model of the allocation problem with a fixed number of stages: rows of `depth_frame`, and rows for T."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.mip.depth_frame import Frame, Switches
from pipeplan_formulations.allocation.place import Allocation, ModeKey, Place
from pipeplan_formulations.allocation.terms import (
    ahead_step,
    delays,
    drain_delay,
    head_step,
    micro_batches_behind,
    own,
    stage_load,
    two_phase_delay,
)
from pipeplan_formulations.common.layer_tables import Array
from pipeplan_formulations.common.mip.exposed import exposed_collectives
from pipeplan_formulations.common.mip.model import Expression, LinearModel, sum_of
from pipeplan_formulations.common.scaling import Scale


@dataclass(frozen=True)
class DepthModel:
    """A linear model with T as its objective, and the variables that describe an allocation.

    Attributes
    ----------
    rows : LinearModel
    scale : Scale
        Unit of the model's times.
    layers : int
        n.
    ends : list of dict
        For each stage except the last: an expression per cut, 1 if the stage ends there.
    holds : list of dict
        For each stage: the switch of each mode and k.
    free : bool
        True if k is a choice.
    """

    rows: LinearModel
    scale: Scale
    layers: int
    ends: list[Switches]
    holds: list[dict[tuple[ModeKey, int], int]]
    free: bool

    def read(self, point: list[float]) -> Allocation:
        """The allocation that a solver's values describe."""
        whole = [round(value) for value in point]
        edges = [0, *(1 + next(c for c, end in ends.items() if end.value(whole)) for ends in self.ends), self.layers]
        chosen = [next(key for key, switch in holds.items() if whole[switch]) for holds in self.holds]
        return tuple(Place(edges[s], edges[s + 1], *mode, k if self.free else 0) for s, (mode, k) in enumerate(chosen))


def depth_model(problem: ChainAllocation, depth: int, scale: Scale, high: int) -> DepthModel:
    """The model with ``depth`` stages and T at most ``high``, in scaled time."""
    builder = _Objective(problem, depth, scale, high)
    (builder.bottleneck if problem.objective == "bottleneck" else builder.step)()
    return DepthModel(builder.rows, scale, problem.layers, builder.ends, builder.holds, problem.chooses)


class _Objective(Frame):
    """Rows of `Frame`, and those that bound T from below."""

    def _times(self, s: int) -> tuple[Expression, Expression]:
        """F and B of stage s."""
        problem, n = self.problem, self.problem.layers
        forward = backward = Expression({})
        for (kind, width), on in self.on[s].items():
            forward = forward + sum_of(int(problem.forward[kind, i]) * on[i] for i in range(n))
            backward = backward + sum_of(int(problem.backward[kind, i]) * on[i] for i in range(n))
            backward = backward + sum_of(
                int(problem.forward[kind, i]) * layer for i, layer in self.again[s][kind, width].items()
            )
        return forward, backward

    def _bound(self, expression: Expression, when: tuple[int, ...], times: int = 1) -> None:
        """Add ``times`` · T ≥ the expression, rounded down to scaled time."""
        self.at_least(Expression({self.time: times}) - expression.down(self.scale.unit), 0, when)

    def bottleneck(self) -> None:
        """Bound N T from below by the busy time per step of each replica and, rounded down to N, of each link."""
        problem, unit = self.problem, self.scale.unit
        samples = problem.divisor
        for s in range(self.depth):
            times = *self._times(s), self.send[s], self.into[s]
            for (kind, width), mode in self.modes[s].items():
                once = self._reduction(s, kind, width)
                step = stage_load(problem.overlap, problem.share(width), *times, once)
                self._bound(step - samples * (unit - 1), (mode,), samples)
                for send in (self.send[s], self.back[s]) if problem.overlap != "none" else ():
                    self._bound(problem.link_shares[width] * send - (samples * unit - 1), (mode,), samples)

    def step(self) -> None:
        """Add way back and own ending, enforced where a mode is chosen, and delays, enforced where mode and k are."""
        problem, overlap = self.problem, self.problem.overlap
        times = [self._times(s) for s in range(self.depth)]
        head, heads = sum_of(self._ending(0, mode) for mode in self.every_mode), []
        ahead = Expression({})
        for s, (forward, backward) in enumerate(times):
            heads.append(head)
            head = head + head_step(overlap, forward + backward, self.send[s], self.back[s], self.latency[s])
        for s, (forward, backward) in enumerate(times):
            for (kind, width), mode in self.modes[s].items():
                many = problem.share(width)
                wait = (many - 1) * self.into[s] if overlap == "none" else 0
                self._bound(heads[s] + own(overlap, many, forward, backward, self.send[s]) + wait, (mode,))
                if s:  # that of stage 0 is the way-back bound
                    ending = self._ending(s, (kind, width))
                    load = stage_load(overlap, many, forward, backward, self.send[s], self.into[s], ending)
                    self._bound(ahead + load, (mode,))
            if problem.objective == "step":
                ahead = ahead + ahead_step(overlap, forward, self.send[s], self.latency[s])
            for ((_, width), k), switch in self.holds[s].items():
                many = problem.share(width)
                held = k if problem.alternating else many
                parts = forward, backward, self.send[s], self.back[s], self.into[s]
                for delay in delays(overlap, many, held, problem.link_shares[width], *parts):
                    self._bound(head + delay, (switch,))
                for t, (_, largest) in enumerate(times[: s + 1] if problem.drains and problem.alternating else []):
                    for (_, before), mode in self.modes[t].items():
                        left = micro_batches_behind(problem.last_batch, many, held, width) // before
                        drain = drain_delay(many, held, forward + backward, left, largest)
                        self._bound(head + drain, (switch, mode))
                for _, other in times if problem.drains and problem.phases else []:
                    self._bound(head + two_phase_delay(many, forward, other), (switch,))

    def _ending(self, s: int, mode: ModeKey) -> Expression:
        """E of stage s if it is of this mode, else 0."""
        (kind, width), problem = mode, self.problem
        w, on = problem.widths.index(width), self.on[s][mode]
        total = sum_of(int(problem.update[kind, w, i]) * on[i] for i in range(problem.layers))
        if s == 0 and problem.layers > 1:
            total = total + int(problem.second_ending[kind, w]) * (on[0] - on[1])
        return total + self._reduction(s, kind, width)

    def _reduction(self, s: int, kind: int, width: int) -> Expression:
        """R of stage s if it is of this mode, else 0: what is exposed of its sums and gathers."""
        problem, w, on = self.problem, self.problem.widths.index(width), self.on[s][kind, width]
        found = self._exposed(on, problem.reduce[kind, w], problem.hides[kind], int(problem.reduce_base[kind, w]))
        if s == 0 or problem.objective == "period":
            base = int(problem.gather_base[kind, w])
            found = found + self._exposed(on, problem.gather[kind, w], problem.gather_hides[kind], base)
        return found

    def _exposed(self, on: Sequence[Expression], times: Array, hides: Array, base: int) -> Expression:
        """What is exposed of collectives that take ``times`` for each layer, and ``base``.

        If nothing is hidden, it is the sum over the layers, and the base if one of them has a time.
        """
        if not times.any():
            return Expression({})
        if hides.any():
            unit = self.scale.unit
            return unit * exposed_collectives(self.rows, on, times.tolist(), hides.tolist(), base, unit)
        parts = sum_of(int(time) * x for time, x in zip(times, on, strict=True))
        if not base:
            return parts
        some = self.switch()
        for time, x in zip(times, on, strict=True):
            if time:
                self.at_least(some - x)
        return parts + base * some
