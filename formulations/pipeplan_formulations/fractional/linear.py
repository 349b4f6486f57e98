"""Linear model of the fractional chain partition, for any MIP solver.

For each inner boundary s and layer c there are two variables. z_{s,c} ∈ {0, 1}: boundary s lies in layer c (c = n:
behind the last layer). θ_{s,c} ∈ [0, z_{s,c}]: the share of that layer in front of it. The amount in front of boundary
s of any quantity t with prefix sums P is then linear, and so is the amount that crosses it:

::

    before_s(t) = Σ_c (P[c] z_{s,c} + t_c θ_{s,c})                amount on stage s: before_{s+1}(t) − before_s(t)
    crossing_s  = Σ_c (through_c z_{s,c} + own_c θ_{s,c})
    part of layer c in front of s:  y_{s,c} = Σ_{c' > c} z_{s,c'} + θ_{s,c}

A stage whose weights do not fit on chip has m_s = 1; big-M rows choose between F and F'. F and B are variables with
lower bounds only. Every right side grows with them, so minimisation makes them tight.

For solvers of integer programmes shares are multiples of one of ``parts`` equal parts of a layer. Moving every boundary
of a real solution down to the next part adds to a stage at most one part of the layer where it begins. The rows leave
that part out. So every real solution gives a solution on the parts, and the optimum on the parts is a lower bound.
Its point may miss the memory limit by that part. *Strict* rows leave nothing out: their points hold but their optimum
is no bound.
"""

from dataclasses import dataclass, field

import numpy as np

from pipeplan_formulations.common.mip.model import Expression, LinearModel, sum_of
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.fractional.instance import Array, FractionalPartition, Positions


@dataclass(kw_only=True)
class FractionalModel(LinearModel):
    """Linear model with the variables of the boundaries.

    Attributes
    ----------
    parts : int
        Number of parts of every layer, or 0 for real shares. Times and sizes in rows are multiplied by it, except if it
        is 0: then a share of 1 is the whole layer.
    unit, sizes : int
        Nanoseconds, and bytes, that count as 1 in rows.
    strict : bool
        Rows leave no part out.
    place, share : list of list of int
        z and θ of each inner boundary and layer.
    """

    problem: FractionalPartition
    parts: int
    unit: int
    sizes: int
    strict: bool = False
    place: list[list[int]] = field(default_factory=list)
    share: list[list[int]] = field(default_factory=list)

    @property
    def whole(self) -> int:
        """Value of a share that is the whole layer."""
        return self.parts or 1

    def positions(self, values: list[float]) -> Positions:
        """Positions of the boundaries at a point of the model."""
        inner = []
        for place, share in zip(self.place, self.share, strict=True):
            layer = max(zip((values[z] for z in place), range(len(place)), strict=True))[1]
            part = min(1.0, max(0.0, values[share[layer]] / self.whole)) if layer < len(share) else 0.0
            inner.append(layer + part)
        return (0.0, *np.maximum.accumulate(inner).tolist(), float(self.problem.layers))


def linear_model(
    problem: FractionalPartition, unit: int, low: int, parts: int = 0, strict: bool = False
) -> FractionalModel:
    """Build the model with times in multiples of ``unit``, rounded down.

    T is at least ``low``; unless 0, ``low`` is also the expected magnitude of T.
    """
    largest = int(max(problem.limit[problem.limit < UNLIMITED], default=0))
    sizes = max(1, largest >> 40) if parts else 1
    model = FractionalModel(problem=problem, parts=parts, unit=unit, sizes=sizes, strict=strict)
    _places(model)
    lanes = [_lane(model, s) for s in range(problem.stages)]
    for s in range(problem.stages):
        _memory(model, s)
    high = problem.largest // unit + 1
    model.minimize(model.time(low * model.whole, high * model.whole), low or None)
    _objective(model, lanes)
    return model


def _places(model: FractionalModel) -> None:
    """Add z and θ: every inner boundary lies in one layer, takes a share of it, and boundaries are in order."""
    n, whole = model.problem.layers, model.whole
    for _ in range(model.problem.stages - 1):
        place = [model.boolean() for _ in range(n + 1)]
        share = [model.real(0, whole) for _ in range(n)]
        model.equal(dict.fromkeys(place, 1), 1)
        for z, theta in zip(place, share, strict=False):
            model.at_least({z: whole, theta: -1})
        model.place.append(place)
        model.share.append(share)
    for s in range(1, model.problem.stages - 1):
        for c in range(n):
            model.at_least(_front(model, s + 1, c) - _front(model, s, c))


def _front(model: FractionalModel, s: int, c: int) -> Expression:
    """Part y_{s,c} of layer c in front of boundary s, times `whole`."""
    if s in (0, model.problem.stages):
        return Expression({}, model.whole if s else 0)
    beyond = dict.fromkeys(model.place[s - 1][c + 1 :], model.whole)
    return Expression(beyond | {model.share[s - 1][c]: 1})


