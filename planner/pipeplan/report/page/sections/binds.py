"""Section of what binds: what the step would gain from, its critical path in words, and how busy links are."""

from pipeplan.analysis.explain import Explanation, explain_plan
from pipeplan.analysis.explain.path import phase_lines
from pipeplan.core.errors import InputError
from pipeplan.core.plan import Plan
from pipeplan.core.tabular import Table, Unit
from pipeplan.core.wording import counted
from pipeplan.report.page.chart import BLUE, INK, chart, label, rows
from pipeplan.report.page.markup import listing, paragraph, table
from pipeplan.report.page.skeleton import Section

MOST = 12
"""Most bars, and most links in the table."""
LEAST = 0.0005
"""Least fraction of the step that has a bar."""


def binds(plan: Plan, name: str = "binds") -> tuple[Section, list[float]]:
    """Return the section, and for each rank of the plan the share of the step in which it is busy."""
    try:
        found = explain_plan(plan)
    except InputError as error:  # there is no step to explain
        return Section(name, "What binds", paragraph(f"Not told: {error}.")), []
    busy = [use.share for use in found.uses if use.kind == "device"]
    lines = [line + "." for line in found.binding()]
    path = [line + "." for line in phase_lines(found.path, found.step)]
    body = paragraph("A resource binds if the step gets shorter when that resource alone gets faster.")
    body += _chart(found, f"{name}-chart") + listing(lines)
    body += "<h3>The critical path</h3>" + listing(path) + _links(found) + _tight(found, plan)
    return Section(name, "What binds", body), busy


def _chart(found: Explanation, name: str) -> str:
    every = sorted((*found.groups, *found.sensitivities), key=lambda one: -one.fall)
    shown = [one for n, one in enumerate(every[:MOST]) if n == 0 or one.fall >= LEAST]
    if not shown:
        return ""
    return chart(
        name,
        "By how much the step falls if all of this takes a tenth less time.",
        [
            {
                "type": "bar",
                "orientation": "h",
                "y": list(range(len(shown))),
                "x": [round(100 * one.fall, 3) for one in shown],
                "text": [f"{one.fall:.2%}" for one in shown],
                "textposition": "auto",
                "textangle": 0,
                "insidetextfont": {"color": INK},
                "width": 0.7,
                "marker": {"color": BLUE},
                "hovertext": [label(one.name) for one in shown],
                "hovertemplate": "%{hovertext}: %{text}<extra></extra>",
            }
        ],
        height=85 + 28 * len(shown),
        xaxis={"title": {"text": "fall of the step (%)"}, "range": [0, 11]},
        yaxis=rows([one.name for one in shown], 28 * len(shown)),
    )


def _links(found: Explanation) -> str:
    links = sorted((use for use in found.uses if use.kind != "device"), key=lambda use: -use.share)
    if not links:
        return ""
    columns: dict[str, Unit] = {"link": "", "kind": "", "busy": "ns", "of the step": "share"}
    lines = tuple((use.name, use.kind.replace("wire", "link"), use.busy, use.share) for use in links[:MOST])
    left = f", the busiest {MOST} of {len(links)}" if len(links) > MOST else ""
    return table(Table(columns, lines), f"How busy links and network cards are{left}")


def _tight(found: Explanation, plan: Plan) -> str:
    tight = [room for room in found.rooms if room.tight and room.left >= 0]
    if not tight:
        return ""
    many = counted(len(tight), "device" if plan.team == 1 else "team")
    first = f"{many} could not hold one more micro-batch in flight, the first of them: "
    return paragraph(f"{first}{tight[0]}.")
