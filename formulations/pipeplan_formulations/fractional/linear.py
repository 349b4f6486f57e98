"""The fractional chain partition problem as rows of numbers, for any solver that takes linear inequalities.

For each inner boundary s and layer c: z_{s,c} ∈ {0, 1}, boundary s lies in layer c (c = n: behind the last layer), and
the share θ_{s,c} ∈ [0, z_{s,c}] of that layer in front of it. What lies in front of boundary s, of any quantity t with
prefix sums P, is then linear, and so is what crosses it:

::

    before_s(t) = Σ_c (P[c] z_{s,c} + t_c θ_{s,c})                the stage's own: before_{s+1}(t) − before_s(t)
    crossing_s  = Σ_c (through_c z_{s,c} + own_c θ_{s,c})
    part of layer c in front of s:  y_{s,c} = Σ_{c' > c} z_{s,c'} + θ_{s,c}

A stage whose weights do not fit on chip has m_s = 1, and rows with a large coefficient choose between F and F'. F and
B are columns with rows from below only; every right side grows with them, so a minimum makes them tight.

Shares may be whole numbers of ``parts`` equal parts of a layer instead (for solvers of integers). Moving every boundary
of a real solution down to the next such part adds at most one part of the layer where a stage begins to what the stage
does. Leaving that part out of the rows makes every real solution a solution on the parts, and so the optimum on the
parts a bound on the real one.
"""

from dataclasses import dataclass, field

import numpy as np

from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.fractional.problem import Array, FractionalPartition, Positions

Terms = dict[int, int]
"""Column → coefficient; column `ONE` is the constant."""
ONE = -1


def add(*weighted: tuple[int, Terms]) -> Terms:
    """The weighted sum of linear expressions."""
    total: Terms = {}
    for weight, terms in weighted:
        for column, coefficient in terms.items():
            total[column] = total.get(column, 0) + weight * coefficient
    return total


@dataclass
class LinearModel:
    """Columns by number, and rows ``expression ≥ 0``.

    Attributes
    ----------
    parts : int
        Into how many parts every layer is divided, or 0: shares are real. Times and sizes in rows are multiplied by
        it, but for 0, where a share of 1 is the whole layer.
    highs : list of int
        Largest value of each column; the least is 0.
    real : list of bool
        Whether a column may take any value between.
    timed : list of bool
        Whether a row adds times.
    """

    problem: FractionalPartition
    parts: int
    unit: int
    sizes: int
    highs: list[int] = field(default_factory=list)
    real: list[bool] = field(default_factory=list)
    rows: list[Terms] = field(default_factory=list)
    timed: list[bool] = field(default_factory=list)
    place: list[list[int]] = field(default_factory=list)
    share: list[list[int]] = field(default_factory=list)
    objective: int = -1

    @property
    def whole(self) -> int:
        """The value of a share that is the whole layer."""
        return self.parts or 1

    def column(self, high: int, real: bool) -> int:
        """A new column."""
        self.highs.append(high)
        self.real.append(real)
        return len(self.highs) - 1

    def at_least(self, left: Terms, right: Terms, timed: bool = True) -> None:
        """A new row: left ≥ right."""
        self.rows.append(add((1, left), (-1, right)))
        self.timed.append(timed)

    def positions(self, values: list[float]) -> Positions:
        """The boundaries that a point describes."""
        inner = []
        for place, share in zip(self.place, self.share, strict=True):
            layer = max(zip((values[z] for z in place), range(len(place)), strict=True))[1]
            part = min(1.0, max(0.0, values[share[layer]] / self.whole)) if layer < len(share) else 0.0
            inner.append(layer + part)
        return (0.0, *np.maximum.accumulate(inner).tolist(), float(self.problem.layers))


def linear_model(problem: FractionalPartition, unit: int, high: int, parts: int = 0) -> LinearModel:
    """Columns and rows, in times of ``unit`` rounded down; ``high`` bounds T in that unit."""
    largest = int(max(problem.limit[problem.limit < UNLIMITED], default=0))
    model = LinearModel(problem, parts, unit, max(1, largest >> 40) if parts else 1)
    _places(model)
    lanes = [_lane(model, s) for s in range(problem.stages)]
    for s in range(problem.stages):
        _memory(model, s)
    model.objective = model.column(high * model.whole, True)
    _objective(model, lanes)
    return model


def _places(model: LinearModel) -> None:
    """Every inner boundary lies in one layer, takes a share of it, and does not lie in front of the one before."""
    n, whole = model.problem.layers, model.whole
    for _ in range(model.problem.stages - 1):
        place = [model.column(1, False) for _ in range(n + 1)]
        share = [model.column(whole, not model.parts) for _ in range(n)]
        one = dict.fromkeys(place, 1)
        model.at_least(one, {ONE: 1}, timed=False)
        model.at_least({ONE: 1}, one, timed=False)
        for z, theta in zip(place, share, strict=False):
            model.at_least({z: whole}, {theta: 1}, timed=False)
        model.place.append(place)
        model.share.append(share)
    for s in range(1, model.problem.stages - 1):
        for c in range(n):
            model.at_least(_front(model, s + 1, c), _front(model, s, c), timed=False)


