"""Naive oracle of the simulator: every rule as an arc between two moments, then the longest path to each moment.

Moments of an action and its device, together a: ``(a, "start")``, ``(a, "end")``, and of the tensor that it sends
``(a, "left")`` (it begins to move), ``(a, "gone")`` (its last byte left), ``(a, "there")`` (it arrived). Replicas that
reduce together share one more moment, ``((-1, action), "start")``, at which the last of them is ready. So do those of a
coupled stage in each pass.
"""

from fractions import Fraction
from graphlib import TopologicalSorter
from itertools import pairwise
from math import ceil

from helpers.random_schedules import Item, all_items, all_needs
from pipeplan.core.cluster import Overlap
from pipeplan.core.pipeline import Pipeline, Transfer
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.core.timeline import Timeline

Moment = tuple[Item, str]
Arcs = dict[Moment, dict[Moment, int]]
F, B, DX, DW, R, U, G = Kind  # forward, backward, input and weight gradient, reduction, update, gather


def duration(action: Action, schedule: Schedule, pipeline: Pipeline) -> int:
    """Nanoseconds; on two lanes F and B are slowed down to F + B, input and weight gradients like B."""
    stage = pipeline.stages[action.stage]
    forward, backward, inputs, weights = (
        times[action.slice] if isinstance(times, tuple) else times
        for times in (stage.forward, stage.backward, stage.input_gradient, stage.weight_gradient)
    )
    plain = {F: forward, B: backward, DX: inputs, DW: weights, R: stage.reduce, U: stage.update}[action.kind]
    if not schedule.two_lanes or action.kind in (R, U):
        return plain
    if action.kind in (F, B):
        return forward + backward
    return ceil(Fraction(plain * (forward + backward), backward)) if backward else plain


def way(action: Action, pipeline: Pipeline) -> Transfer | None:
    """The transfer that an action starts, if its tensor goes to another device."""
    s, m = action.stage, action.micro_batch
    if action.kind is F and s + 1 < len(pipeline.stages) and home(action, pipeline) != home(action, pipeline, 1):
        return pipeline.transfers[s][m % len(pipeline.transfers[s])]
    if action.kind in (B, DX) and s > 0 and home(action, pipeline) != home(action, pipeline, -1):
        return pipeline.returns[s - 1][m % len(pipeline.returns[s - 1])]
    return None


def home(action: Action, pipeline: Pipeline, onward: int = 0) -> int:
    """The device of an action, or of the same micro-batch ``onward`` stages further on."""
    devices = pipeline.placement[action.stage + onward]
    return devices[action.micro_batch % len(devices)]


def meeting(action: Action, pipeline: Pipeline) -> Moment:
    """Moment at which a reduction begins, named by the first stage that takes part, or the passes of replicas do."""
    if action.kind not in (R, U):
        return (-1, action._replace(micro_batch=action.micro_batch // len(pipeline.placement[action.stage]))), "start"
    group = next((group for group in pipeline.tied if action.stage in group), (action.stage,))
    return (-1, action._replace(stage=min(group))), "start"


def lists_and_needs(schedule: Schedule, pipeline: Pipeline) -> Arcs:
    """The arcs that do not depend on link resources: ``arcs[later][earlier]`` is the least distance."""
    items = all_items(schedule)
    arcs: Arcs = {}

    def meets(action: Action) -> bool:
        return action.kind is R or (pipeline.coupled and action.kind not in (U, G))

    def after(later: Moment, earlier: Moment, distance: int = 0) -> None:
        (_, action), name = later
        if meets(action) and name == "start":
            later = meeting(action, pipeline)
        known = arcs.setdefault(later, {})
        known[earlier] = max(distance, known.get(earlier, 0))

    released = {}  # the moment at which an action's lane is free again
    for a in items:
        after((a, "end"), (a, "start"), duration(a[1], schedule, pipeline))
        if meets(a[1]):
            arcs[a, "start"] = {meeting(a[1], pipeline): 0}
        transfer = way(a[1], pipeline)
        released[a] = (a, "gone") if transfer and pipeline.overlap is Overlap.NONE else (a, "end")
        if transfer:
            streams = pipeline.overlap is Overlap.STREAM
            after((a, "left"), (a, "start" if streams else "end"))
            after((a, "gone"), (a, "left"), transfer.occupancy)
            after((a, "gone"), (a, "end"))
            after((a, "there"), (a, "gone"), transfer.latency)
    for device, listed in enumerate(schedule.orders):
        order = [(device, action) for action in listed]
        forwards = [a for a in order if a[1].kind is F]
        others = [a for a in order if a[1].kind is not F]
        gathers = [
            (device, Action(G, s))
            for s, devices in enumerate(pipeline.placement)
            if device in devices and pipeline.stages[s].gather
        ]
        for a in gathers:
            after((a, "end"), (a, "start"), pipeline.stages[a[1].stage].gather)
        for lane in (forwards, others) if schedule.two_lanes else (order,):
            for first in lane[:1]:
                for a in gathers:
                    after((first, "start"), (a, "end"))
            for earlier, later in pairwise(lane):
                after((later, "start"), released[earlier])
        if schedule.two_lanes:
            for j, later in enumerate(order):
                for earlier in order[:j] if later[1].kind is F else ():
                    if earlier[1].kind is not F:
                        after((later, "start"), (earlier, "end"))
    for later, wanted in all_needs(items).items():
        for earlier in wanted:
            sent = earlier[1].stage != later[1].stage and way(earlier[1], pipeline)
            after((later, "start"), (earlier, "there" if sent else "end"))
    return arcs


def longest_paths(arcs: Arcs) -> dict[Moment, int]:
    """The earliest time of every moment; raises graphlib.CycleError where moments wait for each other."""
    times: dict[Moment, int] = {}
    for moment in TopologicalSorter(arcs).static_order():
        times[moment] = max((times[m] + d for m, d in arcs.get(moment, {}).items()), default=0)
    return times


def with_resources(arcs: Arcs, schedule: Schedule, pipeline: Pipeline, timeline: Timeline | None) -> Arcs:
    """Add the arcs between tensors that share a link resource, which serves them one after another.

    In the order in which the tensors are ready on the time line, then by device and list; without a time line every
    pair of replicas has a resource of its own in each direction, in list order.
    """
    times = {(span.device, span.action): (span.start, span.end) for span in timeline.spans} if timeline else {}
    of_resource: dict[object, list[tuple[int, int, Item, int]]] = {}
    for number, a in enumerate(all_items(schedule)):
        device, action = a
        transfer = way(action, pipeline)
        if transfer:
            ready = times[a][pipeline.overlap is not Overlap.STREAM] if timeline else 0
            onward = 1 if action.kind is F else -1
            own = [(device, home(action, pipeline, onward), action.stage, onward)] if transfer.resources else []
            for resource in transfer.resources if timeline else own:
                of_resource.setdefault(resource, []).append((ready, number, a, transfer.occupancy))
    result = {moment: dict(earlier) for moment, earlier in arcs.items()}
    for queue in of_resource.values():
        for (_, _, a, occupancy), (_, _, b, _) in pairwise(sorted(queue)):
            result[b, "left"][a, "left"] = max(occupancy, result[b, "left"].get((a, "left"), 0))
    return result
