"""Mean and spread of the cells that differ in the seed only."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import mean, stdev

from pipeplan.analysis.sweep.record import Record
from pipeplan.analysis.sweep.table import Table, Value, asked

COLUMNS = ("step_time_s", "bound_s", "gap", "peak_bytes", "wall_s", "processor_s")
"""Columns of the table whose spread is shown."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean, sample standard deviation (None of a single value), least and most."""

    mean: float
    deviation: float | None
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Group:
    """Cells that differ in the seed only."""

    records: tuple[Record, ...]

    @property
    def solved(self) -> tuple[Record, ...]:
        """Those with a plan."""
        return tuple(record for record in self.records if record.outcome == "solved")

    def spread(self, column: str) -> Spread | None:
        """Spread of a column over the solved cells; None if it is empty in all of them."""
        rows = Table(self.solved, ()).rows()
        values = [value for row in rows if isinstance(value := row[column], int | float)]
        if not values:
            return None
        return Spread(mean(values), stdev(values) if len(values) > 1 else None, min(values), max(values))

    def row(self) -> dict[str, Value]:
        """Plain data: what was asked, the numbers of cells, and each spread in four columns."""
        row = {name: value for name, value in asked(self.records[0]).items() if name != "seed"}
        row |= {"seeds": len(self.records), "solved": len(self.solved)}
        for column in COLUMNS:
            found = self.spread(column)
            row |= {f"{column}_{name}": getattr(found, name, None) for name in Spread.__dataclass_fields__}
        return row


def over_seeds(records: Iterable[Record]) -> list[Group]:
    """Groups of the cells that differ in the seed only, in the order of their first cells."""
    found: dict[object, list[Record]] = {}
    for record in records:
        key = record.part, record.model, record.cluster, record.job, replace(record.search, seed=0)
        found.setdefault(key, []).append(record)
    return [Group(tuple(group)) for group in found.values()]
