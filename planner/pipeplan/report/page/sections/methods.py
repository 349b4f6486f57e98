"""Methods beside each other: a bar for the time of each, a line for the bound, and the plans as a table."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipeplan.analysis.compare import SOLVER, Comparison
from pipeplan.core.tabular import Table, Unit
from pipeplan.core.units import format_time
from pipeplan.report.page.chart import BLUE, GREY, INK, Trace, chart, fill, label, mark, rows, scaled, unit_for
from pipeplan.report.page.markup import paragraph, table
from pipeplan.report.page.skeleton import Section
from pipeplan.report.plot.frontier import TIMES
from pipeplan.search.heuristics import ranked
from pipeplan.search.result import Result

ANSWER, SIMULATED, LEAST = "answer", "simulated", "at least, not simulated"
OUTSIDE, TOO_LARGE = "outside what was asked", "does not fit"
"""What a bar stands for."""
STYLES = {ANSWER: (BLUE, ""), SIMULATED: (GREY, ""), LEAST: (GREY, "/"), OUTSIDE: (GREY, "x"), TOO_LARGE: (GREY, "\\")}
"""Colour and pattern of each."""


@dataclass(frozen=True, slots=True)
class Method:
    """One bar: nanoseconds, None without a plan; ``kind`` is one of the words above; ``plan`` is it, or why none is."""

    name: str
    value: int | None
    kind: str
    plan: str


def of_result(result: Result) -> list[Method]:
    """Return the answer and the best plan of every heuristic, the fastest first."""
    answer = Method(SOLVER, result.value, ANSWER, result.plan.headline.partition(": ")[2])
    found = [
        Method(row.name, *_kind(row.value, row.bound, row.outside), _plan(row.label, row.outside) or row.why)
        for row in ranked(result.baselines.values())
    ]
    return [answer, *found]


def of_comparison(comparison: Comparison) -> list[Method]:
    """Return the best row of every method, the fastest first."""
    return [
        Method(
            row.method,
            *((row.value, ANSWER) if row.method == SOLVER else _kind(row.value, row.at_least, row.outside)),
            f"{row.family}: {_plan(row.label, row.outside)}" if row.label else row.why,
        )
        for row in comparison.lines()
    ]


def methods(found: Sequence[Method], bound: int, figure: str, title: str = "Beside other methods") -> Section:
    """Bars of all methods with a plan, the bound as a line; a table of all."""
    drawn = [(one, one.value) for one in found if one.value]
    unit, factor = unit_for(max([bound, *(value for _, value in drawn)]), TIMES)
    height = 28 * len(drawn)
    proved = f"; the dashed line is the proven bound, {format_time(bound)}" if bound else ""
    bars = chart(
        "comparison-chart",
        f"{figure.capitalize()} of each plan in the same simulator, shorter is better{proved}.",
        [*_bars(drawn, factor), *([mark("proven bound", bound / factor, len(drawn))] if bound else [])],
        height=85 + height,
        xaxis={"title": {"text": f"{figure} ({unit})"}, "rangemode": "tozero", "zeroline": False},
        yaxis=rows([one.name for one, _ in drawn], height),
    )
    body = paragraph(_in_words(found)) + bars + table(_table(found, bound, figure), title)
    return Section("comparison", title, body)


def _table(found: Sequence[Method], bound: int, figure: str) -> Table:
    columns: dict[str, Unit] = {
        "method": "",
        figure: "ns",
        "over the bound": "share",
        "kind": "",
        "plan, or why none": "",
    }
    lines = [
        (one.name, one.value, one.value / bound - 1 if one.value and bound else None, one.kind, one.plan)
        for one in found
    ]
    kept = [n for n, name in enumerate(columns) if bound or name not in ("over the bound", "kind")]
    named = [each for n, each in enumerate(columns.items()) if n in kept]
    return Table(dict(named), tuple(tuple(row[n] for n in kept) for row in lines), len(lines))


def _kind(value: int | None, least: int | None, outside: str) -> tuple[int | None, str]:
    if value is None:
        return least, LEAST if least is not None else "no plan"
    return value, OUTSIDE if outside else SIMULATED


def _plan(text: str, outside: str) -> str:
    return f"{text} ({outside})" if text and outside else text


def _in_words(found: Sequence[Method]) -> str:
    """Return how the answer compares with the fastest other method."""
    answers = [one for one in found if one.kind == ANSWER and one.value]
    others = [one for one in found if one.kind == SIMULATED and one.value]
    if not answers or not others:
        return ""
    best, other = answers[0], min(others, key=lambda one: one.value or 0)
    more = (other.value or 0) / (best.value or 1) - 1
    beside = "as long as" if abs(more) < 5e-5 else f"{more:.1%} longer than" if more > 0 else f"{-more:.1%} less than"
    tried, fit = len(found) - len(answers), sum(one.value is not None for one in found) - len(answers)
    fits = (
        f"Of {tried} other methods {fit} have a plan that fits. The fastest, {other.name}," if tried > 1 else other.name
    )
    return f"{fits[0].upper()}{fits[1:]} takes {beside} the {best.name if tried == 1 else 'answer'}."


def _bars(drawn: Iterable[tuple[Method, int]], factor: float) -> Iterator[Trace]:
    placed = list(enumerate(drawn))
    for kind, (colour, pattern) in STYLES.items():
        own = [(n, one, value) for n, (one, value) in placed if one.kind == kind]
        if own:
            yield {
                "type": "bar",
                "orientation": "h",
                "name": kind,
                "y": [n for n, _, _ in own],
                "x": scaled([value for _, _, value in own], factor),
                "width": 0.7,
                "text": [("≥ " if kind == LEAST else "") + format_time(value) for _, _, value in own],
                "textposition": "auto",
                "textangle": 0,
                "insidetextanchor": "start",
                "insidetextfont": {"color": INK},
                "marker": fill(colour, pattern),
                "hovertext": [label(f"{one.name}: {one.plan}") for _, one, _ in own],
                "hovertemplate": "%{hovertext}<extra></extra>",
            }
