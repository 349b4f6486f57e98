"""The chain partition problem as rows of a mixed-integer linear model, for every solver that reads rows.

::

    y[l, c] = 1   link l lies at cut c or before, so b_{l+1} ≤ c + 1

              c   0   1   2   3   4   5   6
    y[0, ·]       ·   ·   1   1   1   1   1      it lies at cut c where y[l, c] − y[l, c − 1] = 1, and whatever a
    y[1, ·]       ·   ·   ·   ·   1   1   1      cut decides is a sum over c with these differences, so that
                          ╰stage 1╯              F_1 = prefix[5] − prefix[3]

Times of stages and links are variables of their own, tied to y by equations, so that (2), (4), (5) and (6) stay as
short as they are on paper. Memory (1) enters through what it forbids: from each start, the ends that are too far.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from pipeplan_formulations.partition.problem import Array, Boundaries, ChainPartition
from pipeplan_formulations.partition.terms import advance, delays, load
from pipeplan_formulations.partition.windows import Flags, last_ends, open_boundaries
from pipeplan_formulations.scaling import Scale


class Expression:
    """Σ coefficient · variable + constant."""

    __slots__ = ("constant", "terms")

    def __init__(self, terms: dict[int, int], constant: int = 0) -> None:
        self.terms = terms
        self.constant = constant

    def __add__(self, other: "Expression | int") -> "Expression":
        if not isinstance(other, Expression):
            return Expression(self.terms, self.constant + int(other))
        terms = dict(self.terms)
        for variable, coefficient in other.terms.items():
            terms[variable] = terms.get(variable, 0) + coefficient
        return Expression(terms, self.constant + other.constant)

    __radd__ = __add__

    def __mul__(self, factor: int) -> "Expression":
        factor = int(factor)
        return Expression({v: factor * c for v, c in self.terms.items()}, factor * self.constant)

    __rmul__ = __mul__

    def __neg__(self) -> "Expression":
        return self * -1

    def __sub__(self, other: "Expression | int") -> "Expression":
        return self + (-other)

    def value(self, point: list[int]) -> int:
        """Its value where variable i has the value ``point[i]``."""
        return self.constant + sum(c * point[v] for v, c in self.terms.items())


@dataclass(frozen=True, slots=True)
class Row:
    """``expression`` ≥ 0, or = 0 if ``equal``."""

    expression: Expression
    equal: bool = False


@dataclass
class LinearModel:
    """Variables (with their least and largest value), rows, and which variable is T.

    ``switches`` are the variables y: ``switches[l]`` maps each open cut of link l, in order, to its variable.
    ``defined`` gives every other variable as an expression in earlier ones, but for T.
    """

    lows: list[int] = field(default_factory=list)
    highs: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    switches: list[dict[int, int]] = field(default_factory=list)
    defined: dict[int, Expression] = field(default_factory=dict)
    objective: int = -1

    def variable(self, low: int, high: int) -> int:
        """A new variable; 0 or 1 is a switch, everything else is a time."""
        self.lows.append(low)
        self.highs.append(high)
        return len(self.lows) - 1

    def define(self, expression: Expression) -> Expression:
        """A variable that equals ``expression``, as an expression; the thing itself if it is short already."""
        if len(expression.terms) <= 1:
            return expression
        low = expression.constant + sum(
            c * (self.lows[v] if c > 0 else self.highs[v]) for v, c in expression.terms.items()
        )
        high = expression.constant + sum(
            c * (self.highs[v] if c > 0 else self.lows[v]) for v, c in expression.terms.items()
        )
        new = self.variable(max(low, 0), high)
        self.defined[new] = expression
        self.rows.append(Row(expression - Expression({new: 1}), equal=True))
        return Expression({new: 1})

    def at_least(self, expression: Expression | int) -> None:
        """T ≥ ``expression``."""
        self.rows.append(Row(Expression({self.objective: 1}) - expression))

    def chosen(self, link: int, values: Array) -> Expression:
        """``values[c]`` of the cut c at which the link lies."""
        cuts = self.switches[link]
        last = next(reversed(cuts))
        steps = {cuts[c]: int(values[c]) - int(values[following]) for c, following in pairwise(cuts)}
        return Expression({v: step for v, step in steps.items() if step}, int(values[last]))

    @property
    def is_switch(self) -> list[bool]:
        """Which variables are 0 or 1."""
        found = [False] * len(self.lows)
        for row in self.switches:
            for variable in row.values():
                found[variable] = True
        return found

    def point(self, boundaries: Boundaries, value: int) -> list[int]:
        """The complete assignment that belongs to boundaries and T = ``value``."""
        point = [0] * len(self.lows)
        for cuts, boundary in zip(self.switches, boundaries[1:-1], strict=True):
            for cut, variable in cuts.items():
                point[variable] = int(boundary - 1 <= cut)
        for variable, expression in self.defined.items():
            point[variable] = expression.value(point)
        point[self.objective] = value
        return point

    def boundaries(self, point: list[float], layers: int) -> Boundaries:
        """The boundaries that an assignment means."""
        chosen = [next(cut for cut, variable in cuts.items() if point[variable] > 0.5) for cuts in self.switches]
        return (0, *(cut + 1 for cut in chosen), layers)


def linear_model(problem: ChainPartition, scale: Scale, low: int, high: int) -> LinearModel | None:
    """The problem as rows, in units of ``scale``, T between ``low`` and ``high``; None if no partition keeps (1)."""
    last = last_ends(problem)
    open_ = open_boundaries(last)
    if not open_[0, 0]:
        return None
    model = LinearModel()
    _place(model, problem, last, open_)
    forward, backward, update = (
        _stage_times(model, problem, scale, name) for name in ("forward", "backward", "update")
    )
    send, back, link = (_link_times(model, problem, scale, name) for name in ("send", "send_back", "link"))
    model.objective = model.variable(low, high)
    stages = list(zip(forward, backward, [*send, Expression({})], [Expression({}), *back], strict=True))
    if problem.objective == "bottleneck":
        _bottleneck(model, problem, stages, link)
    else:
        _step(model, problem, scale, stages, update[0])
        for path in problem.paths:  # (6): an order's path is at least so long in every partition
            scaled = path.length(forward, backward, update, send, back) - path.constant + scale.down(path.constant)
            model.at_least(scaled)
    return model


def _place(model: LinearModel, problem: ChainPartition, last: Array, open_: Flags) -> None:
    """One cut a link, in order, and (1): no stage reaches farther than memory lets it."""
    for link in range(problem.stages - 1):
        cuts = [int(b) - 1 for b in np.flatnonzero(open_[link + 1])]
        model.switches.append({cut: model.variable(int(cut == cuts[-1]), 1) for cut in cuts})
        for before, after in pairwise(model.switches[-1].values()):  # at cut c or before, so at c + 1 or before
            model.rows.append(Row(Expression({after: 1, before: -1})))
    for ahead, behind in pairwise(model.switches):  # the later link at c or before, so the earlier at c − 1 or before
        least = _UpTo(ahead)
        for cut, variable in behind.items():
            model.rows.append(Row(least(cut - 1) - Expression({variable: 1})))
    for stage in range(problem.stages):
        _reach(model, problem, stage, last[stage])


def _reach(model: LinearModel, problem: ChainPartition, stage: int, last: Array) -> None:
    """(1): a stage that starts at a ends at ``last[a]`` at most.

    If it starts at a *or before*, it ends at most at the largest of those ends: as strong where ``last`` only grows,
    and then one row says it for all starts up to a.
    """
    begin: dict[int, Expression] = {0: Expression({}, 1)}  # y of the stage's start; stage 0 starts at 0
    if stage > 0:
        begin = {cut + 1: Expression({v: 1}) for cut, v in model.switches[stage - 1].items()}
    end_by = _UpTo(model.switches[stage] if stage < problem.stages - 1 else {problem.layers - 1: None})
    farthest = end_by.last + 1
    before, reach = Expression({}), 0
    for start, begun in begin.items():
        end = int(last[start])
        reach = max(reach, end)
        if reach < farthest:
            model.rows.append(Row(end_by(reach - 1) - begun))
        if end < reach and end < farthest:
            model.rows.append(Row(end_by(end - 1) - (begun - before)))
        before = begun


class _UpTo:
    """y of the last open cut that is at most c; 0 before the first. ``None`` stands for a cut that is certain."""

    def __init__(self, cuts: Mapping[int, int | None]) -> None:
        self._cuts = list(cuts)
        self._variables = list(cuts.values())
        self.last = self._cuts[-1]

    def __call__(self, cut: int) -> Expression:
        found = bisect_right(self._cuts, cut) - 1
        if found < 0:
            return Expression({})
        variable = self._variables[found]
        return Expression({}, 1) if variable is None else Expression({variable: 1})


def _stage_times(model: LinearModel, problem: ChainPartition, scale: Scale, name: str) -> list[Expression]:
    """Sum over a stage's layers: prefix sum at its end minus prefix sum at its start."""
    prefix = np.insert(np.cumsum(scale.down(getattr(problem, name)), axis=-1), 0, 0, axis=-1)
    times = []
    for s in range(problem.stages):
        start, end = Expression({}), Expression({}, int(prefix[s, -1]))
        if s > 0:
            start = model.chosen(s - 1, prefix[s, 1:])
        if s < problem.stages - 1:
            end = model.chosen(s, prefix[s, 1:])
        times.append(model.define(end - start))
    return times


