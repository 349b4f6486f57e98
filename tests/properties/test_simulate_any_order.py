"""The simulator on orders that no family writes, against longest paths over arcs that spell every rule out."""

from graphlib import CycleError
from itertools import chain, pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.happening import happens
from helpers.naive_timing import Moment, lists_and_needs, longest_paths, meeting, with_resources
from helpers.pipelines import line
from helpers.random_schedules import Case, random_case, with_unlike_slices
from pipeplan.core.cluster import Overlap
from pipeplan.core.errors import PlanError
from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.core.timeline import Span, Timeline, TransferSpan
from pipeplan.core.validate import validate_memory, validate_schedule
from pipeplan.schedules import FAMILIES
from pipeplan.simulate import longest_path, makespan, simulate

F, B, DX, DW, R, U, G = Kind  # forward, backward, input and weight gradient, reduction, update, gather
seeds = st.integers(0, 2**32)


def moments(timeline: Timeline, pipeline: Pipeline) -> dict[Moment, int]:
    """Every moment on a time line, under the names that the oracle uses."""
    found: dict[Moment, int] = {}
    home = {span.action: span.device for span in timeline.spans}
    for span in timeline.spans:
        a = (span.device, span.action)
        found |= {(a, "start"): span.start, (a, "end"): span.end}
        if span.action.kind is R:
            assert found.setdefault(meeting(span.action, pipeline), span.start) == span.start
    for flight in timeline.transfers:
        kinds = (F,) if flight.source < flight.target else (B, DX)
        senders = [Action(kind, flight.source, flight.micro_batch, flight.slice) for kind in kinds]
        sender = next((home[a], a) for a in senders if a in home)
        found |= {(sender, "left"): flight.start, (sender, "gone"): flight.end, (sender, "there"): flight.arrival}
    return found


@given(seeds, st.booleans(), st.booleans())
@settings(max_examples=600, deadline=None)
def test_every_moment_is_the_longest_path_to_it(seed: int, share: bool, unlike: bool) -> None:
    """Starts, ends, departures and arrivals equal the oracle's, with replicas, reductions, slices, lanes and links."""
    # on a link, a tensor that took no time at all would tie with those that it causes, and the oracle could not tell
    case = random_case(seed, least_latency=int(share))
    case = with_unlike_slices(case, seed) if unlike else case
    timeline = simulate(case.schedule, case.pipeline, share=share)
    arcs = lists_and_needs(case.schedule, case.pipeline)
    expected = longest_paths(with_resources(arcs, case.schedule, case.pipeline, timeline if share else None))
    assert moments(timeline, case.pipeline) == expected
    assert timeline.makespan == max(time for (_, name), time in expected.items() if name == "end")
    assert longest_path(case.schedule, case.pipeline, share=share) == timeline.critical
    assert makespan(case.schedule, case.pipeline) == timeline.makespan or not share


@given(seeds)
@settings(max_examples=200)
def test_sharing_resources_never_helps(seed: int) -> None:
    """Without sharing nothing happens later than with it, which makes it a relaxation."""
    case = random_case(seed)
    shared, relaxed = (
        moments(simulate(case.schedule, case.pipeline, share=share), case.pipeline) for share in (True, False)
    )
    assert all(relaxed[moment] <= time for moment, time in shared.items())


@given(seeds)
@settings(max_examples=200)
def test_the_critical_path_explains_the_makespan(seed: int) -> None:
    """Neighbours on the path touch, no item begins before the one ahead of it, and the last one ends the step."""
    case = random_case(seed)
    timeline = simulate(case.schedule, case.pipeline)
    path = timeline.critical
    first, last = path[0], path[-1]
    assert first.start == 0
    assert isinstance(last, Span) and last.end == timeline.makespan
    streams = case.pipeline.overlap is Overlap.STREAM
    for a, b in pairwise(path):
        touching = {a.end} | ({a.arrival} if isinstance(a, TransferSpan) else set())
        if streams and isinstance(b, TransferSpan):
            ways = chain(*case.pipeline.transfers, *case.pipeline.returns)
            touching |= {a.start + w.occupancy for w in ways} if isinstance(a, TransferSpan) else {a.start}
            assert b.start in touching or b.end in touching
        else:
            assert b.start in touching


@given(seeds)
@settings(max_examples=200)
def test_lanes_hold_one_action_at_a_time_in_list_order(seed: int) -> None:
    """No lane of a device overlaps with itself, and each runs its part of the list in order."""
    case = random_case(seed)
    spans = simulate(case.schedule, case.pipeline).spans
    assert [span.start for span in spans] == sorted(span.start for span in spans)
    for device, order in enumerate(case.schedule.orders):
        for lane in (0, 1):
            own = [span for span in spans if (span.device, span.lane) == (device, lane) and span.action.kind is not G]
            listed = [a for a in order if not case.schedule.two_lanes or (a.kind is F) == (lane == 0)]
            assert [span.action for span in own] == (listed if lane == 0 or case.schedule.two_lanes else [])
            assert all(a.end <= b.start for a, b in pairwise(own))


