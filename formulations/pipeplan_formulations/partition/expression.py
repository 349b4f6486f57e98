"""Linear expressions and rows, as every solver of rows reads them."""

from dataclasses import dataclass


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

    def down(self, unit: int) -> "Expression":
        """In larger units, every number rounded down: never more, as variables are not negative."""
        return Expression({v: c // unit for v, c in self.terms.items()}, self.constant // unit)


@dataclass(frozen=True, slots=True)
class Row:
    """``expression`` ≥ 0, or = 0 if ``equal``."""

    expression: Expression
    equal: bool = False
