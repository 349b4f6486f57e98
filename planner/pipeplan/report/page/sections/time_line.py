"""Time lines: a row for each device, a box for each action, and the critical path as a line through them."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Kind
from pipeplan.core.timeline import Span, Timeline
from pipeplan.core.wording import counted
from pipeplan.report.page.chart import INK, PATH, Trace, chart, fill, rows, scaled, unit_for
from pipeplan.report.page.markup import paragraph
from pipeplan.report.page.skeleton import Section
from pipeplan.report.plot.boxes import BOX, shaded, shades_of
from pipeplan.report.plot.colours import STYLES
from pipeplan.report.plot.fold import Lanes, folded, only
from pipeplan.report.plot.frontier import TIMES
from pipeplan.report.plot.gantt import headline
from pipeplan.report.plot.labels import device_labels

MOST, NUMBERED, DENSE = 8000, 1500, 200
"""Most actions that are drawn, most with the number of their micro-batch, most of a row in boxes with a rim."""
HATCHED = {Kind.WEIGHT_GRADIENT: "/", Kind.REDUCE: "x", Kind.UPDATE: "\\", Kind.GATHER: "."}
"""Kinds with a pattern, so that colour is not all that tells them apart."""
HOW = "Drag across the chart to zoom in, double-click to see the whole step. Numbers in boxes are micro-batches."


def time_lines(drawn: Sequence[tuple[str, Plan, Timeline]], name: str = "time-line") -> Section:
    """One or more time lines below each other on equal axes, with their labels."""
    end = max(timeline.makespan for _, _, timeline in drawn)
    charts = [_chart(f"{name}-{n}", *one, end) for n, one in enumerate(drawn)]
    return Section(name, "Time line" if len(drawn) == 1 else "Time lines", paragraph(HOW, "small") + "".join(charts))


def _chart(name: str, title: str, plan: Plan, timeline: Timeline, end: int) -> str:
    count = max([len(plan.ranks), *(span.device + 1 for span in timeline.spans)])
    lanes = folded(Lanes({"": timeline}, None, device_labels(plan)), count)
    shown, names = lanes.timelines[""], lanes.devices or ()
    told = _folding(count, len(names), plan)
    if len(shown.spans) > MOST:
        step = -(-len(shown.spans) // MOST)
        place = {lane: row for row, lane in enumerate(range(0, len(names), step))}
        told += f" One row in {step} of {len(names)} is drawn, as there are {len(shown.spans)} actions."
        shown, names = only(shown, place, place), names[::step]
    if any(shades_of(shown).values()):
        told += " Lighter boxes are those of a later stage of the device."
    unit, factor = unit_for(end, TIMES)
    height = 100 + min(26 * len(names), 1000)
    return chart(
        name,
        f"{headline(title, timeline)}: what each device does over time.{_path_words(timeline)}{told}",
        [*_idle(shown, len(names), factor), *_boxes(shown, len(names), unit, factor), *_path(shown, factor)],
        height=height,
        zoom=True,
        uniformtext={"minsize": 9, "mode": "hide"},
        xaxis={"title": {"text": f"time ({unit})"}, "range": [0, end / factor], "zeroline": False},
        yaxis=rows(names, height - 100),
    )


def _folding(devices: int, drawn: int, plan: Plan) -> str:
    if drawn == devices:
        return ""
    what = counted(devices, "device" if plan.team == 1 else "team")
    return (
        f" {what} in {counted(drawn, 'row')}: those that do the same at about the same time share one, which shows the "
        "first of them."
    )


def _path_words(timeline: Timeline) -> str:
    if not timeline.critical:
        return ""
    return " The line through the boxes is the critical path: a delay of anything on it delays the end of the step."


def _idle(timeline: Timeline, count: int, factor: float) -> Iterator[Trace]:
    """A pale bar behind each row: where it shows, the device is idle."""
    yield {
        "type": "bar",
        "orientation": "h",
        "name": "idle",
        "y": list(range(count)),
        "x": scaled([timeline.makespan] * count, factor),
        "width": BOX,
        "marker": {"color": "rgba(127,127,127,0.22)"},
        "hoverinfo": "skip",
    }


def _boxes(timeline: Timeline, lanes: int, unit: str, factor: float) -> Iterator[Trace]:
    """A trace for each kind of action and each shade of its colour, which tells stages of one device apart."""
    shades, two = shades_of(timeline), any(span.lane for span in timeline.spans)
    groups: dict[tuple[Kind, float], list[Span]] = defaultdict(list)
    for span in timeline.spans:
        if span.end > span.start:
            groups[span.action.kind, shades[span.action.stage]].append(span)
    numbered, rim = len(timeline.spans) <= NUMBERED, 0.5 if len(timeline.spans) <= DENSE * lanes else 0
    for (kind, shade), spans in sorted(groups.items(), key=lambda item: (list(Kind).index(item[0][0]), item[0][1])):
        style, times = STYLES[kind], scaled([span.end - span.start for span in spans], factor)
        starts = scaled([span.start for span in spans], factor)
        of = "micro-batch %{customdata[0]}, " if kind.per_micro_batch else ""
        yield {
            "type": "bar",
            "orientation": "h",
            "name": style.label,
            "y": [_middle(span, two) for span in spans],
            "base": starts,
            "x": times,
            "width": BOX / 2 if two else BOX,
            "marker": fill(shaded(style.fill, shade), HATCHED.get(kind, ""))
            | {"line": {"width": rim, "color": "#ffffff"}},
            "customdata": [
                [span.action.micro_batch, span.action.stage, start, time]
                for span, start, time in zip(spans, starts, times, strict=True)
            ],
            "hovertemplate": f"{style.label}: {of}stage %{{customdata[1]}}<br>begins at %{{customdata[2]}} {unit}, "
            f"takes %{{customdata[3]}} {unit}<extra></extra>",
            "text": [str(span.action.micro_batch) for span in spans] if numbered and kind.per_micro_batch else None,
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
            "insidetextfont": {"color": INK, "size": 11},
        }


def _middle(span: Span, two: bool) -> float:
    """Height of a box: its row, or the half of it that is its lane."""
    return span.device + (BOX / 4 * (2 * span.lane - 1) if two else 0.0)


def _path(timeline: Timeline, factor: float) -> Iterator[Trace]:
    """The critical path: a line with a white rim, so that it is seen on every colour."""
    spans = [item for item in timeline.critical if isinstance(item, Span)]
    if not spans:
        return
    two = any(span.lane for span in timeline.spans)
    low = BOX * (0.12 if two else 0.34)
    x = scaled([time for span in spans for time in (span.start, span.end)], factor)
    y = [round(_middle(span, two) + low, 3) for span in spans for _ in range(2)]
    for colour, width in (("#ffffff", 5), (PATH, 2.5)):
        yield {
            "type": "scatter",
            "mode": "lines",
            "name": "critical path" if colour == PATH else "",
            "x": x,
            "y": y,
            "line": {"color": colour, "width": width},
            "hoverinfo": "skip",
        }
