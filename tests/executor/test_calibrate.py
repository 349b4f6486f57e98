"""Calibration from simulated time lines with known times."""

from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.instances import equal_devices, model_of
from helpers.plans import with_teams
from pipeplan import solve
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node
from pipeplan.core.errors import InputError, PlanError
from pipeplan.core.job import Job
from pipeplan.core.model import Layer, Model, Tie, Work
from pipeplan.core.pipeline import Pipeline, Placement, Stage, exposed
from pipeplan.core.plan import MemoryParts, Plan, PlanStage
from pipeplan.core.schedule import Kind, Schedule
from pipeplan.core.shared_weights import with_reductions
from pipeplan.core.timeline import Span, Timeline
from pipeplan.costs.assembly import assemble
from pipeplan.costs.pricing import price
from pipeplan.io.cluster_file import read_cluster, write_cluster
from pipeplan.io.model_file import read_model, write_model
from pipeplan.schedules import FAMILIES, PLACED
from pipeplan.schedules.placed import vee
from pipeplan.simulate import simulate
from pipeplan_executor.calibrate import Observed, Route, calibrated, observed, repriced
from pipeplan_executor.calibrate.calibration import check_belongs
from pipeplan_executor.calibrate.costs import apportion
from pipeplan_executor.calibrate.report import as_json, as_text

MILLI = 10**6
ROUNDING = 2_000
"""Nanoseconds: every layer and every tensor is rounded once."""


def plan_of(
    model: Model, cluster: Cluster, cuts: list[int], homes: Placement, schedule: Schedule, zero1: bool = False
) -> Plan:
    """Stages cut at ``cuts`` on these devices, the first layer recomputed."""
    boundaries = (0, *cuts, len(model.layers))
    groups = [tuple(cluster.devices[device] for device in own) for own in homes]
    job = Job(batch=schedule.micro_batches, zero=(int(zero1),))
    chain = price(model, cluster, groups, 1, job)
    apart = assemble(chain, cluster, boundaries, [[0], *[[]] * (len(homes) - 1)])
    ranks = len(cluster.devices)
    pipeline = replace(apart, placement=homes, runtime=(0,) * ranks, limits=apart.limits[:ranks])
    return Plan(
        model=model.name,
        fingerprint=model.fingerprint,
        cluster=cluster.name,
        device_kinds=tuple(device.kind.name for device in cluster.devices),
        micro_batch=1,
        micro_batches=schedule.micro_batches,
        optimizer="sgd",
        stages=tuple(
            PlanStage(model.names[a:b], own, 0, 0, 0, MemoryParts(), recompute=() if a else model.names[:1])
            for (a, b), own in zip(pairwise(boundaries), homes, strict=True)
        ),
        schedule=schedule,
        ranks=tuple(range(ranks)),
        step_time=simulate(schedule, pipeline).makespan,
        bound=0,
        pipeline=pipeline,
        zero=int(zero1),
    )


def real(pipeline: Pipeline, factors: list[float], way: float, sums: float, gap: int) -> Pipeline:
    """The pipeline as it would really be: stages, links and reductions of other speeds, a gap before every action."""

    def stage(old: Stage, factor: float) -> Stage:
        times = ("forward", "backward", "input_gradient", "weight_gradient", "update")
        slower = {name: round(getattr(old, name) * factor) + gap for name in times}
        buckets, gathers = (
            tuple(replace(each, ready=round(each.ready * factor), time=round(each.time * sums)) for each in row)
            for row in (old.buckets, old.gather_buckets)
        )  # their latency too, which is little
        reduce = exposed(buckets) if buckets else round(old.reduce * sums)
        gather = exposed(gathers) if gathers else round(old.gather * sums)
        return replace(old, **slower, reduce=reduce + gap, gather=gather, buckets=buckets, gather_buckets=gathers)

    def slower(row: tuple) -> tuple:
        return tuple(
            tuple(replace(t, occupancy=round(t.occupancy * way), latency=round(t.latency * way)) for t in ways)
            for ways in row
        )

    return replace(
        pipeline,
        stages=tuple(map(stage, pipeline.stages, factors)),
        transfers=slower(pipeline.transfers),
        returns=slower(pipeline.returns),
    )


