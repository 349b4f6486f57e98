"""Boxes and numbers of actions, and lines of transfers, in the lanes of a time line."""

from collections import defaultdict
from itertools import pairwise
from typing import Any

from pipeplan.core.timeline import Span, Timeline, TransferSpan
from pipeplan.report.plot.colours import FAINT, INK, STYLES, TRANSFER

BOX = 0.78
"""Share of a lane's height that a box fills."""
_MOST_NUMBERS, _MOST_TRANSFERS, _MOST_VECTORS = 4000, 1500, 20_000
"""Beyond these counts, numbers and transfers are left out, and boxes become an image within the drawing."""


def draw_boxes(ax: Any, timeline: Timeline) -> None:
    """Draw one box per action, in the colour of its kind."""
    from matplotlib.collections import PolyCollection

    shades = shades_of(timeline)
    two = any(span.lane for span in timeline.spans)
    boxes: dict[str, list[list[tuple[float, float]]]] = defaultdict(list)
    for span in timeline.spans:
        low, high = _extent(span, two)
        corners = [(span.start, low), (span.end, low), (span.end, high), (span.start, high)]
        boxes[shaded(STYLES[span.action.kind].fill, shades[span.action.stage])].append([(x, y) for x, y in corners])
    image = len(timeline.spans) > _MOST_VECTORS
    # the narrower the boxes, the thinner the white rim between them
    outline = min(0.6, 0.6 * _points(ax) * ax.get_xlim()[1] / (len(timeline.spans) + 1))
    for fill, polygons in boxes.items():
        ax.add_collection(
            PolyCollection(
                polygons, facecolors=fill, edgecolors="white", linewidths=outline, zorder=2, rasterized=image
            ),
            autolim=False,
        )


def draw_borders(ax: Any, timeline: Timeline) -> None:
    """Draw a line between the lanes of two stages, if replicas give stages several lanes."""
    stages: dict[int, set[int]] = defaultdict(set)
    for span in timeline.spans:
        stages[span.device].add(span.action.stage)
    lanes = sorted(stages)
    if any(stages[a] == stages[b] for a, b in pairwise(lanes)):
        for a, b in pairwise(lanes):
            if stages[a] != stages[b]:
                ax.axhline((a + b) / 2, color=FAINT, linewidth=0.8, zorder=0.5)


def _extent(span: Span, two: bool) -> tuple[float, float]:
    """Lower and upper edge of a box: its lane, or half of it on a device that runs two actions at a time."""
    if not two:
        return span.device - BOX / 2, span.device + BOX / 2
    top = span.device - BOX / 2 + span.lane * BOX / 2
    return top, top + BOX / 2


def shades_of(timeline: Timeline) -> dict[int, float]:
    """Share of white to mix into the colours of each stage, so that stages on one device differ a little."""
    stages: dict[int, set[int]] = defaultdict(set)
    for span in timeline.spans:
        stages[span.device].add(span.action.stage)
    shades = {}
    for own in stages.values():
        for i, stage in enumerate(sorted(own)):
            shades[stage] = 0.5 * i / len(own)
    return shades


def shaded(fill: str, white: float) -> str:
    """The colour ``fill`` with a share of white mixed in."""
    parts = [int(fill[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(part + (255 - part) * white):02x}" for part in parts)


def draw_transfers(ax: Any, timeline: Timeline) -> None:
    """Draw a thin line from the source's lane when a tensor leaves to the target's lane when it arrives.

    It passes behind the boxes of lanes in between.
    """
    from matplotlib.collections import LineCollection

    seen = drawn_transfers(timeline)
    if not seen:
        return
    device = {(span.action.stage, span.action.micro_batch): span.device for span in timeline.spans if runs(span)}
    lines = []
    for tensor in seen:
        a, b = device[tensor.source, tensor.micro_batch], device[tensor.target, tensor.micro_batch]
        edge = BOX / 2 if b > a else -BOX / 2
        lines.append([(tensor.start, a + edge), (tensor.arrival, b - edge)])
    ax.add_collection(LineCollection(lines, colors=TRANSFER.fill, linewidths=0.9, zorder=1.5), autolim=False)


def runs(span: Span) -> bool:
    """True if an action belongs to a micro-batch, so that its device shows the replica of that micro-batch."""
    return span.action.kind.per_micro_batch


def drawn_transfers(timeline: Timeline) -> list[TransferSpan]:
    """The transfers that take time; none if their lines would cover the lanes."""
    seen = [tensor for tensor in timeline.transfers if tensor.arrival > tensor.start]
    return seen if len(seen) <= _MOST_TRANSFERS else []


def _points(ax: Any) -> float:
    """Points per nanosecond on the axis."""
    begin, end = ax.get_xlim()
    return float(ax.get_position().width * ax.figure.get_figwidth() * 72 / (end - begin))


def draw_numbers(ax: Any, timeline: Timeline, lanes: int) -> None:
    """Write micro-batch numbers into the boxes that have room for them."""
    scale = _points(ax)
    lane = ax.get_position().height * ax.figure.get_figheight() * 72 / lanes
    two = any(span.lane for span in timeline.spans)
    size = min(8.0, lane * BOX * (0.5 if two else 1.0) * 0.6)
    shades = shades_of(timeline)
    if size < 4 or len(timeline.spans) > _MOST_NUMBERS:
        return
    for span in timeline.spans:
        text = str(span.action.micro_batch) if span.action.kind.per_micro_batch else ""
        if span.action.slice or not text:
            continue
        if (span.end - span.start) * scale < len(text) * size * 0.62 + 2:
            continue
        low, high = _extent(span, two)
        ink = STYLES[span.action.kind].ink if shades[span.action.stage] < 0.3 else INK
        ax.text(
            (span.start + span.end) / 2, (low + high) / 2, text, color=ink, fontsize=size, ha="center",
            va="center_baseline", zorder=4, clip_on=True,
        )  # fmt: skip
