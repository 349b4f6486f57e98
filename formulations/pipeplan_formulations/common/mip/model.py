"""Mixed-integer linear models: variables, rows, clauses, and the common answer of the solvers.

A problem builds a `LinearModel`, calls ``solve`` of a `MipSolver` (`cpsat.CPSAT` or `cbc.CBC`) and reads its solution
from the `Answer`. Variables are numbers, counted from 0; a literal is a variable v, true where it is 1, or ~v, true
where it is 0::

    model = LinearModel()
    a, b = model.boolean(), model.boolean()
    value = model.time(0, 100)
    model.clause((a, ~b))                                         a or not b
    model.at_least(Expression({value: 1, b: -30}), 5, (a,))       value − 30 b ≥ 5 where a is 1
    model.minimize(value)
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from pipeplan_formulations.common.report import Limits, Status, Stop


class Expression:
    """Σ coefficient · variable + constant."""

    __slots__ = ("constant", "terms")

    def __init__(self, terms: Mapping[int, int], constant: int = 0) -> None:
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

    def value(self, point: Sequence[int]) -> int:
        """The value of the expression if variable i has the value ``point[i]``."""
        return self.constant + sum(c * point[v] for v, c in self.terms.items())

    def down(self, unit: int) -> "Expression":
        """The expression in larger units, every number rounded down: a lower bound, as variables are not negative."""
        return Expression({v: c // unit for v, c in self.terms.items()}, self.constant // unit)


Linear = Expression | Mapping[int, int]
"""An expression, or the terms of one without constant."""


def sum_of(expressions: Iterable[Expression]) -> Expression:
    """The sum of the expressions."""
    terms: dict[int, int] = {}
    constant = 0
    for expression in expressions:
        constant += expression.constant
        for variable, coefficient in expression.terms.items():
            terms[variable] = terms.get(variable, 0) + coefficient
    return Expression(terms, constant)


def _expression(linear: Linear, constant: int) -> Expression:
    return linear + constant if isinstance(linear, Expression) else Expression(linear, constant)


@dataclass(frozen=True, slots=True)
class Row:
    """``expression`` ≥ 0, or = 0 if ``equal``, enforced if every literal of ``when`` is true."""

    expression: Expression
    equal: bool = False
    when: tuple[int, ...] = ()


class Kind(Enum):
    """Values that a variable may take in a solver with real numbers.

    ``INTEGER``: integers. ``REAL``: any value, because other variables or the problem determine it. ``TIME``: any
    value, in the objective's unit; rows imply its upper end, and its lower one if it is `LinearModel.defined`.
    """

    INTEGER = "integer"
    REAL = "real"
    TIME = "time"


@dataclass
class LinearModel:
    """Variables with their least and largest values, rows, clauses, and the variable to minimise.

    Attributes
    ----------
    rows : list of Row
    clauses : list of tuple of int
        Literals at least one of which is true.
    defined : dict
        Variables that equal the largest of some expressions in earlier variables.
    objective : int
    magnitude : int
        Approximate size of the objective.
    relaxed : bool
        True if bounds come from the linear relaxation of all rows and clauses rather than from clauses alone.
    """

    lows: list[int] = field(default_factory=list)
    highs: list[int] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    clauses: list[tuple[int, ...]] = field(default_factory=list)
    defined: dict[int, tuple[Expression, ...]] = field(default_factory=dict)
    objective: int = -1
    magnitude: int = 1
    relaxed: bool = False

    def integer(self, low: int, high: int) -> int:
        """Add an integer variable."""
        return self._variable(low, high, Kind.INTEGER)

    def boolean(self, low: int = 0, high: int = 1) -> int:
        """Add a variable that is 0 or 1."""
        return self._variable(low, high, Kind.INTEGER)

    def real(self, low: int, high: int) -> int:
        """Add a variable that is an integer only in solvers without real numbers."""
        return self._variable(low, high, Kind.REAL)

    def time(self, low: int, high: int) -> int:
        """Add a variable in the objective's unit; for a real one see `Kind`."""
        return self._variable(low, high, Kind.TIME)

    def _variable(self, low: int, high: int, kind: Kind) -> int:
        self.lows.append(low)
        self.highs.append(high)
        self.kinds.append(kind)
        return len(self.lows) - 1

    def at_least(self, linear: Linear, least: int = 0, when: Sequence[int] = ()) -> None:
        """Add ``linear`` ≥ ``least``, enforced if every literal of ``when`` is true; omitted if ends alone imply it."""
        expression = _expression(linear, -least)
        if self.least(expression) < 0 or any(self._open(v) for v in expression.terms):
            self.rows.append(Row(expression, when=tuple(when)))

    def _open(self, variable: int) -> bool:
        """True if in some solver only rows keep the variable within its ends."""
        return self.kinds[variable] is Kind.TIME and variable != self.objective

    def equal(self, linear: Linear, value: int = 0) -> None:
        """Add ``linear`` = ``value``."""
        self.rows.append(Row(_expression(linear, -value), equal=True))

    def clause(self, literals: Iterable[int]) -> None:
        """Add a disjunction; omitted if a literal is certain, and without those that are impossible."""
        kept = []
        for literal in literals:
            v = literal if literal >= 0 else ~literal
            if (self.lows[v] == 1) if literal >= 0 else (self.highs[v] == 0):
                return
            if (self.highs[v] == 1) if literal >= 0 else (self.lows[v] == 0):
                kept.append(literal)
        self.clauses.append(tuple(kept))

    def minimize(self, variable: int, magnitude: int | None = None) -> None:
        """Set the objective, and its approximate size, by default its largest value."""
        self.objective = variable
        self.magnitude = self.highs[variable] if magnitude is None else magnitude

    def define(self, expression: Expression) -> Expression:
        """A time that equals ``expression``, as an expression; ``expression`` itself if it is short already."""
        if len(expression.terms) <= 1:
            return expression
        new = self.time(max(self.least(expression), 0), self.most(expression))
        self.defined[new] = (expression,)
        self.equal(expression - Expression({new: 1}))
        return Expression({new: 1})

    def largest(self, expressions: Sequence[Expression], time: bool = False) -> Expression:
        """A variable that is at least each expression, and 0; their maximum when minimised.

        ``time``: it is in the objective's unit.
        """
        high = max(self.most(expression) for expression in expressions)
        low = max(0, *(self.least(expression) for expression in expressions))
        new = (self.time if time else self.real)(low, max(low, high))
        self.defined[new] = (Expression({}, low), *expressions)
        for expression in expressions:
            self.at_least(Expression({new: 1}) - expression)
        return Expression({new: 1})

    def complete(self, point: list[int]) -> None:
        """Set the values of all `defined` variables from the others'."""
        for variable, expressions in self.defined.items():
            point[variable] = max(expression.value(point) for expression in expressions)

    def least(self, expression: Expression) -> int:
        """The least value that the variables' ends allow the expression."""
        ends = (c * (self.lows[v] if c > 0 else self.highs[v]) for v, c in expression.terms.items())
        return expression.constant + sum(ends)

    def most(self, expression: Expression) -> int:
        """The largest value that the variables' ends allow the expression."""
        return -self.least(-expression)

    def unconditional(self, row: Row) -> Expression:
        """The row with its conditions as big-M terms: if one of them is false, the variables' ends imply the row."""
        terms, constant = dict(row.expression.terms), row.expression.constant
        slack = -self.least(row.expression) if row.when else 0
        for literal in row.when:
            v = literal if literal >= 0 else ~literal
            terms[v] = terms.get(v, 0) + (-slack if literal >= 0 else slack)
            constant += slack if literal >= 0 else 0
        return Expression(terms, constant)


@dataclass(frozen=True)
class Answer:
    """A solver's answer to a model.

    Attributes
    ----------
    status : Status
        Optimal: within the gap of the limits, according to the solver.
    stop : Stop
        Why the solver ended; `Stop.GAP` if it finished.
    bound : int
        Lower bound on the objective.
    point : list of float or None
        A value for each variable.
    """

    status: Status
    stop: Stop
    bound: int
    point: list[float] | None


class Solve(Protocol):
    """Solve a model within limits.

    ``hint`` has a value for each variable; ``on_solution`` gets the point of each better solution, ``on_bound`` each
    better bound. Solvers may ignore any of the three.
    """

    def __call__(
        self,
        model: LinearModel,
        limits: Limits,
        hint: Sequence[int] | None = None,
        on_solution: Callable[[list[float]], None] | None = None,
        on_bound: Callable[[int], None] | None = None,
    ) -> Answer: ...


@dataclass(frozen=True)
class MipSolver:
    """A solver of linear models. Objectives must stay below 2^``bits``, so that its numbers represent them exactly."""

    name: str
    version: Callable[[], str]
    bits: int
    solve: Solve
