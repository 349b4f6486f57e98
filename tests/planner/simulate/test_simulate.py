"""Simulated times and memory that can be checked by hand."""

from dataclasses import replace

import pytest

from helpers.pipelines import line
from pipeplan.core.cluster import Overlap
from pipeplan.core.errors import PlanError
from pipeplan.core.pipeline import Pipeline, Stage
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.schedules import FAMILIES
from pipeplan.simulate import simulate

SIZES = [(n, m) for n in (1, 2, 3, 4, 8) for m in (1, 2, 4, 8, 32)]
FORWARD, BACKWARD = 10, 20


def step(family: str, stages: int, micro_batches: int, **how: object) -> int:
    """Makespan on equal stages."""
    pipeline: Pipeline = line(stages, FORWARD, BACKWARD, **how)  # type: ignore[arg-type]
    return simulate(FAMILIES[family].write((1,) * stages, micro_batches), pipeline).makespan


@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize("family", ["gpipe", "1f1b-sno", "1f1b-as"])
def test_free_links_take_m_plus_n_minus_one_rounds(family: str, n: int, m: int) -> None:
    """GPipe and 1F1B on equal stages with free links take (M + N − 1)(F + B)."""
    assert step(family, n, m) == (m + n - 1) * (FORWARD + BACKWARD)


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_two_lanes_take_m_plus_2n_minus_one_rounds(n: int, m: int) -> None:
    """FBP, where either lane takes F + B, needs (M + 2N − 1)(F + B)."""
    assert step("fbp-as", n, m, overlap=Overlap.STREAM) == (m + 2 * n - 1) * (FORWARD + BACKWARD)


@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize("latency", [1, 3, 10, 15])
def test_doubled_warm_up_hides_transfers(n: int, m: int, latency: int) -> None:
    """1F1B-SO takes (M + N − 1)(F + B) + (N − 1) 2 SR as long as SR ≤ (F + B) / 2."""
    assert latency <= (FORWARD + BACKWARD) / 2
    assert step("1f1b-so", n, m, latency=latency) == (m + n - 1) * (FORWARD + BACKWARD) + (n - 1) * 2 * latency


@pytest.mark.parametrize(("n", "m"), [(n, m) for n in (2, 4, 8) for m in (8, 32)])
@pytest.mark.parametrize("latency", [1, 3])
def test_minimal_warm_up_pays_for_transfers(n: int, m: int, latency: int) -> None:
    """1F1B with N − i + 1 in flight takes (M + N − 1)(F + B) + 2 SR ((N − 1) M / N + N − 2) even on free links."""
    expected = (m + n - 1) * (FORWARD + BACKWARD) + 2 * latency * ((n - 1) * m // n + n - 2)
    assert step("1f1b-sno", n, m, latency=latency) == expected


def test_beyond_the_hiding_condition_the_closed_form_breaks() -> None:
    """With N = 4, M = 32, F = 1, B = 2, SR = 2 the simulated step takes 130, the closed form says 117."""
    pipeline = line(4, 1, 2, latency=2)
    assert simulate(FAMILIES["1f1b-so"].write((1,) * 4, 32), pipeline).makespan == 130


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_one_micro_batch_goes_there_and_back(n: int) -> None:
    """M = 1 takes N (F + B) + 2 (N − 1) SR under every family and overlap that does not stream."""
    for family in ("gpipe", "1f1b-sno", "1f1b-so"):
        for overlap in (Overlap.NONE, Overlap.COPY):
            assert step(family, n, 1, occupancy=3, overlap=overlap) == n * (FORWARD + BACKWARD) + 2 * (n - 1) * 3


@pytest.mark.parametrize("n", [3, 4, 6])
def test_blocking_transfers_slow_every_micro_batch(n: int) -> None:
    """With a waiting sender, a further micro-batch costs at least F + B + 2 SR on a device with two neighbours."""
    m, sr = 64, 3
    longer = step("1f1b-sno", n, m + n, occupancy=sr, overlap=Overlap.NONE)
    shorter = step("1f1b-sno", n, m, occupancy=sr, overlap=Overlap.NONE)
    assert longer - shorter >= n * (FORWARD + BACKWARD + 2 * sr)


def test_streamed_tensors_hide_under_compute() -> None:
    """A tensor that takes no longer than its action costs nothing where it leaves while it is made."""
    assert step("1f1b-as", 4, 8, occupancy=FORWARD, overlap=Overlap.STREAM) == (8 + 3) * (FORWARD + BACKWARD)


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 5), (4, 3), (4, 16), (5, 32)])
def test_in_flight_counts_are_what_the_family_says(family: str, n: int, m: int) -> None:
    """The most micro-batches that a stage holds on the time line is the family's count."""
    overlap = Overlap.STREAM if FAMILIES[family].two_lanes else Overlap.COPY
    timeline = simulate(FAMILIES[family].write((1,) * n, m), line(n, FORWARD, BACKWARD, held=1, overlap=overlap))
    assert timeline.peaks == FAMILIES[family].in_flight((1,) * n, m)


def test_unequal_stages_are_bounded_by_the_largest() -> None:
    """Σ (F + B) + 2 Σ SR + (M − 1) max (F + B) is no less than the time under a doubled warm-up."""
    stages = [(3, 5), (7, 9), (2, 6), (5, 5)]
    pipeline = line(4, 0, 0, latency=2, times=stages)
    makespan = simulate(FAMILIES["1f1b-so"].write((1,) * 4, 12), pipeline).makespan
    assert makespan <= sum(f + b for f, b in stages) + 2 * 3 * 2 + 11 * max(f + b for f, b in stages)


