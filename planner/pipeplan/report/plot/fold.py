"""Lanes of a large picture that are alike, as one lane each.

::

    d0 · stage 0 (1/16)   │F0 │F16│B0 │B16│          d0 · stage 0 ×16   │F0 │F16│B0 │B16│
    d1 · stage 0 (2/16)   │F1 │F17│B1 │B17│   ──▶
    …                                                the micro-batches shown are those of the first of them
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pipeplan.core.timeline import Span, Timeline
from pipeplan.report.plot.labels import lane_names

FOLDED = 4
"""Most lanes of a picture in which every device has its own."""
ALIKE = 0.01
"""Share of the step by which actions of lanes that are alike may begin apart: a card serves one after another."""


@dataclass(frozen=True)
class Lanes:
    """Time lines by label, with the limits and names of their lanes as `pipeplan.report.plot.gantt` takes them."""

    timelines: Mapping[str, Timeline]
    limits: Sequence[int] | None
    devices: Sequence[str] | None


def folded(given: Lanes, count: int) -> Lanes:
    """Return one of several lanes that are alike in every time line, named with their number.

    They have equal actions in one order, equal peaks and limits, and each action begins at about the same time.
    Pictures of up to `FOLDED` lanes are returned as they are.
    """
    if count <= FOLDED:
        return given
    near = ALIKE * max(timeline.makespan for timeline in given.timelines.values())
    groups: dict[object, list[_Row]] = defaultdict(list)
    contents = [_contents(timeline, count) for timeline in given.timelines.values()]
    for lane in range(count):
        limit = given.limits[lane] if given.limits is not None and lane < len(given.limits) else None
        shown = [row[lane] for row in contents]
        starts = [start for *_, times in shown for start in times]
        rows = groups[tuple(what for what, _ in shown), limit]
        row = next((row for row in rows if row.begins(starts, near)), None)
        if row is None:
            rows.append(_Row([lane], starts))
        else:
            row.lanes.append(lane)
    lanes = sorted(row.lanes for rows in groups.values() for row in rows)
    names = lane_names(count, given.devices)
    place = {own[0]: row for row, own in enumerate(lanes)}
    row_of = {lane: row for row, own in enumerate(lanes) for lane in own}
    return Lanes(
        {label: only(timeline, place, row_of) for label, timeline in given.timelines.items()},
        None if given.limits is None else [given.limits[own[0]] for own in lanes if own[0] < len(given.limits)],
        [names[own[0]].partition(" (")[0] + f" ×{len(own)}" if len(own) > 1 else names[own[0]] for own in lanes],
    )


@dataclass(frozen=True)
class _Row:
    """Lanes that are alike, and the times at which the first one's actions begin."""

    lanes: list[int]
    starts: list[int]

    def begins(self, starts: Sequence[int], near: float) -> bool:
        return all(abs(a - b) <= near for a, b in zip(self.starts, starts, strict=True))


def _contents(timeline: Timeline, count: int) -> list[tuple[object, list[int]]]:
    """Return what each lane shows, without numbers of micro-batches, and when its actions begin."""
    spans: list[list[Span]] = [[] for _ in range(count)]
    for span in sorted(timeline.spans, key=lambda span: (span.lane, span.start)):
        spans[span.device].append(span)
    peaks = [*timeline.peaks, *[0] * (count - len(timeline.memory))]
    return [
        (
            (tuple((s.lane, s.action.kind, s.action.stage, s.action.slice) for s in own), peak),
            [span.start for span in own],
        )
        for own, peak in zip(spans, peaks, strict=True)
    ]


def only(timeline: Timeline, place: Mapping[int, int], rows: Mapping[int, int]) -> Timeline:
    """Return the lanes in ``place``, renumbered, and the transfers between them.

    The critical path runs through the ``rows`` that stand for its lanes.
    """
    spans = tuple(span._replace(device=place[span.device]) for span in timeline.spans if span.device in place)
    drawn = {(span.action.stage, span.action.micro_batch) for span in spans if span.action.kind.per_micro_batch}
    return replace(
        timeline,
        spans=spans,
        transfers=tuple(
            tensor
            for tensor in timeline.transfers
            if {(tensor.source, tensor.micro_batch), (tensor.target, tensor.micro_batch)} <= drawn
        ),
        memory=tuple(timeline.memory[lane] for lane in place if lane < len(timeline.memory)),
        critical=tuple(
            item._replace(device=rows[item.device])
            for item in timeline.critical
            if isinstance(item, Span) and item.device in rows
        ),
    )