def as_recorded(timeline: Timeline, gap: int) -> Timeline:
    """Recorded time line of a simulated one: actions begin after their gaps, and first forwards wait for gathers."""
    gathers = {span.device: span.end for span in timeline.spans if span.action.kind is Kind.GATHER}
    arrivals = {(flight.target, flight.micro_batch): flight.arrival for flight in reversed(timeline.transfers)}

    def recorded(span: Span) -> Span:
        kind, stage, micro_batch, _ = span.action
        if kind is Kind.FORWARD and span.start == gathers.get(span.device):
            span = span._replace(start=arrivals[stage, micro_batch] if stage else 0)
        return span._replace(start=span.start + gap)

    own = (span for span in timeline.spans if span.action.kind is not Kind.GATHER)
    return replace(timeline, spans=tuple(map(recorded, own)))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Plan, Model, Cluster, Pipeline, int]:
    """A plan, what it was solved with, what its pipeline really is, and the gap before its actions."""
    devices, count = draw(st.integers(1, 3)), draw(st.integers(2, 6))
    name = draw(st.sampled_from(["gpipe", "1f1b-sno", "replicas", "zb-h1", "zb-v"]))
    homes: Placement = tuple((device,) for device in range(devices))
    if name == "replicas":
        homes = tuple((2 * device, 2 * device + 1) for device in range(devices))
        schedule = FAMILIES["1f1b-sno"].write((2,) * devices, 2 * count)
    elif name in PLACED:
        homes = vee(devices) if name == "zb-v" else homes
        schedule = PLACED[name].write(devices, max(count, 2 * devices))
    else:
        schedule = FAMILIES[name].write((1,) * devices, count)
    sizes = draw(st.lists(st.integers(1, 3), min_size=len(homes), max_size=len(homes)))
    layers = sum(sizes)
    times = st.lists(st.integers(MILLI, 20 * MILLI), min_size=layers, max_size=layers)
    model = model_of(
        draw(times), draw(times), output=[10_000] * layers, parameters=[10**6] * layers, update=[MILLI] * layers
    )
    ranks = max(device for own in homes for device in own) + 1
    cluster = equal_devices(ranks, link=Link(10**8, 20_000))
    plan = plan_of(model, cluster, list(accumulate(sizes))[:-1], homes, schedule)
    speeds = st.floats(0.5, 3.0)
    factors = draw(st.lists(speeds, min_size=len(homes), max_size=len(homes)))
    gap = draw(st.sampled_from([0, 100_000, 400_000]))
    return plan, model, cluster, real(plan.pipeline, factors, draw(speeds), draw(speeds), gap), gap


@settings(max_examples=60, deadline=None)
@given(cases())
def test_known_times_are_recovered(case: tuple[Plan, Model, Cluster, Pipeline, int]) -> None:
    """After calibration every stage takes what it really takes, and the step too, whatever was predicted before."""
    plan, model, cluster, truth, gap = case
    timeline = simulate(plan.schedule, truth)
    seen = observed([as_recorded(timeline, gap)] * 2, [timeline.makespan] * 2, tied=plan.pipeline.tied)
    found = calibrated(plan, model, cluster, seen)
    now = repriced(plan, found.model, found.cluster)
    ran = {(action.kind, action.stage) for action in plan.schedule.actions()}
    names = {"F": "forward", "B": "backward", "I": "input_gradient", "W": "weight_gradient", "U": "update"}
    for kind, s in ran:
        if kind in names:
            more = gap * (kind is Kind.UPDATE and (Kind.REDUCE, s) in ran)  # the reduction's gap counts as the update's
            known = getattr(truth.stages[s], names[kind]) + more
            assert getattr(now.stages[s], names[kind]) == pytest.approx(known, rel=0.01, abs=ROUNDING)
    assert found.after.step_time == pytest.approx(timeline.makespan, rel=0.001, abs=ROUNDING)


