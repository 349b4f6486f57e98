"""Linear model of the fractional chain partition, for CBC.

For each inner boundary s and layer c there are two variables. z_{s,c} ∈ {0, 1}: boundary s lies in layer c (c = n:
behind the last layer). θ_{s,c} ∈ [0, z_{s,c}]: the share of that layer in front of it. The amount in front of boundary
s of any quantity t with prefix sums P is then linear, and so is the amount that crosses it:

::

    before_s(t) = Σ_c (P[c] z_{s,c} + t_c θ_{s,c})                amount on stage s: before_{s+1}(t) − before_s(t)
    crossing_s  = Σ_c (through_c z_{s,c} + own_c θ_{s,c})
    part of layer c in front of s:  y_{s,c} = Σ_{c' > c} z_{s,c'} + θ_{s,c}

A stage whose weights do not fit on chip has m_s = 1; big-M rows choose between F and F'. F and B are variables with
lower bounds only. Every right side grows with them, so minimisation makes them tight.
"""

from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from pipeplan_formulations.common.mip.model import Expression, LinearModel, sum_of
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.fractional.instance import FractionalPartition, Positions


@dataclass(kw_only=True)
class FractionalModel(LinearModel):
    """Linear model with the variables of the boundaries: ``place`` and ``share`` are z and θ by boundary and layer."""

    problem: FractionalPartition
    place: list[list[int]] = field(default_factory=list)
    share: list[list[int]] = field(default_factory=list)

    def positions(self, values: list[float]) -> Positions:
        """Positions of the boundaries at a point of the model."""
        inner = []
        for place, share in zip(self.place, self.share, strict=True):
            layer = max(zip((values[z] for z in place), range(len(place)), strict=True))[1]
            part = min(1.0, max(0.0, values[share[layer]])) if layer < len(share) else 0.0
            inner.append(layer + part)
        return (0.0, *np.maximum.accumulate(inner).tolist(), float(self.problem.layers))


def linear_model(problem: FractionalPartition, low: int) -> FractionalModel:
    """Build the model. T is at least ``low``; unless 0, ``low`` is also the expected magnitude of T."""
    model = FractionalModel(problem=problem)
    _places(model)
    lanes = [_lane(model, s) for s in range(problem.stages)]
    for s in range(problem.stages):
        _memory(model, s)
    model.minimize(model.time(low, problem.largest + 1), low or None)
    _objective(model, lanes)
    return model


def _places(model: FractionalModel) -> None:
    """Add z and θ: every inner boundary lies in one layer, takes a share of it, and boundaries are in order."""
    n = model.problem.layers
    for _ in range(model.problem.stages - 1):
        place = [model.boolean() for _ in range(n + 1)]
        share = [model.real(0, 1) for _ in range(n)]
        model.equal(dict.fromkeys(place, 1), 1)
        for z, theta in zip(place, share, strict=False):
            model.at_least({z: 1, theta: -1})
        model.place.append(place)
        model.share.append(share)
    for s in range(1, model.problem.stages - 1):
        for c in range(n):
            model.at_least(_front(model, s + 1, c) - _front(model, s, c))


def _front(model: FractionalModel, s: int, c: int) -> Expression:
    """Part y_{s,c} of layer c in front of inner boundary s."""
    return Expression(dict.fromkeys([*model.place[s - 1][c + 1 :], model.share[s - 1][c]], 1))


def _before(model: FractionalModel, s: int, values: list[int]) -> Expression:
    """Amount of a quantity in front of boundary s."""
    if s in (0, model.problem.stages):
        return Expression({}, sum(values) if s else 0)
    prefix = dict(zip(model.place[s - 1], accumulate(values, initial=0), strict=True))
    return Expression(prefix | dict(zip(model.share[s - 1], values, strict=True)))


def _amount(model: FractionalModel, s: int, values: list[int]) -> Expression:
    """Amount of a quantity on stage s."""
    return _before(model, s + 1, values) - _before(model, s, values)