def _link_times(model: LinearModel, problem: ChainPartition, scale: Scale, name: str) -> list[Expression]:
    """The entry of the cut that was chosen."""
    table = scale.down(getattr(problem, name))
    return [model.define(model.chosen(link, table[link])) for link in range(problem.stages - 1)]


def _bottleneck(
    model: LinearModel, problem: ChainPartition, stages: Sequence[tuple[Expression, ...]], link: list[Expression]
) -> None:
    """(3): no device and, where transfers overlap, no link is busier than T."""
    for times in stages:
        model.at_least(load(problem.overlap, *times))
    if problem.overlap != "none":
        for busy in link:
            model.at_least(busy)


def _step(
    model: LinearModel,
    problem: ChainPartition,
    scale: Scale,
    stages: Sequence[tuple[Expression, ...]],
    update: Expression,
) -> None:
    """(4): way to the stage, M micro-batches, way back; (5): one micro-batch's way and M − 1 services in a row."""
    many, head = problem.micro_batches, update
    for s, times in enumerate(stages):
        busy = load(problem.overlap, *times)
        model.at_least(head + many * busy)
        if s < problem.stages - 1:
            send, back = times[2], stages[s + 1][3]
            latency = scale.down(int(problem.latency[s]))
            head = model.define(head + advance(problem.overlap, busy, latency, send, back))
    alone = model.define(head + load(problem.overlap, *stages[-1]))
    for times in stages:
        for delay in delays(problem.overlap, many, *times):
            model.at_least(alone + delay)
