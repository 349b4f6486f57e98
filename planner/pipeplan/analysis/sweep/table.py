"""Tables of records: a row per cell, the largest ratios between methods, and the largest members of series."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields

from pipeplan.analysis.sweep.experiment import Search
from pipeplan.analysis.sweep.record import Figures, Record
from pipeplan.core.job import Job
from pipeplan.search.turns import NOT_ASKED

Value = str | int | float | None


@dataclass(frozen=True)
class Table:
    """The records, and the methods with a column."""

    records: tuple[Record, ...]
    methods: tuple[str, ...]

    def rows(self) -> list[dict[str, Value]]:
        """Plain data, times in seconds, the same columns in every row: what was asked, the answer, how, the methods."""
        return [self._row(record) for record in self.records]

    @property
    def distinguishing(self) -> list[str]:
        """The columns that distinguish the rows: model, cluster, and of job and search what differs between rows."""
        jobs = {(record.model, record.cluster, record.job) for record in self.records}
        by_job = len({(model, cluster) for model, cluster, _ in jobs}) < len(jobs)
        return ["model", "cluster", *(["job"] if by_job else []), *varied([record.search for record in self.records])]

    def parts(self) -> list[tuple[str, "Table"]]:
        """A table for each part of the experiment, in order of first appearance."""
        names = dict.fromkeys(record.part for record in self.records)
        return [(name, Table(tuple(r for r in self.records if r.part == name), self.methods)) for name in names]

    def _row(self, record: Record) -> dict[str, Value]:
        row = asked(record) | {
            "outcome": record.outcome,
            "reason": record.reason,
            "status": record.status,
            "stop": record.stop,
            "step_time_s": _seconds(record.answer.value),
            "bound_s": _seconds(record.bound),
            "gap": record.gap,
            "peak_bytes": record.answer.peak,
            "plan": record.answer.plan,
            "plan_file": record.plan_file,
            "wall_s": record.wall,
            "processor_s": record.processor,
            **asdict(record.machine),
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


SEARCH_COLUMNS = {
    "time": "time_limit_s",
    "gap": "gap_limit",
    "backend": "backend",
    "workers": "workers",
    "seed": "seed",
}
"""Column of each field of a search."""


def asked(record: Record) -> dict[str, Value]:
    """What was asked: names, a column for each field of the job, and one for each field of the search."""
    series, number = record.rung or ("", None)
    row: dict[str, Value] = {"part": record.part, "model": record.model, "cluster": record.cluster}
    row |= {"series": series, "number": number, "job": record.job_label}
    row |= {field.name: plain(getattr(record.job, field.name)) for field in fields(Job)}
    return row | asked_of_search(record.search)


def asked_of_search(search: Search) -> dict[str, Value]:
    """A column for each field of the search."""
    return {column: getattr(search, name) for name, column in SEARCH_COLUMNS.items()}


def plain(value: object) -> Value:
    """A value of a job in one cell of a table: ``'2 4'`` for several, ``'embed+head conv+norm'`` for several pairs."""
    if isinstance(value, tuple):
        return " ".join("+".join(each) if isinstance(each, tuple) else str(each) for each in value)
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def varied(searches: Sequence[Search]) -> list[str]:
    """Columns of the fields in which searches differ."""
    return [column for name, column in SEARCH_COLUMNS.items() if len({getattr(each, name) for each in searches}) > 1]


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
    search: Search
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
    """The largest member with a plan, for every series, cluster, job, search and method."""
    ladders: dict[tuple[str, str, str, Search], list[tuple[int, Record]]] = {}
    for record in table.records:
        if record.rung is not None:
            series, number = record.rung
            ladders.setdefault((series, record.cluster, record.job_label, record.search), []).append((number, record))
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