def _before(model: FractionalModel, s: int, values: list[int], slack: bool = False) -> Expression:
    """Amount in front of boundary s, times `whole`; with ``slack`` plus one part of the layer on the boundary."""
    prefix = [0]
    for value in values:
        prefix.append(prefix[-1] + value)
    if s in (0, model.problem.stages):
        return Expression({}, model.whole * prefix[-1] if s else 0)
    spare = [value if slack and model.parts and not model.strict else 0 for value in [*values, 0]]
    terms = {z: model.whole * p + v for z, p, v in zip(model.place[s - 1], prefix, spare, strict=True)}
    return Expression(terms | dict(zip(model.share[s - 1], values, strict=True)))


def _own(model: FractionalModel, s: int, values: list[int]) -> Expression:
    """Amount of a quantity on stage s, times `whole`."""
    return _before(model, s + 1, values) - _before(model, s, values, slack=True)


def _crossing(model: FractionalModel, s: int, through: list[int], own: list[int]) -> Expression:
    """Amount that crosses inner boundary s ≥ 1, times `whole`; 0 behind the last layer."""
    ahead = {z: model.whole * t for z, t in zip(model.place[s - 1], [*through, 0], strict=True)}
    return Expression(ahead | dict(zip(model.share[s - 1], own, strict=True)))


def _lane(model: FractionalModel, s: int) -> tuple[Expression, Expression]:
    """Add F_s and B_s, and the choice m_s between on-chip and streamed weights; return the two times."""
    problem, found = model.problem, []
    streamed = model.boolean() if problem.streams[s] else None
    for fast, slow in ((problem.forward, problem.forward_streamed), (problem.backward, problem.backward_streamed)):
        near, far = (_units(model, table[s]) for table in (fast, slow))
        most = sum(near if streamed is None else far) * model.whole
        time = Expression({model.time(0, most): 1})
        model.at_least(time - _own(model, s, near))
        if streamed is not None:  # big-M, since CP-SAT takes much longer with rows enforced by the choice
            model.at_least(time - _own(model, s, far) + most - Expression({streamed: most}))
        found.append(time)
    if streamed is not None:
        need = [int(value) // model.sizes for value in problem.weights]
        room = -(-int(problem.on_chip[s]) // model.sizes) * model.whole
        model.at_least(Expression({streamed: sum(need) * model.whole}, room) - _own(model, s, need))
    return found[0], found[1]


def _memory(model: FractionalModel, s: int) -> None:
    """Add the memory limit, once for each layer that has a workspace."""
    problem, limit = model.problem, int(model.problem.limit[s])
    if limit >= UNLIMITED:
        return
    flight = int(problem.in_flight[s])
    names = ("resident", "saved", "workspace", "bytes_through", "bytes_own")
    resident, saved, workspace, through, own = (
        [int(value) // model.sizes for value in getattr(problem, name)] for name in names
    )
    need = _own(model, s, [a + flight * b for a, b in zip(resident, saved, strict=True)])
    if s:
        need += flight * _crossing(model, s, through, own)
    room = -(-limit // model.sizes) * model.whole
    for c in [c for c, size in enumerate(workspace) if size] or [0]:
        one = [size if i == c else 0 for i, size in enumerate(workspace)]
        model.at_least(-(need + _own(model, s, one)), -room)


def _objective(model: FractionalModel, lanes: list[tuple[Expression, Expression]]) -> None:
    """Add the bottleneck, or the bounds of a step for a step."""
    # Loads F_s + B_s, and the time on each link.
    problem, whole, least = model.problem, model.whole, Expression({model.objective: 1})
    loads = [forward + backward for forward, backward in lanes]
    sends = [
        _crossing(model, s + 1, _units(model, problem.through[s]), _units(model, problem.own[s]))
        for s in range(problem.stages - 1)
    ]
    if problem.objective == "bottleneck":
        busy = [time for pair in lanes for time in pair] if problem.two_lanes else loads
        for side in [*busy, *sends]:
            model.at_least(least - side)
        return
    # Way back; ``head`` grows from U_0 to R.
    many = problem.micro_batches
    head = _own(model, 0, _units(model, problem.update[0]))
    for load, latency in zip(loads, [*problem.latency.tolist(), 0], strict=True):
        if not problem.two_lanes:
            model.at_least(least - head - many * load)
        head += load + 2 * latency // model.unit * whole
    # Warm-up, and the terms of the services bound without a link: ``alone`` is T − R.
    alone = least - head
    for s, (forward, backward) in enumerate(lanes):
        if problem.ahead is not None:
            left = max(many - int(problem.ahead[s]), 0)
            model.at_least(alone - left * forward - (many - 1) * backward)
        model.at_least(alone - (many - 1) * forward)
        model.at_least(alone - (many - 1) * backward)
    # Path cuts, then the terms of the services bound with a link.
    updates = [_own(model, s, _units(model, problem.update[s])) for s in range(problem.stages)]
    for path in problem.paths:
        way = [Expression({}, path.constant // model.unit * whole)]
        for times, update, f, b, u in zip(lanes, updates, path.forward, path.backward, path.update, strict=True):
            way += [f * times[0], b * times[1], u * update]
        way += [(f + b) * send for send, f, b in zip(sends, path.send, path.send_back, strict=True)]
        model.at_least(least - sum_of(way))
    for s, send in enumerate(sends):
        model.at_least(alone - many * send + lanes[s][0])
        model.at_least(alone - many * send + lanes[s + 1][1])


def _units(model: FractionalModel, times: Array) -> list[int]:
    return [int(time) // model.unit for time in times]
