"""A mixed-integer model that every solver of rows can read: variables, clauses, and conditional linear rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Row:
    """Σ coefficient · variable ≥ ``least`` (or = ``least``), where every variable of ``when`` is 1."""

    terms: Mapping[int, int]
    least: int
    when: tuple[int, ...] = ()
    equal: bool = False


@dataclass
class Rows:
    """Variables by index, each with its least and largest value; whatever is 0 or 1 at most is a switch.

    ``clauses`` hold literals of switches, at least one of which is true: v for the switch, ~v for its opposite.
    """

    lows: list[int] = field(default_factory=list)
    highs: list[int] = field(default_factory=list)
    switches: list[bool] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    clauses: list[tuple[int, ...]] = field(default_factory=list)

    def number(self, low: int, high: int) -> int:
        """A new integer variable."""
        self.lows.append(low)
        self.highs.append(high)
        self.switches.append(False)
        return len(self.lows) - 1

    def switch(self, low: int = 0, high: int = 1) -> int:
        """A new variable that is 0 or 1."""
        index = self.number(low, high)
        self.switches[index] = True
        return index

    def at_least(self, terms: Mapping[int, int], least: int, when: Sequence[int] = ()) -> None:
        """Add Σ terms ≥ ``least``, under a condition; left out where it always holds."""
        terms = {v: c for v, c in terms.items() if c}
        if self.floor(terms) < least:
            self.rows.append(Row(terms, least, tuple(when)))

    def equals(self, terms: Mapping[int, int], value: int) -> None:
        """Add Σ terms = ``value``."""
        self.rows.append(Row(dict(terms), value, equal=True))

    def clause(self, literals: Iterable[int]) -> None:
        """Add a disjunction; left out where a literal is certain, and without those that are impossible."""
        kept = []
        for literal in literals:
            v = literal if literal >= 0 else ~literal
            if (self.lows[v] == 1) if literal >= 0 else (self.highs[v] == 0):
                return
            if (self.highs[v] == 1) if literal >= 0 else (self.lows[v] == 0):
                kept.append(literal)
        self.clauses.append(tuple(kept))

    def floor(self, terms: Mapping[int, int]) -> int:
        """The least value that Σ terms can take."""
        return sum(c * (self.lows[v] if c > 0 else self.highs[v]) for v, c in terms.items())