def test_shared_cards_serve_one_tensor_at_a_time() -> None:
    """Two boundaries that share a card take turns; with links of their own they do not."""
    pipeline = line(3, 1, 1, occupancy=10, resource="card")
    schedule = FAMILIES["gpipe"].write((1,) * 3, 4)
    assert simulate(schedule, pipeline).makespan > simulate(schedule, pipeline, share=False).makespan


def test_a_deadlock_is_named() -> None:
    """Lists that wait for each other raise an error that says who waits for what."""
    f, b = Kind.FORWARD, Kind.BACKWARD
    schedule = Schedule("wrong", ((Action(f, 0), Action(b, 0)), (Action(b, 1), Action(f, 1))))
    with pytest.raises(PlanError, match="1B0"):
        simulate(schedule, line(2, 1, 1))


@pytest.mark.parametrize(("stages", "more"), [(8, 0), (10, 2)])
def test_a_deadlock_of_many_devices_names_some(stages: int, more: int) -> None:
    """Every device has its backward first, which waits for the forward behind it: eight of them are listed."""
    schedule = Schedule.from_text("wrong", [f"{s}B0 {s}F0" for s in range(stages)])
    with pytest.raises(PlanError, match=f"0 of {2 * stages} actions run") as error:
        simulate(schedule, line(stages, 1, 1))
    lines = str(error.value).splitlines()[1:-1]
    waits = [
        f"  device {s} waits at {s}B0 for the end of {s}F0, which is 1 actions further down its list on device {s}"
        for s in range(8)
    ]
    assert lines == [*waits, *[f"  and {more} more"] * (more > 0)]


@pytest.mark.parametrize(
    ("lists", "fault"),
    [
        (["0F0 0I0 0F1 0B1 0U"], "missing 0W0"),
        (["0F0 0B0 0B1 0U"], "missing 0F1"),
        (["0F0 0F1 0B1 0U"], "missing 0B0"),
        (["0F0"], "need at least 2 forwards and backwards, there are 1 actions"),
        (["0F0 0B0 0W0 0U"], "0W0 stands beside the joined 0B0"),
        (["0F0 0B0 0I0 0W0"], "0I0 is there twice, or beside another backward"),
        (["0F0 0B0 0F0 0B0"], "0F0 is there twice"),
        (["0F0 0B0 0R 0U", "0F1 0B1 0U"], "missing 0R on device 1"),
        (["0F0 0B0 0F1 0B1 0U", "0U"], "0F1 stands in device 0's list"),
    ],
)
def test_lists_that_lack_or_double_actions_are_refused(lists: list[str], fault: str) -> None:
    """The first one that is wrong is named."""
    one = line(1, 1, 1)
    pipeline = replace(one, placement=(tuple(range(len(lists))),), runtime=(0,) * len(lists), limits=(9,) * len(lists))
    with pytest.raises(PlanError, match=fault):
        simulate(Schedule.from_text("wrong", lists), pipeline)


def test_slices_may_take_different_times() -> None:
    """Two stages, one micro-batch of two slices: the second forward is twice the first; a third slice has no time."""
    lists = [f"{s}F0 {s}F0.1 {s}B0.1 {s}B0" for s in range(2)]
    pipeline = line(2, (10, 20), (20, 40))
    assert simulate(Schedule.from_text("sliced", lists), pipeline).makespan == (10 + 20 + 20) + (40 + 40 + 20)
    stage = replace(pipeline.stages[0], update=5)
    assert (stage.duration(Kind.FORWARD, 1), stage.least(Kind.FORWARD), stage.slices) == (20, 10, 2)
    assert stage.total(Kind.FORWARD, Kind.BACKWARD, Kind.UPDATE) == 30 + 60 + 5
    slower = stage.with_durations(lambda kind, part: stage.duration(kind, part) * (3 + part))
    passes = (Kind.FORWARD, Kind.BACKWARD)
    assert [[slower.duration(kind, part) for part in range(2)] for kind in passes] == [[30, 80], [60, 160]]
    assert slower.duration(Kind.UPDATE) == 15
    three = Schedule.from_text("sliced", ["0F0 0F0.1 0F0.2 0B0.2 0B0.1 0B0"])
    with pytest.raises(PlanError, match="stage 0 has times for 2 slices, the schedule has 3"):
        simulate(three, line(1, (10, 20), (20, 40)))


def test_a_device_of_several_stages_waits_for_the_parameters_of_all() -> None:
    """Stages 0 and 2 lie on device 0, and gather for 5 and 9 ns: nothing runs there before."""
    stages = (Stage(1, 1, gather=5), Stage(1, 1), Stage(1, 1, gather=9))
    placed = replace(line(3, 0, 0), stages=stages, placement=((0,), (1,), (0,)), runtime=(0, 0), limits=(9, 9))
    lists = ["0F0 2F0 2B0 0B0 0U 2U", "1F0 1B0 1U"]
    spans = simulate(Schedule.from_text("placed", lists), placed).spans
    assert min(s.start for s in spans if s.device == 0 and s.action.kind is not Kind.GATHER) == 9


def test_actions_without_time_hold_memory_all_the_same() -> None:
    """Two micro-batches of three bytes, and five bytes of workspace beside two that stay, at one instant."""
    free = line(1, 0, 0)
    pipeline = replace(free, stages=(replace(free.stages[0], resident=2, held=3, workspace=5),))
    assert simulate(FAMILIES["gpipe"].write((1,), 2), pipeline).peaks == (2 + 2 * 3 + 5,)
