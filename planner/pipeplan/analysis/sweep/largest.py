"""Where the differences are largest: over a whole table, the best case of one method against another."""

from collections.abc import Iterator
from dataclasses import dataclass

from pipeplan.analysis.sweep.record import Record
from pipeplan.analysis.sweep.table import Table
from pipeplan.search.heuristics import NOT_ASKED

ANSWER = "pipeplan"
"""What the answer's own column is called."""


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest ratio of ``other``'s figure to ``method``'s, and the row where it arises."""

    method: str
    other: str
    figure: str
    ratio: float
    record: Record


@dataclass(frozen=True, slots=True)
class Deepest:
    """The largest member of a series for which a method has a plan on a cluster; 0 if for none.

    ``sure`` is false where a larger one may fit: the time was over, or an error came in between.
    """

    series: str
    cluster: str
    job: str
    method: str
    number: int
    sure: bool


def largest(table: Table, heroes: tuple[str, ...]) -> list[Largest]:
    """For each of the heroes, against every other method but the answer: the largest ratios of time and of memory."""
    found = []
    for hero in heroes:
        for other in table.methods:
            if other == hero:
                continue
            for figure in ("step time", "peak memory"):
                ratios = [(ratio, record) for record, ratio in _ratios(table, hero, other, figure)]
                if ratios:
                    ratio, record = max(ratios, key=lambda pair: pair[0])
                    found.append(Largest(hero, other, figure, ratio, record))
    return found


def _ratios(table: Table, hero: str, other: str, figure: str) -> Iterator[tuple[Record, float]]:
    for record in table.records:
        own, against = (_figure(record, method, figure) for method in (hero, other))
        if own and against is not None:
            yield record, against / own


def _figure(record: Record, method: str, figure: str) -> int | None:
    figures = record.answer if method == ANSWER else record.beside.get(method)
    if figures is None or figures.outside:
        return None
    return figures.value if figure == "step time" else figures.peak


def deepest(table: Table) -> list[Deepest]:
    """For every series, cluster and job, and every method: the largest member that it has a plan for."""
    ladders: dict[tuple[str, str, str], list[tuple[int, Record]]] = {}
    for record in table.records:
        if record.rung is not None:
            series, number = record.rung
            ladders.setdefault((series, record.cluster, record.job), []).append((number, record))
    found = []
    for key, rungs in ladders.items():
        for method in (ANSWER, *table.methods):
            fits = max((n for n, record in rungs if _figure(record, method, "step time") is not None), default=0)
            above = [_refused(record, method) for n, record in rungs if n > fits]
            sure = bool(above) and above[0]
            found.append(Deepest(*key, method, fits, sure))
    return found


def _refused(record: Record, method: str) -> bool:
    """Whether the method is known to have no plan here."""
    if record.outcome != "solved" or method == ANSWER:
        return record.outcome == "infeasible"
    return method in record.beside and record.beside[method].why not in NOT_ASKED