@settings(max_examples=30, deadline=None)
@given(cases(), st.randoms(use_true_random=False))
def test_steps_that_vary_are_predicted(case: tuple[Plan, Model, Cluster, Pipeline, int], random: Random) -> None:
    """The prediction is the median step also if every action takes up to a third longer, at random."""
    plan, model, cluster, truth, gap = case
    timelines, times = [], []
    for _ in range(5):
        step = simulate(plan.schedule, scattered(truth, random))
        timelines.append(as_recorded(step, gap))
        times.append(step.makespan)
    found = calibrated(plan, model, cluster, observed(timelines, times))
    assert found.after.step_time == pytest.approx(median(times), rel=0.01)


def scattered(pipeline: Pipeline, random: Random) -> Pipeline:
    """Stages that are slower in this step."""
    return replace(
        pipeline,
        stages=tuple(
            replace(
                stage,
                **{
                    name: round(getattr(stage, name) * random.uniform(1, 4 / 3))
                    for name in ("forward", "backward", "input_gradient", "weight_gradient", "update")
                },
            )
            for stage in pipeline.stages
        ),
    )


def one_case(cut: int = 2) -> tuple[Plan, Model, Cluster, Observed]:
    """Two stages of 1F1B whose second one is twice as slow as predicted, and whose tensors take thrice as long."""
    model = model_of(
        [4 * MILLI, 6 * MILLI, 9 * MILLI], output=[50_000] * 3, parameters=[10**6] * 3, update=[MILLI] * 3, sizes=(1, 2)
    )
    cluster = equal_devices(2, link=Link(10**8, 20_000))
    plan = plan_of(model, cluster, [cut], ((0,), (1,)), FAMILIES["1f1b-sno"].write((1, 1), 4))
    timeline = simulate(plan.schedule, real(plan.pipeline, [1.0, 2.0], 3.0, 1.0, 50_000))
    peaks = tuple(peak + 7_000 for peak in simulate(plan.schedule, plan.pipeline).peaks)
    return plan, model, cluster, observed([as_recorded(timeline, 50_000)], [timeline.makespan], peaks)


@pytest.mark.parametrize(("width", "zero1"), [(1, False), (2, False), (2, True)])
def test_copies_of_shared_weights_and_shares_of_updates_are_recovered(width: int, zero1: bool) -> None:
    """The predicted step is right also with shared weights on several stages, and with ZeRO-1."""
    plain = model_of(
        [4 * MILLI, 6 * MILLI, 9 * MILLI], output=[10_000] * 3, parameters=[10**6] * 3, update=[MILLI, 0, 0]
    )
    model = replace(plain, ties=(Tie(("l0", "l2"), 10**6),))
    cluster = equal_devices(2 * width, link=Link(10**8, 20_000))
    homes = tuple(tuple(range(width * s, width * (s + 1))) for s in range(2))
    schedule = with_reductions(FAMILIES["1f1b-sno"].write((width, width), 4), [(0, 1)])
    plan = plan_of(model, cluster, [1], homes, schedule, zero1)
    timeline = simulate(schedule, real(plan.pipeline, [1.5, 1.5], 2.0, 1.8, 30_000))
    recorded = [as_recorded(timeline, 30_000)]
    seen = observed(recorded, [timeline.makespan], tied=plan.pipeline.tied, gathers=zero1)
    found = calibrated(plan, model, cluster, seen)
    assert found.after.step_time == pytest.approx(timeline.makespan, rel=0.001)
    assert found.stretch == pytest.approx(1, rel=0.02)


def test_files_keep_a_calibration(tmp_path: Path) -> None:
    """A calibrated model and cluster that were written and read again predict the same step, and say what they are."""
    plan, model, cluster, seen = one_case()
    found = calibrated(plan, model, cluster, seen)
    write_model(found.model, tmp_path / "model.yaml")
    write_cluster(found.cluster, tmp_path / "cluster.yaml")
    read, on = read_model(tmp_path / "model.yaml"), read_cluster(tmp_path / "cluster.yaml")
    step = simulate(plan.schedule, repriced(plan, read, on)).makespan
    assert abs(step - seen.step_time) <= seen.step_time // 1000
    assert (
        "calibrated from 1 step of a 1f1b-sno plan (2 stages, 4 micro-batches of 1)"
        in read.profiles[0].provenance.source
    )
    assert any("calibrated" in note for note in on.notes)
    assert read.fingerprint == model.fingerprint


