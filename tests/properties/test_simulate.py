"""The simulator against a naive oracle, and path cuts against the simulator, on random pipelines and orders."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeplan.core.cluster import Overlap
from pipeplan.core.errors import PlanError
from pipeplan.core.pipeline import Pipeline, Stage, Transfer
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.core.timeline import Timeline
from pipeplan.core.validate import validate_schedule
from pipeplan.costs.chain import UNLIMITED
from pipeplan.schedules import FAMILIES
from pipeplan.search.path_cuts import as_cut
from pipeplan.simulate import simulate

F, B, U = Kind.FORWARD, Kind.BACKWARD, Kind.UPDATE


@st.composite
def pipelines(draw: st.DrawFn, stages: int, overlap: Overlap, latency: int = 1) -> Pipeline:
    """Every boundary has a link of its own in each direction."""
    number = st.integers(0, 9)

    def ways(name: str) -> tuple[tuple[Transfer, ...], ...]:
        return tuple((Transfer(1, draw(number), latency, (f"{name} {s}",)),) for s in range(stages - 1))

    return Pipeline(
        stages=tuple(
            Stage(draw(number), draw(number), update=draw(number), resident=draw(number), held=draw(number))
            for _ in range(stages)
        ),
        placement=tuple((s,) for s in range(stages)),
        transfers=ways("down"),
        returns=ways("up"),
        overlap=overlap,
        runtime=(0,) * stages,
        limits=(UNLIMITED,) * stages,
    )


@st.composite
def random_orders(draw: st.DrawFn, stages: int, micro_batches: int) -> Schedule:
    """Any order of forwards and backwards that can be played to the end, by playing one at random."""
    orders: list[list[Action]] = [[] for _ in range(stages)]
    done: set[tuple[Kind, int, int]] = set()
    while len(done) < 2 * stages * micro_batches:
        ready = [
            (kind, s, m)
            for s in range(stages)
            for m in range(micro_batches)
            for kind in (F, B)
            if (kind, s, m) not in done
            and (s == 0 or (F, s - 1, m) in done if kind is F else (F, s, m) in done)
            and (kind is F or s == stages - 1 or (B, s + 1, m) in done)
        ]
        kind, s, m = ready[draw(st.integers(0, len(ready) - 1))]
        done.add((kind, s, m))
        orders[s].append(Action(kind, s, m))
    return Schedule("random", tuple((*order, Action(U, s)) for s, order in enumerate(orders)))


def naive(schedule: Schedule, pipeline: Pipeline) -> dict[Action, tuple[int, int]]:
    """Start and end of every action, by repeating the rules until nothing changes. One lane, links of their own."""
    actions = list(schedule.actions())
    last = len(pipeline.stages) - 1
    mode = pipeline.overlap
    start = dict.fromkeys(actions, 0)
    sent: dict[Action, tuple[int, int]] = {}  # when the link is taken, when the tensor has left

    def duration(action: Action) -> int:
        stage = pipeline.stages[action.stage]
        return {F: stage.forward, B: stage.backward, U: stage.update}[action.kind]

    def way(action: Action) -> Transfer | None:
        if action.kind is F and action.stage < last:
            return pipeline.transfers[action.stage][0]
        if action.kind is B and action.stage > 0:
            return pipeline.returns[action.stage - 1][0]
        return None

    def arrival(action: Action) -> int:
        transfer = way(action)
        assert transfer is not None
        return sent[action][1] + transfer.latency

    for _ in range(4 * len(actions) + 4):
        before = (dict(start), dict(sent))
        for order in schedule.orders:
            link_free = {F: 0, B: 0}
            free = 0
            for action in order:
                wait = [free]
                if action.kind is F and action.stage > 0:
                    source = Action(F, action.stage - 1, action.micro_batch)
                    wait.append(arrival(source) if source in sent else 0)
                if action.kind is B:
                    own = Action(F, action.stage, action.micro_batch)
                    wait.append(start[own] + duration(own))
                    if action.stage < last:
                        source = Action(B, action.stage + 1, action.micro_batch)
                        wait.append(arrival(source) if source in sent else 0)
                start[action] = max(wait)
                end = start[action] + duration(action)
                transfer = way(action)
                free = end
                if transfer is not None:
                    taken = max(start[action] if mode is Overlap.STREAM else end, link_free[action.kind])
                    left = max(end, taken + transfer.occupancy)
                    sent[action] = (taken, left)
                    link_free[action.kind] = left
                    if mode is Overlap.NONE:
                        free = left
        if before == (start, sent):
            return {action: (start[action], start[action] + duration(action)) for action in actions}
    raise AssertionError("the oracle did not settle")


def memory_peaks(timeline: Timeline, pipeline: Pipeline) -> tuple[int, ...]:
    """Peak bytes counted from spans: a micro-batch is held from the start of F to the end of B."""
    peaks = []
    for device, stage in enumerate(pipeline.stages):
        events = []
        for span in timeline.spans:
            if span.device == device and span.action.kind in (F, B):
                events.append((span.start, 1, stage.held) if span.action.kind is F else (span.end, 0, -stage.held))
        held = peak = stage.resident
        for _, _, change in sorted(events):
            held += change
            peak = max(peak, held)
        peaks.append(peak)
    return tuple(peaks)


@given(st.data())
@settings(max_examples=300)
def test_the_simulator_equals_the_naive_oracle(data: st.DataObject) -> None:
    """Every start and end, under every overlap, for any order that can be played; and the memory peak."""
    stages, micro_batches = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    pipeline = data.draw(pipelines(stages, data.draw(st.sampled_from(list(Overlap)))))
    schedule = data.draw(random_orders(stages, micro_batches))
    validate_schedule(schedule, stages, micro_batches)
    timeline = simulate(schedule, pipeline)
    expected = naive(schedule, pipeline)
    assert {span.action: (span.start, span.end) for span in timeline.spans} == expected
    assert timeline.makespan == max(end for _, end in expected.values())
    if all(stage.forward and stage.backward for stage in pipeline.stages):
        assert timeline.peaks == memory_peaks(timeline, pipeline)


@given(st.data())
@settings(max_examples=300)
def test_a_path_cut_is_exact_where_it_was_found_and_a_bound_elsewhere(data: st.DataObject) -> None:
    """The cut's value is the makespan at its own times, and never above the makespan at any other times."""
    stages, micro_batches = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    overlap = data.draw(st.sampled_from(list(Overlap)))
    family = FAMILIES[data.draw(st.sampled_from(sorted(FAMILIES)))]
    schedule = family.write((1,) * stages, micro_batches)
    here, there = (data.draw(pipelines(stages, overlap)) for _ in range(2))
    timeline = simulate(schedule, here, share=False)
    cut = as_cut(timeline.critical, here, schedule)

    def value(pipeline: Pipeline) -> int:
        times = [[getattr(s, name) for s in pipeline.stages] for name in ("forward", "backward", "update", "reduce")]
        sends = [[way.occupancy for (way,) in ways] for ways in (pipeline.transfers, pipeline.returns)]
        return int(cut.length(*times, *sends))

    assert value(here) == timeline.makespan
    assert value(there) <= simulate(schedule, there).makespan


@given(st.data())
@settings(max_examples=100)
def test_broken_schedules_are_refused(data: st.DataObject) -> None:
    """A schedule from which an action is taken, or in which two are exchanged so that they block, raises PlanError."""
    stages, micro_batches = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    schedule = data.draw(random_orders(stages, micro_batches))
    device = data.draw(st.integers(0, stages - 1))
    order = list(schedule.orders[device])
    if data.draw(st.booleans()):
        del order[data.draw(st.integers(0, len(order) - 2))]
    else:
        m = data.draw(st.integers(0, micro_batches - 1))
        i, j = order.index(Action(F, device, m)), order.index(Action(B, device, m))
        order[i], order[j] = order[j], order[i]
    orders = (*schedule.orders[:device], tuple(order), *schedule.orders[device + 1 :])
    assume(orders != schedule.orders)
    with pytest.raises(PlanError):
        validate_schedule(Schedule("broken", orders), stages, micro_batches)
