"""A mixed-integer linear model in the making: variables, rows, and the way back to boundaries."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from pipeplan_formulations.partition.expression import Expression, Row
from pipeplan_formulations.partition.instance import Array, Boundaries, ChainPartition


class Unit(Enum):
    """What a variable counts.

    A ``CHOICE`` is a small whole number, and to be chosen; a ``FLAG`` is 0 or 1, but the choices decide which, so that
    a solver may treat it as continuous.
    """

    CHOICE = "choice"
    FLAG = "flag"
    TIME = "time"
    BYTES = "bytes"


class Again(NamedTuple):
    """Layers with equal numbers: the variable that says how many of them a stage recomputes, and whether any."""

    stage: int
    layers: tuple[int, ...]
    number: int
    some: int


@dataclass
class LinearModel:
    """Variables (with their least and largest value and what they count), rows, and which variable is T.

    Attributes
    ----------
    switches : list of dict
        ``switches[l]`` maps each open cut of link l, in order, to its variable y.
    again : list of Again
        What may be recomputed.
    defined : dict
        Every other variable, but for T, as the largest of some expressions in earlier variables.
    """

    lows: list[int] = field(default_factory=list)
    highs: list[int] = field(default_factory=list)
    units: list[Unit] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    switches: list[dict[int, int]] = field(default_factory=list)
    again: list[Again] = field(default_factory=list)
    defined: dict[int, tuple[Expression, ...]] = field(default_factory=dict)
    objective: int = -1

    def variable(self, low: int, high: int, unit: Unit) -> int:
        """A new variable."""
        self.lows.append(low)
        self.highs.append(high)
        self.units.append(unit)
        return len(self.lows) - 1

    def define(self, expression: Expression) -> Expression:
        """A variable that equals ``expression``, as an expression; the thing itself if it is short already."""
        if len(expression.terms) <= 1:
            return expression
        new = self.variable(max(self.least(expression), 0), self.most(expression), Unit.TIME)
        self.defined[new] = (expression,)
        self.rows.append(Row(expression - Expression({new: 1}), equal=True))
        return Expression({new: 1})

    def largest(self, expressions: Sequence[Expression], unit: Unit) -> Expression:
        """A variable that is at least each expression (one of them at least 0), and the largest of them at best."""
        high = max(self.most(expression) for expression in expressions)
        low = max(0, *(self.least(expression) for expression in expressions))
        new = self.variable(low, max(low, high), unit)
        self.defined[new] = (Expression({}, low), *expressions)
        self.rows += [Row(Expression({new: 1}) - e) for e in expressions if self.most(e) > low]
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

    def over_stage(self, stage: int, prefix: Array) -> Expression:
        """Sum over a stage's layers: ``prefix`` (shape (n + 1,)) at its end minus ``prefix`` at its start."""
        start, end = Expression({}), Expression({}, int(prefix[-1]))
        if stage > 0:
            start = self.chosen(stage - 1, prefix[1:])
        if stage < len(self.switches):
            end = self.chosen(stage, prefix[1:])
        return end - start

    def least(self, expression: Expression) -> int:
        """No value of the expression is less."""
        ends = ((c, self.lows[v] if c > 0 else self.highs[v]) for v, c in expression.terms.items())
        return expression.constant + sum(c * end for c, end in ends)

    def most(self, expression: Expression) -> int:
        """No value of the expression is more."""
        return -self.least(-expression)

    def point(self, problem: ChainPartition, boundaries: Boundaries, value: int) -> list[int]:
        """The complete assignment that belongs to boundaries and T = ``value``."""
        point = [0] * len(self.lows)
        for cuts, boundary in zip(self.switches, boundaries[1:-1], strict=True):
            for cut, variable in cuts.items():
                point[variable] = int(boundary - 1 <= cut)
        stages = {again.stage for again in self.again}
        chosen = {s: set(problem.recompute(s, *boundaries[s : s + 2]) or ()) for s in stages}
        for again in self.again:
            point[again.number] = len(chosen[again.stage].intersection(again.layers))
            point[again.some] = int(point[again.number] > 0)
        for variable, expressions in self.defined.items():
            point[variable] = max(expression.value(point) for expression in expressions)
        point[self.objective] = value
        return point

    def boundaries(self, point: list[float], layers: int) -> Boundaries:
        """The boundaries that an assignment means."""
        chosen = [next(cut for cut, variable in cuts.items() if point[variable] > 0.5) for cuts in self.switches]
        return (0, *(cut + 1 for cut in chosen), layers)
