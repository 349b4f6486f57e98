"""Tables of records: rows, largest ratios between methods, and output as text, Markdown, CSV and JSON."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pipeplan.analysis.sweep.record import Figures, Record
from pipeplan.core.units import format_bytes, format_time
from pipeplan.search.heuristics import NOT_ASKED

Value = str | int | float | None


@dataclass(frozen=True)
class Table:
    """The records, and the methods with a column."""

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
                f"{method}: at_least_s": _seconds(figures.at_least),
                f"{method}: ratio": record.ratio(method),
                f"{method}: peak_bytes": figures.peak,
                f"{method}: peak_ratio": record.peak_ratio(method),
                f"{method}: plan": figures.plan,
                f"{method}: why": figures.why,
                f"{method}: outside": figures.outside,
            }
        return row


def table(records: Iterable[Record], beside: Sequence[str] = ()) -> Table:
    """Table of some records with the methods ``beside``; if these are empty, with every method of any record."""
    kept = tuple(records)
    methods = beside or list(dict.fromkeys(name for record in kept for name in record.beside))
    return Table(kept, tuple(methods))


def _seconds(value: int | None) -> float | None:
    return None if value is None else value / 1e9


ANSWER = "pipeplan"
"""Name of the answer's column."""


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest ratio of ``other``'s figure to ``method``'s, and its row."""

    method: str
    other: str
    figure: str
    ratio: float
    record: Record


@dataclass(frozen=True, slots=True)
class Deepest:
    """The largest member of a series for which a method has a plan on a cluster; 0 if there is none.

    ``sure`` is false if a larger one may fit, because the time limit or an error ended the series.
    """

    series: str
    cluster: str
    job: str
    method: str
    number: int
    sure: bool


def largest(table: Table, highlighted: tuple[str, ...]) -> list[Largest]:
    """Largest ratios of time and of memory of each highlighted method to every other method except the answer."""
    found = []
    for chosen in highlighted:
        for other in table.methods:
            if other == chosen:
                continue
            for figure in ("step time", "peak memory"):
                ratios = [(ratio, record) for record, ratio in _ratios(table, chosen, other, figure)]
                if ratios:
                    ratio, record = max(ratios, key=lambda pair: pair[0])
                    found.append(Largest(chosen, other, figure, ratio, record))
    return found


def _ratios(table: Table, chosen: str, other: str, figure: str) -> Iterator[tuple[Record, float]]:
    for record in table.records:
        own, against = (_figure(record, method, figure) for method in (chosen, other))
        if own and against is not None:
            yield record, against / own


def _figure(record: Record, method: str, figure: str) -> int | None:
    figures = record.answer if method == ANSWER else record.beside.get(method)
    if figures is None or figures.outside:
        return None
    return figures.value if figure == "step time" else figures.peak


def deepest(table: Table) -> list[Deepest]:
    """The largest member with a plan, for every series, cluster, job and method."""
    ladders: dict[tuple[str, str, str], list[tuple[int, Record]]] = {}
    for record in table.records:
        if record.rung is not None:
            series, number = record.rung
            ladders.setdefault((series, record.cluster, record.job), []).append((number, record))
    found = []
    for key, rungs in ladders.items():
        for method in (ANSWER, *table.methods):
            fits = max((n for n, record in rungs if _fits(record, method)), default=0)
            above = [_refused(record, method) for n, record in rungs if n > fits]
            sure = bool(above) and above[0]
            found.append(Deepest(*key, method, fits, sure))
    return found


def _fits(record: Record, method: str) -> bool:
    """True if the method has a plan for the record's cell, simulated or not."""
    own = record.beside.get(method, Figures())
    bounded = method != ANSWER and own.at_least is not None and not own.outside
    return bounded or _figure(record, method, "step time") is not None


def _refused(record: Record, method: str) -> bool:
    """True if the method is known to have no plan for the record's cell."""
    if record.outcome != "solved" or method == ANSWER:
        return record.outcome == "infeasible"
    return method in record.beside and record.beside[method].why not in NOT_ASKED


HIGHLIGHTED = (ANSWER, "bapipe-greedy")
"""Highlighted methods, whose largest advantages are listed under the table."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A title, which may be empty, a header and rows with one word per column."""

    title: str
    heads: list[str]
    rows: list[list[str]]


def sheets(table: Table) -> list[Sheet]:
    """Rows and largest ratios of each part, then the deepest members of series, if there are any."""
    found = [sheet for name, part in table.parts() for sheet in (_main(name, part), _largest(name, part))]
    found = found or [_main("", table)]
    found.append(_deepest(table))
    return [sheet for n, sheet in enumerate(found) if n == 0 or sheet.rows]


def highlighted(table: Table) -> tuple[str, ...]:
    """The highlighted methods: the answer, and ``bapipe-greedy`` if it has a column."""
    return tuple(chosen for chosen in HIGHLIGHTED if chosen == ANSWER or chosen in table.methods)


def _main(title: str, table: Table) -> Sheet:
    """Sheet of all rows, with a job column only if model and cluster do not distinguish them."""
    names = ["model", "cluster", *(["job"] if _jobs_matter(table) else [])]
    rows = [_names(record, names) + _words(record, table.methods) for record in table.records]
    return Sheet(title, [*names, "step time", "gap", "peak", "plan", *table.methods], rows)


