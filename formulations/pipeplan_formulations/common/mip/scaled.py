"""Linear models for solvers with floating-point numbers: no conditions, numbers scaled to at most about 10^4."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeplan_formulations.common.mip.model import Kind, LinearModel

SIZE = 1e4
"""Approximate largest number in the solver's units, so that its absolute tolerances act as relative ones."""
EXACT = 100_000
"""Largest number that stays an integer; larger ones are not rounded, which weakens the bound by 1e-5 or so."""


@dataclass(frozen=True, slots=True)
class Column:
    """A variable in the solver's units: its least value, its largest one or None, and whether it is an integer.

    Names begin with t for times, n for large numbers, r for real ones, x for integers.
    """

    name: str
    low: float
    high: float | None
    integer: bool


@dataclass(frozen=True, slots=True)
class ScaledRow:
    """Σ coefficient · variable + ``constant`` ≥ 0, or = 0 if ``equal``."""

    terms: dict[int, float]
    constant: float
    equal: bool


class Scaled:
    """A model in the solver's units.

    Attributes
    ----------
    unit : float
        The solver's unit of the objective, in the model's.
    scales : list of float
        The solver's unit of each variable: ``unit`` for times, more than 1 for large numbers.
    columns : list of Column
    rows : list of ScaledRow
        The clauses, then the rows, with conditions as large constants.
    """

    def __init__(self, model: LinearModel) -> None:
        self.unit = max(1.0, model.magnitude / SIZE)
        self.scales = [
            self.unit if kind is Kind.TIME else 1.0 if high <= EXACT else high / SIZE
            for kind, high in zip(model.kinds, model.highs, strict=True)
        ]
        self.columns = [_column(model, v, scale) for v, scale in enumerate(self.scales)]
        self.rows = [*_clauses(model), *_rows(model, self.scales)]

    def point(self, values: Sequence[float]) -> list[float]:
        """A value for each variable of the model, from the solver's."""
        return [value * scale for value, scale in zip(values, self.scales, strict=True)]


def _column(model: LinearModel, v: int, scale: float) -> Column:
    """The variable ``v``.

    Only small variables have an upper end: a large value exactly at its end may look infeasible in floating point. For
    the same reason, times that rows define begin at 0.
    """
    low, high, kind = model.lows[v], model.highs[v], model.kinds[v]
    if kind is Kind.TIME:
        end = high if v == model.objective and scale == 1 else None
        return Column(f"t{v}", 0 if v in model.defined else low / scale, end, integer=False)
    if high > EXACT:
        return Column(f"n{v}", low / scale, None, integer=False)
    if kind is Kind.REAL:
        return Column(f"r{v}", low, high, integer=False)
    return Column(f"x{v}", low, high, integer=True)


def _clauses(model: LinearModel) -> list[ScaledRow]:
    return [
        ScaledRow(
            {v if v >= 0 else ~v: (1 if v >= 0 else -1) for v in literals},
            sum(v < 0 for v in literals) - 1,
            equal=False,
        )
        for literals in model.clauses
    ]


def _rows(model: LinearModel, scales: Sequence[float]) -> list[ScaledRow]:
    """The rows, divided so that the objective's coefficient is 1, times are in the solver's unit, others small."""
    found = []
    for row in model.rows:
        expression = model.unconditional(row)
        terms = {v: c * scales[v] for v, c in expression.terms.items() if c}
        if model.objective in terms:
            unit = abs(terms[model.objective])
        elif any(model.kinds[v] is Kind.TIME for v in terms):
            unit = scales[model.objective]
        else:
            unit = max(1.0, max(map(abs, (expression.constant, *terms.values()))) / SIZE)
        found.append(ScaledRow({v: c / unit for v, c in terms.items()}, expression.constant / unit, row.equal))
    return found
