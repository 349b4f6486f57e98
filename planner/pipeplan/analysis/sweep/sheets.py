"""What people read of a table: sheets of words, one part of the experiment after the other."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeplan.analysis.sweep.largest import ANSWER, Largest, deepest, largest
from pipeplan.analysis.sweep.record import Figures, Record
from pipeplan.analysis.sweep.table import Table
from pipeplan.core.units import format_bytes, format_time
from pipeplan.search.heuristics import NOT_ASKED

HEROES = (ANSWER, "bapipe-greedy")
"""Whose largest advantages are listed under the table."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A heading, which may be empty, and lines of equally many words."""

    title: str
    heads: list[str]
    rows: list[list[str]]


def sheets(table: Table) -> list[Sheet]:
    """For each part the rows and the largest ratios; at last the deepest members of series, where there are any."""
    found = [sheet for name, part in table.parts() for sheet in (_main(name, part), _largest(name, part))]
    found = found or [_main("", table)]
    found.append(_deepest(table))
    return [sheet for n, sheet in enumerate(found) if n == 0 or sheet.rows]


def heroes(table: Table) -> tuple[str, ...]:
    """The answer, and the greedy if it has a column."""
    return tuple(hero for hero in HEROES if hero == ANSWER or hero in table.methods)


def _main(title: str, table: Table) -> Sheet:
    """With a column for the job only where model and cluster do not tell rows apart."""
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
    if ratio is None or peak is None:
        return "?" if record.beside.get(method, Figures()).why in NOT_ASKED else "-"
    return f"{ratio:.2f} ({peak:.2f}){'*' * bool(record.beside[method].outside)}"


def _largest(title: str, table: Table) -> Sheet:
    names = ["model", "cluster", *(["job"] if _jobs_matter(table) else [])]
    rows = [
        [one.method, one.other, one.figure, f"{one.ratio:.2f}", *_names(one.record, names), *_plans(one)]
        for one in largest(table, heroes(table))
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
