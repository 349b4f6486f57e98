"""Sheets: a table in words, for people."""

from collections.abc import Callable, Sequence

from pipeplan.analysis.sweep.record import Figures, Record
from pipeplan.analysis.sweep.spread import Group, Spread, over_seeds
from pipeplan.analysis.sweep.table import ANSWER, Largest, Table, asked, asked_of_search, deepest, largest
from pipeplan.core.tabular import Table as Tabulated
from pipeplan.core.units import format_bytes, format_time
from pipeplan.search.turns import NOT_ASKED

Sheet = tuple[str, Tabulated]
"""A title, which may be empty, and a table of words."""
HIGHLIGHTED = (ANSWER, "bapipe-greedy")
"""Highlighted methods, whose largest advantages are listed under the table."""


def sheets(table: Table) -> list[Sheet]:
    """Rows, spread over seeds and largest ratios of each part, then the deepest members of series, if there are any."""
    found = [
        sheet
        for name, part in table.parts()
        for sheet in (_main(name, part), _over_seeds(name, part), _largest(name, part))
    ]
    found = found or [_main("", table)]
    found.append(_deepest(table))
    return [sheet for n, sheet in enumerate(found) if n == 0 or sheet[1].rows]


def highlighted(table: Table) -> tuple[str, ...]:
    """The highlighted methods: the answer, and ``bapipe-greedy`` if it has a column."""
    return tuple(chosen for chosen in HIGHLIGHTED if chosen == ANSWER or chosen in table.methods)


def _main(title: str, table: Table) -> Sheet:
    """Sheet of all rows, with the columns that distinguish them; outcome and reason where some cell has no plan."""
    names = table.distinguishing
    outcomes = any(record.outcome != "solved" for record in table.records)
    rows = [
        _names(record, names)
        + ([OUTCOMES[record.outcome], record.reason or "-"] if outcomes else [])
        + _words(record, table.methods)
        for record in table.records
    ]
    heads = [*names, *(["outcome", "reason"] if outcomes else []), "step time", "gap", "peak", "plan", *table.methods]
    return title, Tabulated.of_text(heads, rows)


OUTCOMES = {"solved": "solved", "infeasible": "does not fit", "failed": "failed", "missing": "missing"}
"""Outcomes in words."""


def _names(record: Record, names: Sequence[str]) -> list[str]:
    row = asked(record)
    return [str(row[name]) for name in names]


def _words(record: Record, methods: Sequence[str]) -> list[str]:
    answer = record.answer
    if answer.value is None or answer.peak is None:
        return ["-"] * (4 + len(methods))
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


def _over_seeds(title: str, table: Table) -> Sheet:
    """Sheet of the cells that were solved with several seeds."""
    names = [name for name in table.distinguishing if name != "seed"]
    rows = [
        [*_names(group.records[0], names), f"{len(group.solved)} of {len(group.records)}", *_spreads(group)]
        for group in over_seeds(table.records)
        if len(group.records) > 1
    ]
    heads = [*names, "solved", "step time", "gap", "wall time", "processor time"]
    return f"{title}: over seeds" if title else "over seeds", Tabulated.of_text(heads, rows)


def _spreads(group: Group) -> list[str]:
    written = {"step_time_s": _time, "gap": "{:.1%}".format, "wall_s": _time, "processor_s": _time}
    return [_spread(group.spread(column), write) for column, write in written.items()]


def _spread(spread: Spread | None, write: Callable[[float], str]) -> str:
    """``'35.9 ms ± 0.2 ms (35.7 ms to 36.2 ms)'``: mean, standard deviation, least and most."""
    if spread is None:
        return "-"
    deviation = "" if spread.deviation is None else f" ± {write(spread.deviation)}"
    return f"{write(spread.mean)}{deviation} ({write(spread.least)} to {write(spread.most)})"


def _time(seconds: float) -> str:
    return format_time(round(seconds * 1e9))


def _largest(title: str, table: Table) -> Sheet:
    names = table.distinguishing
    rows = [
        [one.method, one.other, one.figure, f"{one.ratio:.2f}", *_names(one.record, names), *_plans(one)]
        for one in largest(table, highlighted(table))
    ]
    heads = ["method", "against", "largest ratio of", "is", *names, "plan", "against plan"]
    return f"{title}: largest ratios" if title else "largest ratios", Tabulated.of_text(heads, rows)


def _plans(one: Largest) -> list[str]:
    record = one.record
    return [record.answer.plan if name == ANSWER else record.beside[name].plan for name in (one.method, one.other)]


def _deepest(table: Table) -> Sheet:
    methods = [ANSWER, *table.methods]
    searched = [name for name in table.distinguishing if name not in ("model", "cluster", "job")]
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for one in deepest(table):
        number = str(one.number) if one.number else "-"
        word = number if one.sure else f"{number} or more"
        search = asked_of_search(one.search)
        key = (one.series, one.cluster, one.job, *(str(search[name]) for name in searched))
        found.setdefault(key, {})[one.method] = word
    rows = [[*key, *(words[method] for method in methods)] for key, words in found.items()]
    heads = ["series", "cluster", "job", *searched, *methods]
    return "largest members that fit", Tabulated.of_text(heads, rows)


NOTE = (
    "The gap is pipeplan's, to its bound proved over the plans that `pipeplan solve` lists as searched, for the costs "
    "that it names there. A method's column: its step time as a multiple of pipeplan's, and in brackets the peak "
    "memory of its fullest device as a multiple of that of pipeplan's. '*': its plan lies outside what was asked, and "
    "counts for nothing. '≥': a lower bound on its step time, as none of its plans was simulated. '-': it has no plan "
    "that fits. '?': the time was over before its turn. '±' is the standard deviation over seeds."
)