def _crossing(model: FractionalModel, s: int, through: list[int], own: list[int]) -> Expression:
    """Amount that crosses inner boundary s ≥ 1; 0 behind the last layer."""
    ahead = dict(zip(model.place[s - 1], [*through, 0], strict=True))
    return Expression(ahead | dict(zip(model.share[s - 1], own, strict=True)))


def _lane(model: FractionalModel, s: int) -> tuple[Expression, Expression]:
    """Add F_s and B_s, and the choice m_s between on-chip and streamed weights; return the two times."""
    problem, times = model.problem, []
    streamed = model.boolean() if problem.streams[s] else None
    for fast, slow in ((problem.forward, problem.forward_streamed), (problem.backward, problem.backward_streamed)):
        near, far = fast[s].tolist(), slow[s].tolist()
        most = sum(near if streamed is None else far)
        time = Expression({model.time(0, most): 1})
        model.at_least(time - _amount(model, s, near))
        if streamed is not None:
            model.at_least(time - _amount(model, s, far) + most - Expression({streamed: most}))
        times.append(time)
    if streamed is not None:
        need = problem.weights.tolist()
        model.at_least(Expression({streamed: sum(need)}, int(problem.on_chip[s])) - _amount(model, s, need))
    return times[0], times[1]


def _memory(model: FractionalModel, s: int) -> None:
    """Add the memory limit, once for each layer that has a workspace."""
    problem, limit = model.problem, int(model.problem.limit[s])
    if limit >= UNLIMITED:
        return
    flight = int(problem.in_flight[s])
    resident, saved, workspace = (row.tolist() for row in (problem.resident, problem.saved, problem.workspace))
    need = _amount(model, s, [a + flight * b for a, b in zip(resident, saved, strict=True)])
    if s:
        need += flight * _crossing(model, s, problem.bytes_through.tolist(), problem.bytes_own.tolist())
    for c in [c for c, size in enumerate(workspace) if size] or [0]:
        one = [size if i == c else 0 for i, size in enumerate(workspace)]
        model.at_least(-(need + _amount(model, s, one)), -limit)


def _objective(model: FractionalModel, lanes: list[tuple[Expression, Expression]]) -> None:
    """Add the bottleneck, or the bounds of a step for a step."""
    # Loads F_s + B_s, and the time on each link.
    problem, least = model.problem, Expression({model.objective: 1})
    loads = [forward + backward for forward, backward in lanes]
    sends = [
        _crossing(model, s + 1, problem.through[s].tolist(), problem.own[s].tolist()) for s in range(problem.stages - 1)
    ]
    if problem.objective == "bottleneck":
        busy = [time for pair in lanes for time in pair] if problem.two_lanes else loads
        for side in [*busy, *sends]:
            model.at_least(least - side)
        return
    # Way back; ``head`` grows from U_0 to R.
    many = problem.micro_batches
    head = _amount(model, 0, problem.update[0].tolist())
    for load, latency in zip(loads, [*problem.latency.tolist(), 0], strict=True):
        if not problem.two_lanes:
            model.at_least(least - head - many * load)
        head += load + 2 * latency
    # Warm-up, and the terms of the services bound without a link: ``alone`` is T − R.
    alone = least - head
    for s, (forward, backward) in enumerate(lanes):
        if problem.ahead is not None:
            left = max(many - int(problem.ahead[s]), 0)
            model.at_least(alone - left * forward - (many - 1) * backward)
        model.at_least(alone - (many - 1) * forward)
        model.at_least(alone - (many - 1) * backward)
    # Path cuts, then the terms of the services bound with a link.
    updates = [_amount(model, s, problem.update[s].tolist()) for s in range(problem.stages)]
    for path in problem.paths:
        way = [Expression({}, path.constant)]
        for times, update, f, b, u in zip(lanes, updates, path.forward, path.backward, path.update, strict=True):
            way += [f * times[0], b * times[1], u * update]
        way += [(f + b) * send for send, f, b in zip(sends, path.send, path.send_back, strict=True)]
        model.at_least(least - sum_of(way))
    for s, send in enumerate(sends):
        model.at_least(alone - many * send + lanes[s][0])
        model.at_least(alone - many * send + lanes[s + 1][1])