@given(seeds)
@settings(max_examples=200)
def test_the_memory_line_is_the_sum_of_what_lives(seed: int) -> None:
    """At every instant a device holds its residents, its open micro-batches and the running actions' workspace."""
    case = random_case(seed, least_time=1)
    timeline = simulate(case.schedule, case.pipeline)
    instants = sorted({time for span in timeline.spans for time in (span.start, span.end)})
    for device, steps in enumerate(timeline.memory):
        assert steps[0].time == 0
        assert all(a.time < b.time for a, b in pairwise(steps))
        for instant in instants:
            level = [step.held for step in steps if step.time <= instant][-1]
            assert level == living(case, timeline, device, instant)


def living(case: Case, timeline: Timeline, device: int, instant: int) -> int:
    """Bytes on a device just after an instant, counted from the spans alone."""
    when = {span.action: span for span in timeline.spans if span.device == device}
    total = case.pipeline.runtime[device]
    for s, stage in enumerate(case.pipeline.stages):
        total += stage.resident if device in case.pipeline.placement[s] else 0
    for a, span in when.items():
        stage = case.pipeline.stages[a.stage]
        total += stage.workspace if span.start <= instant < span.end and a.kind is not G else 0
        if a.kind is F and span.start <= instant:
            later = stage.held if stage.held_after_input_gradient is None else stage.held_after_input_gradient
            joined, inputs, weights = (when.get(a._replace(kind=kind)) for kind in (B, DX, DW))
            if joined:
                total += stage.held if instant < joined.end else 0
            elif inputs and weights:
                total += (stage.held - later if instant < inputs.end else 0) + (later if instant < weights.end else 0)
    return total


@given(seeds)
@settings(max_examples=300)
def test_counted_memory_is_the_simulated_one(seed: int) -> None:
    """Peaks counted from the lists equal the simulated ones on one lane and bound them on two."""
    case = random_case(seed)
    counted, simulated = validate_memory(case.schedule, case.pipeline), simulate(case.schedule, case.pipeline).peaks
    if case.schedule.two_lanes:
        assert all(a >= b for a, b in zip(counted, simulated, strict=True))
    else:
        assert counted == simulated


@pytest.mark.happens(0.1)
@given(seeds)
@settings(max_examples=400)
def test_orders_that_cannot_finish_are_refused_by_all(seed: int) -> None:
    """After exchanging actions in a list: simulator and validator refuse exactly what the oracle finds circular."""
    case = random_case(seed)
    random = Random(seed)
    orders = [list(order) for order in case.schedule.orders]
    for _ in range(random.randint(1, 3)):
        order = random.choice([order for order in orders if order])
        i = random.randrange(len(order))
        j = random.choice((random.randrange(len(order)), max(i - 1, 0)))  # neighbours often still end
        order[i], order[j] = order[j], order[i]
    schedule = Schedule("exchanged", tuple(map(tuple, orders)), case.schedule.two_lanes)
    one_lane = Schedule("exchanged", schedule.orders)
    size = len(case.pipeline.stages), case.schedule.micro_batches

    if happens(ends(schedule, case.pipeline)):
        simulate(schedule, case.pipeline)
    else:
        with pytest.raises(PlanError, match=r"device \d+ waits at"):
            simulate(schedule, case.pipeline)
    if ends(one_lane, case.pipeline):
        validate_schedule(schedule, *size, case.pipeline.placement, case.pipeline.tied)
        simulate(schedule, case.pipeline)  # what runs on one lane runs on two
    else:
        with pytest.raises(PlanError, match=r"stands ahead of|waits at"):
            validate_schedule(schedule, *size, case.pipeline.placement)


def ends(schedule: Schedule, pipeline: Pipeline) -> bool:
    """Whether no moment waits for itself."""
    try:
        longest_paths(lists_and_needs(schedule, pipeline))
    except CycleError:
        return False
    return True


@given(st.lists(st.tuples(st.integers(70, 130), st.integers(140, 260)), min_size=1, max_size=6), st.data())
@settings(max_examples=200)
def test_the_closed_form_bounds_the_doubled_warm_up(times: list[tuple[int, int]], data: st.DataObject) -> None:
    """1F1B-SO on stages within 30 % of each other takes at most Σ (F + B) + 2 Σ SR + (M − 1) max (F + B)."""
    slowest = max(f + b for f, b in times)
    micro_batches, latency = data.draw(st.integers(1, 20)), data.draw(st.integers(0, slowest // 2))
    pipeline = line(len(times), 0, 0, latency=latency, times=times)
    bound = sum(f + b for f, b in times) + 2 * latency * (len(times) - 1) + (micro_batches - 1) * slowest
    assert simulate(FAMILIES["1f1b-so"].write((1,) * len(times), micro_batches), pipeline).makespan <= bound


def test_the_closed_form_bounds_nothing_where_stages_differ_in_kind() -> None:
    """One stage with a backward only and one with a forward only take longer: their times do not hide each other."""
    pipeline = line(3, 0, 0, times=[(0, 1), (1, 0), (0, 0)])
    assert simulate(FAMILIES["1f1b-so"].write((1,) * 3, 2), pipeline).makespan == 4  # the closed form says 3
