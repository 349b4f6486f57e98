"""Records as a table: one row a cell, a few columns for each method beside the answer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeplan.analysis.sweep.record import Figures, Record

Value = str | int | float | None


@dataclass(frozen=True)
class Table:
    """The records, and the methods whose columns are shown."""

    records: tuple[Record, ...]
    methods: tuple[str, ...]

    def rows(self) -> list[dict[str, Value]]:
        """Plain data, times in seconds, the same columns in every row."""
        return [self._row(record) for record in self.records]

    def parts(self) -> list[tuple[str, "Table"]]:
        """A table for each part of the experiment, in order of first appearance."""
        names = dict.fromkeys(record.part for record in self.records)
        return [(name, Table(tuple(r for r in self.records if r.part == name), self.methods)) for name in names]

    def _row(self, record: Record) -> dict[str, Value]:
        row: dict[str, Value] = {
            "part": record.part,
            "model": record.model,
            "cluster": record.cluster,
            "job": record.job,
            "outcome": record.outcome,
            "step_time_s": _seconds(record.answer.value),
            "bound_s": _seconds(record.bound),
            "gap": record.gap,
            "status": record.status,
            "stop": record.stop,
            "wall_s": record.wall,
            "peak_bytes": record.answer.peak,
            "plan": record.answer.plan,
            "error": record.error,
        }
        for method in self.methods:
            figures = record.beside.get(method, Figures())
            row |= {
                f"{method}: step_time_s": _seconds(figures.value),
                f"{method}: ratio": record.ratio(method),
                f"{method}: peak_bytes": figures.peak,
                f"{method}: peak_ratio": record.peak_ratio(method),
                f"{method}: plan": figures.plan,
                f"{method}: why": figures.why,
                f"{method}: outside": figures.outside,
            }
        return row


def table(records: Iterable[Record], beside: Sequence[str] = ()) -> Table:
    """The table of some records with the methods ``beside``; without them, with every method that some record has."""
    kept = tuple(records)
    methods = beside or list(dict.fromkeys(name for record in kept for name in record.beside))
    return Table(kept, tuple(methods))


def _seconds(value: int | None) -> float | None:
    return None if value is None else value / 1e9
