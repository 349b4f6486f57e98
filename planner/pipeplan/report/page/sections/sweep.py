"""A sweep: for each part of its table bars of the methods' times relative to the answer's, and its tables."""

from collections.abc import Iterator

from pipeplan.analysis.sweep.record import Record
from pipeplan.analysis.sweep.sheets import NOTE, sheets
from pipeplan.analysis.sweep.table import ANSWER, Table, asked
from pipeplan.report.page.chart import PATTERNS, SEVERAL, Trace, chart, fill, label, mark, rows
from pipeplan.report.page.markup import paragraph, table
from pipeplan.report.page.skeleton import Section

MOST = 40
"""Most cells with bars in one chart."""


def sweep(found: Table) -> list[Section]:
    """Charts of all parts, then the tables that the command prints."""
    charts = "".join(_chart(name, part, f"ratios-{n}") for n, (name, part) in enumerate(found.parts()))
    tables = "".join(table(sheet, title or "All cells") for title, sheet in sheets(found))
    return [
        Section("ratios", "Beside other methods", charts or paragraph("No cell has a plan.")),
        Section("tables", "Tables", tables + paragraph(NOTE, "small")),
    ]


def _chart(title: str, part: Table, name: str) -> str:
    cells = [record for record in part.records if record.answer.value][:MOST]
    if not cells or not part.methods:
        return ""
    names = [", ".join(str(asked(record)[column]) for column in part.distinguishing) for record in cells]
    height = max(28, 9 * (1 + len(part.methods))) * len(cells)
    of = f"{title}: step" if title else "Step"
    return chart(
        name,
        f"{of} time of each method as a multiple of {ANSWER}'s, which is 1 (the dashed line); a method without a bar "
        "has no plan that was simulated.",
        [*_bars(part, cells), mark(ANSWER, 1, len(cells))],
        height=85 + height,
        barmode="group",
        bargap=0.25,
        xaxis={"title": {"text": f"time relative to {ANSWER}"}, "rangemode": "tozero", "zeroline": False},
        yaxis=rows(names, height),
    )


def _bars(part: Table, cells: list[Record]) -> Iterator[Trace]:
    for number, method in enumerate(part.methods):
        own = [(n, record) for n, record in enumerate(cells) if record.ratio(method) is not None]
        yield {
            "type": "bar",
            "orientation": "h",
            "name": label(method),
            "y": [n for n, _ in own],
            "x": [round(record.ratio(method) or 0, 4) for _, record in own],
            "marker": fill(SEVERAL[number % len(SEVERAL)], PATTERNS[number % len(PATTERNS)]),
            "hovertext": [label(record.beside[method].plan) for _, record in own],
            "hovertemplate": f"{label(method)}: %{{x}}<br>%{{hovertext}}<extra></extra>",
        }
