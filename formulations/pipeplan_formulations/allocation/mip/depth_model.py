"""The chain allocation problem for one number of stages as rows: the switches of `depth_frame`, and T above them."""

from dataclasses import dataclass

from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.mip.depth_frame import Frame, Switches
from pipeplan_formulations.allocation.place import Allocation, ModeKey, Place
from pipeplan_formulations.allocation.terms import behind, drained, loaded, own, services, step_on, two_phases
from pipeplan_formulations.common.mip.model import Expression, LinearModel, sum_of
from pipeplan_formulations.common.scaling import Scale


@dataclass(frozen=True)
class DepthModel:
    """Rows with T as their objective, and where to read an allocation from.

    Attributes
    ----------
    ends : for each stage but the last, what tells whether it ends at each cut
    holds : for each stage, the switch of each mode and k
    free : whether k is a choice
    """

    rows: LinearModel
    scale: Scale
    layers: int
    ends: list[Switches]
    holds: list[dict[tuple[ModeKey, int], int]]
    free: bool

    def read(self, point: list[float]) -> Allocation:
        """The allocation of a solver's values."""
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
        """``times`` · T ≥ the expression, rounded down to scaled time."""
        self.at_least(Expression({self.time: times}) - expression.down(self.scale.unit), 0, when)

    def bottleneck(self) -> None:
        """N T is no less than what any replica does in a step, and, rounded down to N, any wire."""
        problem, unit = self.problem, self.scale.unit
        samples = problem.divisor
        for s in range(self.depth):
            times = *self._times(s), self.send[s], self.into[s]
            for (kind, width), mode in self.modes[s].items():
                once = self._reduction(s, kind, width)
                step = loaded(problem.overlap, problem.share(width), *times, once)
                self._bound(step - samples * (unit - 1), (mode,), samples)
                for send in (self.send[s], self.back[s]) if problem.overlap != "none" else ():
                    self._bound(problem.wire_shares[width] * send - (samples * unit - 1), (mode,), samples)

    def step(self) -> None:
        """(3) where a mode is chosen, (4) to (6) where a mode and its k are."""
        problem, overlap = self.problem, self.problem.overlap
        times = [self._times(s) for s in range(self.depth)]
        head, heads = self._finish(), []
        for s, (forward, backward) in enumerate(times):
            heads.append(head)
            head = head + step_on(overlap, forward + backward, self.send[s], self.back[s], self.latency[s])
        for s, (forward, backward) in enumerate(times):
            for (_, width), mode in self.modes[s].items():
                many = problem.share(width)
                wait = (many - 1) * self.into[s] if overlap == "none" else 0
                self._bound(heads[s] + own(overlap, many, forward, backward, self.send[s]) + wait, (mode,))
            for ((_, width), k), switch in self.holds[s].items():
                many = problem.share(width)
                held = k if problem.alternating else many
                parts = forward, backward, self.send[s], self.back[s], self.into[s]
                for service in services(overlap, many, held, problem.wire_shares[width], *parts):
                    self._bound(head + service, (switch,))
                for t, (_, peak) in enumerate(times[: s + 1] if problem.drains and problem.alternating else []):
                    for (_, before), mode in self.modes[t].items():
                        left = behind(problem.last_batch, many, held, width) // before
                        drain = drained(many, held, forward + backward, left, peak)
                        self._bound(head + drain, (switch, mode))
                for _, other in times if problem.drains and problem.phases else []:
                    self._bound(head + two_phases(many, forward, other), (switch,))

    def _finish(self) -> Expression:
        """E_0."""
        problem, total = self.problem, Expression({})
        for (kind, width), on in self.on[0].items():
            w = problem.widths.index(width)
            total = total + sum_of(int(problem.update[kind, w, i]) * on[i] for i in range(problem.layers))
            total = total + self._reduction(0, kind, width)
        return total

    def _reduction(self, s: int, kind: int, width: int) -> Expression:
        """R of stage s if it is of this mode, otherwise 0; the base once if it has a layer with something to reduce."""
        problem, w, on = self.problem, self.problem.widths.index(width), self.on[s][kind, width]
        base = self.switch()
        for i in range(problem.layers):
            if problem.reduce[kind, w, i]:
                self.at_least(base - on[i])
        parts = sum_of(int(problem.reduce[kind, w, i]) * on[i] for i in range(problem.layers))
        return parts + int(problem.reduce_base[kind, w]) * base
