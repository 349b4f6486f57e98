"""Where the differences are largest: over a whole table, the best case of one method against another."""

from collections.abc import Iterator
from dataclasses import dataclass

from pipeplan.sweep.record import Record
from pipeplan.sweep.table import Table

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
    """The largest member of a series for which a method has a plan on a cluster; 0 if for none."""

    series: str
    cluster: str
    job: str
    method: str
    number: int


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
    if figures is None:
        return None
    return figures.value if figure == "step time" else figures.peak


def deepest(table: Table) -> list[Deepest]:
    """For every series, cluster and job, and every method: the largest member that it has a plan for."""
    found: dict[tuple[str, str, str], dict[str, int]] = {}
    for record in table.records:
        if record.rung is None:
            continue
        series, number = record.rung
        numbers = found.setdefault((series, record.cluster, record.job), dict.fromkeys((ANSWER, *table.methods), 0))
        for method in numbers:
            if _figure(record, method, "step time") is not None:
                numbers[method] = max(numbers[method], number)
    return [Deepest(*key, method, number) for key, numbers in found.items() for method, number in numbers.items()]