def _front(model: LinearModel, s: int, c: int) -> Terms:
    """y_{s,c} times the whole: the part of layer c in front of boundary s."""
    if s in (0, model.problem.stages):
        return {ONE: model.whole if s else 0}
    beyond = dict.fromkeys(model.place[s - 1][c + 1 :], model.whole)
    return add((1, beyond), (1, {model.share[s - 1][c]: 1}))


def _before(model: LinearModel, s: int, values: list[int], slack: bool = False) -> Terms:
    """What lies in front of boundary s, times the whole; with ``slack`` and one part more of the layer there."""
    prefix = [0]
    for value in values:
        prefix.append(prefix[-1] + value)
    if s in (0, model.problem.stages):
        return {ONE: model.whole * prefix[-1] if s else 0}
    spare = [value if slack and model.parts else 0 for value in [*values, 0]]
    terms = {z: model.whole * p + v for z, p, v in zip(model.place[s - 1], prefix, spare, strict=True)}
    return terms | dict(zip(model.share[s - 1], values, strict=True))


def _own(model: LinearModel, s: int, values: list[int]) -> Terms:
    """What stage s holds of a quantity, times the whole."""
    return add((1, _before(model, s + 1, values)), (-1, _before(model, s, values, slack=True)))


def _crossing(model: LinearModel, s: int, through: list[int], own: list[int]) -> Terms:
    """What crosses inner boundary s ≥ 1, times the whole; nothing behind the last layer."""
    ahead = {z: model.whole * t for z, t in zip(model.place[s - 1], [*through, 0], strict=True)}
    return ahead | dict(zip(model.share[s - 1], own, strict=True))


def _lane(model: LinearModel, s: int) -> tuple[int, int]:
    """Columns F_s and B_s, and the choice of how weights are read."""
    problem, found = model.problem, []
    streams = problem.streams[s]
    streamed = model.column(1, False) if streams else None
    for fast, slow in ((problem.forward, problem.forward_streamed), (problem.backward, problem.backward_streamed)):
        near, far = (_units(model, table[s]) for table in (fast, slow))
        if not streams:
            far = near
        most = sum(far) * model.whole
        column = model.column(most, True)
        model.at_least({column: 1}, _own(model, s, near))
        if streamed is not None:
            model.at_least({column: 1, streamed: -most, ONE: most}, _own(model, s, far))
        found.append(column)
    if streamed is not None:
        need = [int(value) // model.sizes for value in problem.weights]
        room = -(-int(problem.on_chip[s]) // model.sizes) * model.whole
        model.at_least({ONE: room, streamed: sum(need) * model.whole}, _own(model, s, need), timed=False)
    return found[0], found[1]


def _memory(model: LinearModel, s: int) -> None:
    """(1), once for each layer that has a workspace."""
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
        need = add((1, need), (flight, _crossing(model, s, through, own)))
    room: Terms = {ONE: -(-limit // model.sizes) * model.whole}
    for c in [c for c, size in enumerate(workspace) if size] or [0]:
        one = [size if i == c else 0 for i, size in enumerate(workspace)]
        model.at_least(room, add((1, need), (1, _own(model, s, one))), timed=False)


def _objective(model: LinearModel, lanes: list[tuple[int, int]]) -> None:
    """(3), or (4) to (6) and (8)."""
    problem, whole = model.problem, model.whole
    least: Terms = {model.objective: 1}
    loads: list[Terms] = [{f: 1, b: 1} for f, b in lanes]
    sends = [
        _crossing(model, s + 1, _units(model, problem.through[s]), _units(model, problem.own[s]))
        for s in range(problem.stages - 1)
    ]
    if problem.objective == "bottleneck":
        busy = [{column: 1} for pair in lanes for column in pair] if problem.two_lanes else loads
        for side in [*busy, *sends]:
            model.at_least(least, side)
        return
    many = problem.micro_batches
    head = _own(model, 0, _units(model, problem.update[0]))
    for load, latency in zip(loads, [*problem.latency.tolist(), 0], strict=True):
        if not problem.two_lanes:
            model.at_least(least, add((1, head), (many, load)))
        head = add((1, head), (1, load), (1, {ONE: 2 * latency // model.unit * whole}))
    alone = head
    for s, (forward, backward) in enumerate(lanes):
        if problem.ahead is not None:
            left = max(many - int(problem.ahead[s]), 0)
            model.at_least(least, add((1, alone), (1, {forward: left, backward: many - 1})))
        model.at_least(least, add((1, alone), (many - 1, {forward: 1})))
        model.at_least(least, add((1, alone), (many - 1, {backward: 1})))
    updates = [_own(model, s, _units(model, problem.update[s])) for s in range(problem.stages)]
    for path in problem.paths:
        way: list[tuple[int, Terms]] = [(1, {ONE: path.constant // model.unit * whole})]
        for (forward, backward), update, f, b, u in zip(
            lanes, updates, path.forward, path.backward, path.update, strict=True
        ):
            way += [(1, {forward: f, backward: b}), (u, update)]
        way += [(f + b, send) for send, f, b in zip(sends, path.send, path.send_back, strict=True)]
        model.at_least(least, add(*way))
    for s, send in enumerate(sends):
        model.at_least(least, add((1, alone), (many, send), (-1, {lanes[s][0]: 1})))
        model.at_least(least, add((1, alone), (many, send), (-1, {lanes[s + 1][1]: 1})))


def _units(model: LinearModel, times: Array) -> list[int]:
    return [int(time) // model.unit for time in times]