def _jobs_matter(table: Table) -> bool:
    return len({(record.model, record.cluster) for record in table.records}) < len(table.records)


def _names(record: Record, names: Sequence[str]) -> list[str]:
    return [getattr(record, name) for name in names]


def _words(record: Record, methods: Sequence[str]) -> list[str]:
    answer = record.answer
    if answer.value is None or answer.peak is None:
        return [
            "-",
            "-",
            "-",
            "does not fit" if record.outcome == "infeasible" else record.reason,
            *["-"] * len(methods),
        ]
    gap = "-" if record.gap is None else f"{record.gap:.1%}"
    own = [format_time(answer.value), gap, format_bytes(answer.peak), answer.plan]
    return own + [_ratio(record, method) for method in methods]


def _ratio(record: Record, method: str) -> str:
    ratio, peak = record.ratio(method), record.peak_ratio(method)
    least = record.least_ratio(method)
    if least is not None:
        return f"≥ {least:.2f}{'*' * bool(record.beside[method].outside)}"
    if ratio is None or peak is None:
        return "?" if record.beside.get(method, Figures()).why in NOT_ASKED else "-"
    return f"{ratio:.2f} ({peak:.2f}){'*' * bool(record.beside[method].outside)}"


def _largest(title: str, table: Table) -> Sheet:
    names = ["model", "cluster", *(["job"] if _jobs_matter(table) else [])]
    rows = [
        [one.method, one.other, one.figure, f"{one.ratio:.2f}", *_names(one.record, names), *_plans(one)]
        for one in largest(table, highlighted(table))
    ]
    heads = ["method", "against", "largest ratio of", "is", *names, "plan", "against plan"]
    return Sheet(f"{title}: largest ratios" if title else "largest ratios", heads, rows)


def _plans(one: Largest) -> list[str]:
    record = one.record
    return [record.answer.plan if name == ANSWER else record.beside[name].plan for name in (one.method, one.other)]


def _deepest(table: Table) -> Sheet:
    methods = [ANSWER, *table.methods]
    found: dict[tuple[str, str, str], dict[str, str]] = {}
    for one in deepest(table):
        number = str(one.number) if one.number else "-"
        word = number if one.sure else f"{number} or more"
        found.setdefault((one.series, one.cluster, one.job), {})[one.method] = word
    rows = [[*key, *(words[method] for method in methods)] for key, words in found.items()]
    return Sheet("largest members that fit", ["series", "cluster", "job", *methods], rows)


NOTE = (
    "The gap is pipeplan's, to its bound proved over the plans that `pipeplan solve` lists as searched, for the costs "
    "that it names there. A method's column: its step time as a multiple of pipeplan's, and in brackets the peak "
    "memory of its fullest device as a multiple of that of pipeplan's. '*': its plan lies outside what was asked, and "
    "counts for nothing. '≥': a lower bound on its step time, as none of its plans was simulated. '-': it has no plan "
    "that fits. '?': the time was over before its turn."
)


def as_csv(table: Table) -> str:
    """The rows as CSV with a header; times in seconds, empty if there is no figure."""
    text = io.StringIO()
    rows = table.rows()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["model"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json(table: Table) -> str:
    """One JSON object: the rows, the largest ratios, the deepest members of series."""
    ratios = [
        {
            "method": one.method,
            "other": one.other,
            "figure": one.figure,
            "ratio": one.ratio,
            "model": one.record.model,
            "cluster": one.record.cluster,
            "job": one.record.job,
        }
        for one in largest(table, highlighted(table))
    ]
    depths = [
        {name: getattr(one, name) for name in ("series", "cluster", "job", "method", "number", "sure")}
        for one in deepest(table)
    ]
    return json.dumps({"rows": table.rows(), "largest": ratios, "deepest": depths}, indent=2) + "\n"


def as_markdown(table: Table) -> str:
    """The sheets as Markdown tables."""
    found = [f"**{sheet.title}**\n\n{_markdown(sheet)}" if sheet.title else _markdown(sheet) for sheet in sheets(table)]
    return "\n\n".join([*found, NOTE]) + "\n"


def as_text(table: Table) -> str:
    """The sheets as aligned columns for a terminal."""
    found = [f"{sheet.title}\n\n{_columns(sheet)}" if sheet.title else _columns(sheet) for sheet in sheets(table)]
    return "\n\n".join([*found, NOTE]) + "\n"


FORMATS: Mapping[str, Callable[[Table], str]] = MappingProxyType(
    {"text": as_text, "markdown": as_markdown, "csv": as_csv, "json": as_json}
)
"""Functions that write a table, by the name of the format."""


def _markdown(sheet: Sheet) -> str:
    lines = [sheet.heads, ["---"] * len(sheet.heads), *sheet.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _columns(sheet: Sheet) -> str:
    lines = [sheet.heads, *sheet.rows]
    widths = [max(len(line[n]) for line in lines) for n in range(len(sheet.heads))]
    lines.insert(1, ["-" * width for width in widths])
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)