def test_a_second_calibration_names_the_first_source_once() -> None:
    """Calibrating what was calibrated changes nothing more, and its account still ends with where numbers came from."""
    plan, model, cluster, seen = one_case()
    first = calibrated(plan, model, cluster, seen)
    again = calibrated(plan, first.model, first.cluster, seen)
    assert abs(again.after.step_time - first.after.step_time) <= ROUNDING
    assert again.model.profiles[0].provenance == first.model.profiles[0].provenance
    assert again.model.profiles[0].provenance.source.count("before: ") == 1


def test_other_sizes_are_scaled_alike() -> None:
    """A micro-batch size that did not run keeps its ratio to the one that did, layer by layer."""
    plan, model, cluster, seen = one_case()
    one, two = calibrated(plan, model, cluster, seen).model.profiles
    for name in ("forward", "backward", "input_gradient", "weight_gradient"):
        for small, large in zip(one.costs, two.costs, strict=True):
            assert abs(getattr(large, name) - 2 * getattr(small, name)) <= 4


def test_layers_of_a_stage_keep_their_ratios() -> None:
    """Within a stage only the sum changes; layers of the slower stage grow more."""
    plan, model, cluster, seen = one_case()
    now = [cost.forward for cost in calibrated(plan, model, cluster, seen).model.profiles[0].costs]
    assert now[0] * 6 == pytest.approx(now[1] * 4, rel=1e-6)
    assert now == pytest.approx([4 * MILLI + 20_000, 6 * MILLI + 30_000, 18 * MILLI + 50_000])


def test_a_constant_of_memory_is_the_runtimes() -> None:
    """Memory above the simulated peaks counts as the runtime's, and then the peaks agree."""
    plan, model, cluster, seen = one_case()
    found = calibrated(plan, model, cluster, seen)
    assert found.cluster.devices[0].kind.runtime == 7_000
    assert found.after.peaks == seen.peaks


def test_kinds_of_device_are_calibrated_apart() -> None:
    """Each kind's profile takes what its own stages took; layers that it did not run are scaled like those it ran."""
    model = model_of([4 * MILLI, 4 * MILLI], kinds=("fast", "slow"), update=[MILLI, MILLI])
    kinds = {name: DeviceKind(name) for name in ("fast", "slow")}
    cluster = Cluster("two", kinds, (Node(("fast", "slow"), Link(10**9, 0)),))
    plan = plan_of(model, cluster, [1], ((0,), (1,)), FAMILIES["gpipe"].write((1, 1), 2))
    timeline = simulate(plan.schedule, real(plan.pipeline, [2.0, 3.0], 1.0, 1.0, 0))
    found = calibrated(plan, model, cluster, observed([timeline], [timeline.makespan]))
    assert {profile.device: [cost.forward for cost in profile.costs] for profile in found.model.profiles} == {
        "fast": [8 * MILLI, 8 * MILLI],
        "slow": [12 * MILLI, 12 * MILLI],
    }


def test_estimated_models_get_profiles() -> None:
    """A model without profiles has them afterwards, for every size that plans may choose."""
    work = Work(10**6, 10**6, 10**6, 1000, 1000)
    model = Model("estimated", (Layer("a", 4000, (), work), Layer("b", 4000, ("a",), work)))
    kind = DeviceKind("unit", peak={"float32": 10**9}, bandwidth=10**9)
    cluster = Cluster.uniform(2, kind, Link(10**8, 0))
    plan = plan_of(model, cluster, [1], ((0,), (1,)), FAMILIES["gpipe"].write((1, 1), 4))
    timeline = simulate(plan.schedule, real(plan.pipeline, [2.0, 2.0], 1.0, 1.0, 0))
    found = calibrated(plan, model, cluster, observed([timeline], [timeline.makespan]))
    assert [profile.micro_batch for profile in found.model.profiles] == [1, 2, 4]
    assert abs(found.after.step_time - timeline.makespan) <= ROUNDING


