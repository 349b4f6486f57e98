"""What a critical path proves about every other partition: an inequality for the partition problem.

::

    0F0 ──f──▶ 1F0  1F1  1B1 ──g──▶ 0B1  0U            T ≥ F_0 + 2 F_1 + B_1 + B_0 + U_0 + f_0 + g_0 + 2 l_0

In a given order of actions these follow one another whatever the layers of each stage are, so the length of the path,
read as a sum over stages, bounds the step time of every partition (equation (6) of the partition problem).
"""

from pipeplan.cluster import Overlap
from pipeplan.errors import PlanError
from pipeplan.pipeline import Pipeline
from pipeplan.schedule import Kind, Schedule
from pipeplan.timeline import Flight, Span, Timeline
from pipeplan_formulations.partition import PathCut


def path_cut(timeline: Timeline, pipeline: Pipeline, schedule: Schedule) -> PathCut:
    """Count what lies on the critical path of a simulation with ``share=False``.

    Raises
    ------
    PlanError
        If the path holds actions that the partition problem has no term for (a split backward, a reduction), or comes
        from a simulation in which boundaries share wires.
    """
    stages = len(pipeline.stages)
    count = {kind: [0] * stages for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.UPDATE)}
    send, send_back = [0] * (stages - 1), [0] * (stages - 1)
    constant = 0
    path = timeline.critical
    for before, item, after in zip([None, *path[:-1]], path, [*path[1:], None], strict=True):
        if isinstance(item, Span):
            if not _only_started(item, after, pipeline.overlap):
                _count(count, item, schedule.two_lanes)
            continue
        link = min(item.source, item.target)
        if not _left_with_its_action(item, before, pipeline.overlap):
            (send if item.source < item.target else send_back)[link] += 1
        if isinstance(after, Flight) and (after.source, after.target) != (item.source, item.target):
            raise PlanError("the critical path holds two transfers that share a wire; simulate with share=False")
        reader = pipeline.device_of(item.target, item.micro_batch)
        if isinstance(after, Span) and after.device == reader:  # not the sender that waited
            ways = pipeline.transfers if item.source < item.target else pipeline.returns
            constant += min(way.latency for way in ways[link])
    forward, backward, update = (tuple(count[kind]) for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.UPDATE))
    return PathCut(forward, backward, update, tuple(send), tuple(send_back), constant)


def _count(count: dict[Kind, list[int]], span: Span, two_lanes: bool) -> None:
    kind, stage = span.action.kind, span.action.stage
    if kind not in count:
        raise PlanError(f"the critical path holds {span.action}, for which the partition problem has no term")
    count[kind][stage] += 1
    if two_lanes and kind is not Kind.UPDATE:  # each of the two takes F + B there
        other = Kind.BACKWARD if kind is Kind.FORWARD else Kind.FORWARD
        count[other][stage] += 1


def _sent_by(flight: Flight, span: Span) -> bool:
    action = span.action
    forward = flight.source < flight.target
    same = (action.stage, action.micro_batch, action.slice) == (flight.source, flight.micro_batch, flight.slice)
    return same and (action.kind is Kind.FORWARD) == forward


def _only_started(span: Span, after: Span | Flight | None, overlap: Overlap) -> bool:
    """Where tensors stream, an action may matter only by its start: its tensor's first byte left then."""
    streams = overlap is Overlap.STREAM and isinstance(after, Flight) and _sent_by(after, span)
    return streams and isinstance(after, Flight) and after.end != span.end


def _left_with_its_action(flight: Flight, before: Span | Flight | None, overlap: Overlap) -> bool:
    """Where tensors stream, a tensor may leave the moment its action ends, whatever its size."""
    streams = overlap is Overlap.STREAM and isinstance(before, Span) and _sent_by(flight, before)
    return streams and isinstance(before, Span) and flight.end == before.end