def test_a_better_plan_is_reported() -> None:
    """With the true costs another partition wins, as the report says; calibrated again for it, nothing is better."""
    plan, model, cluster, seen = one_case(1)
    found = calibrated(plan, model, cluster, seen)
    best = solve(found.model, found.cluster, batch=4, depths=(2,), micro_batches=(4,), schedules=("1f1b-sno",))
    assert best.plan.boundaries == (0, 2, 3)
    assert best.plan.step_time < found.after.step_time
    text = as_text(plan, found, best)
    assert "another plan is best now" in text
    assert "2 stages, layers 2 | 1, 4 micro-batches of 1, 1f1b-sno; it was 2 stages, layers 1 (1 again) | 2" in text
    assert "rank 1: gap of 50 us before an action" in text
    report = as_json(plan, found, best)
    assert report["best"]["better"] is True  # type: ignore[index]
    assert report["measured_step_time_s"] == seen.step_time / 1e9
    timeline = simulate(best.plan.schedule, best.plan.pipeline)
    again = calibrated(best.plan, found.model, found.cluster, observed([timeline], [timeline.makespan]))
    assert "the plan stays" in as_text(best.plan, again, best)


def test_waiting_is_no_gap() -> None:
    """Waiting for a tensor counts neither as the rank's gap nor as any action's time."""
    plan, _, _, seen = one_case()
    assert seen.gaps == (50_000, 50_000)
    transfer = plan.pipeline.transfers[0][0]
    took = 3 * (transfer.occupancy + transfer.latency) + 50_000
    assert set(seen.transfers.values()) == {took}
    assert set(seen.transfers) == {Route(0, 1, 0, 1), Route(1, 0, 1, 0)}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=20), st.integers(0, 10**13))
def test_parts_sum_to_the_total(parts: list[int], total: int) -> None:
    """Apportioned integers sum exactly, and none is more than a nanosecond off its ratio."""
    found = apportion(parts, total)
    assert sum(found) == total
    whole = sum(parts)
    if whole:
        assert all(abs(new * whole - old * total) < whole for new, old in zip(found, parts, strict=True))


def test_what_does_not_belong_is_refused() -> None:
    """Another model, other devices, passes that wait for collectives, teams, or no step at all are named."""
    plan, model, cluster, seen = one_case()
    with pytest.raises(PlanError, match=r"a team of 2 devices, whose passes .* calibrate with a plan without teams"):
        calibrated(with_teams(plan, 2), model, cluster, seen)
    with pytest.raises(PlanError, match="another model"):
        calibrated(plan, model_of([1, 2, 3], parameters=[5, 6, 7]), cluster, seen)
    with pytest.raises(PlanError, match="2 x unit, and 3 x unit has 3 x unit"):
        calibrated(plan, model, equal_devices(3), seen)
    with pytest.raises(PlanError, match="at level 3 of ZeRO forwards and backwards wait"):
        calibrated(replace(plan, zero=3, stages=(replace(plan.stages[0], devices=(0, 1)),)), model, cluster, seen)
    with pytest.raises(InputError, match="--steps"):
        observed([], [])


@given(st.permutations(["fast", "slow", "fast", "slower"]))
@settings(max_examples=20, deadline=None)
def test_a_plan_is_calibrated_only_with_its_devices_in_their_order(row: list[str]) -> None:
    """The same devices in another order would get each other's speeds."""
    plan, model, _, _ = one_case()
    kinds = {"fast": DeviceKind("fast"), "slow": DeviceKind("slow"), "slower": DeviceKind("slower")}
    cluster = Cluster("mixed", kinds, (Node(tuple(row), Link()),))
    planned = replace(plan, device_kinds=("fast", "slow", "fast", "slower"))
    if tuple(row) == planned.device_kinds:
        check_belongs(planned, model, cluster)
        return
    with pytest.raises(PlanError, match="was made for the devices"):
        check_belongs(planned, model, cluster)
