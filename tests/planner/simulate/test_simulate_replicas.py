"""Simulated times with replicas that can be checked by hand, and refused inputs."""

from dataclasses import replace

import pytest

from helpers.pipelines import line
from helpers.random_schedules import stage_by_stage
from pipeplan.core.cluster import Overlap
from pipeplan.core.errors import PlanError
from pipeplan.core.pipeline import Pipeline, Stage, Transfer
from pipeplan.core.schedule import Kind, Schedule
from pipeplan.core.timeline import Span
from pipeplan.schedules import FAMILIES, one_forward_one_backward
from pipeplan.simulate import simulate
from pipeplan.simulate.recurrence import step_time
from pipeplan.simulate.recurrence.ticks import Recurrence


def wide(
    replicas: tuple[int, ...], stages: tuple[Stage, ...], *ways: tuple[Transfer, ...], overlap: Overlap = Overlap.COPY
) -> Pipeline:
    """Stages of these widths, with the same transfers in both directions."""
    devices = sum(replicas)
    return Pipeline(stages, stage_by_stage(replicas), ways, ways, overlap, (0,) * devices, (2**62,) * devices)


@pytest.mark.parametrize(("r", "m"), [(1, 6), (2, 6), (3, 6), (6, 6), (4, 6), (8, 6)])
def test_data_parallelism_is_one_stage(r: int, m: int) -> None:
    """The busiest of r replicas runs ⌈M / r⌉ micro-batches; then they reduce and update at once."""
    pipeline = wide((r,), (Stage(10, 20, update=3, reduce=7),))
    timeline = simulate(FAMILIES["gpipe"].write((r,), m), pipeline)
    assert timeline.makespan == -(-m // r) * 30 + (7 if r > 1 else 0) + 3


def test_two_slow_replicas_keep_pace_with_one_fast_device() -> None:
    """A stage of twice the time on two replicas: neither ever waits, so the step is as long as one of them works.

    ::

        d0 (F 2 B 4)   F0 F1 F2 F3 …
        d1 (F 4 B 8)      F0── B0────── F2── B2────── F4── B4────── F6── B6──────│R
        d2 (F 4 B 8)         F1── B1────── F3── B3────── F5── B5────── F7── B7──────│R
                       0  2                                                     50  52
    """
    free = (Transfer(), Transfer())
    pipeline = wide((1, 2), (Stage(2, 4, update=1), Stage(4, 8, update=1, reduce=5)), free)
    timeline = simulate(one_forward_one_backward((1, 2), 8, (4, 1)), pipeline)
    assert timeline.makespan == 2 + 4 * (4 + 8) + 4 + 4 + 1  # F0; four on d1; then B6, B7 and U on d0
    assert timeline.busy(0) == 8 * 6 + 1
    assert timeline.busy(1) == timeline.busy(2) == 4 * 12 + 5 + 1


def test_each_pair_of_replicas_has_its_own_way() -> None:
    """Micro-batch m takes entry m of its boundary's transfers, there and back."""
    ways = tuple(Transfer(1, 10 + m, m, (f"link {m}",)) for m in range(6))
    pipeline = wide((2, 3), (Stage(1, 1), Stage(1, 1)), ways)
    timeline = simulate(FAMILIES["gpipe"].write((2, 3), 12), pipeline)
    assert len(timeline.transfers) == 24
    for flight in timeline.transfers:
        p = flight.micro_batch % 6
        assert (flight.end - flight.start, flight.arrival - flight.end) == (10 + p, p)


def test_replicas_of_one_node_share_its_card() -> None:
    """Two replicas that send at once through one card take turns; through two cards they do not."""
    stages = (Stage(5, 5), Stage(1, 1))
    shared = wide((2, 1), stages, (Transfer(1, 20, 0, ("card",)), Transfer(1, 20, 0, ("card",))))
    apart = wide((2, 1), stages, (Transfer(1, 20, 0, ("card 0",)), Transfer(1, 20, 0, ("card 1",))))
    schedule = FAMILIES["gpipe"].write((2, 1), 2)
    starts = [[f.start for f in simulate(schedule, each).transfers if f.source == 0] for each in (shared, apart)]
    assert starts == [[5, 25], [5, 5]]
    assert simulate(schedule, shared, share=False) == simulate(schedule, apart)


def test_a_reduction_begins_on_all_replicas_when_the_last_is_there() -> None:
    """One replica has a micro-batch more; the other one waits for it, idle, and both update together."""
    pipeline = wide((2,), (Stage(10, 20, update=3, reduce=7),))
    timeline = simulate(FAMILIES["gpipe"].write((2,), 3), pipeline)
    when = {(span.device, span.action.kind): (span.start, span.end) for span in timeline.spans}
    assert when[0, Kind.REDUCE] == when[1, Kind.REDUCE] == (60, 67)
    assert when[0, Kind.UPDATE] == when[1, Kind.UPDATE] == (67, 70)
    path = [(item.device, str(item.action)) for item in timeline.critical if isinstance(item, Span)]
    assert path[-3][1] == "0B2"  # of device 0, whichever replica's reduction and update end the path
    assert [text for _, text in path[-2:]] == ["0R", "0U"]


def test_memory_is_counted_on_each_replica() -> None:
    """Every replica has the stage's residents, and the micro-batches that it works on."""
    stage = Stage(1, 1, resident=100, held=10, workspace=1)
    pipeline = replace(wide((3,), (stage,)), runtime=(1000, 2000, 3000))
    timeline = simulate(FAMILIES["gpipe"].write((3,), 5), pipeline)
    assert timeline.peaks == (1121, 2121, 3111)


def test_reductions_in_opposite_orders_deadlock() -> None:
    """Two replicas that come to two reductions in opposite orders wait for each other; the error says at what."""
    lists = ("0F0 1F0 1B0 0B0 0R 1R 0U 1U", "0F1 1F1 1B1 0B1 1R 0R 0U 1U")
    pipeline = replace(line(2, 1, 1), placement=((0, 1), (0, 1)), transfers=((Transfer(),) * 2,))
    pipeline = replace(pipeline, returns=pipeline.transfers)
    with pytest.raises(PlanError) as error:
        simulate(Schedule.from_text("crossed", lists), pipeline)
    assert "device 0 waits at 0R for the same reduction, which is 1 actions further down its list on device 1" in str(
        error.value
    )
    assert "device 1 waits at 1R for the same reduction" in str(error.value)


def test_a_reduction_ahead_of_a_backward_deadlocks() -> None:
    """One replica stands at its reduction with a backward behind it: both are named, with what they wait for."""
    schedule = Schedule.from_text("early", ["0F0 0B0 0R 0U", "0F1 0R 0B1 0U"])
    with pytest.raises(PlanError) as error:
        simulate(schedule, wide((2,), (Stage(1, 1),)))
    assert "device 0 waits at 0R for the same reduction, which is next in its list on device 1" in str(error.value)
    assert "device 1 waits at 0R for the end of 0B1" in str(error.value)


@pytest.mark.parametrize(
    ("lists", "says"),
    [
        (
            ["0F0 0B0 0F1 0B1 0R 0U", "0R 0U"],
            "0F1 stands in device 0's list, but micro-batch 1 of stage 0 is its replica",
        ),
        (["0F0 0B0 0R 0U", "0F1 0B1 0U"], "missing 0R on device 1"),
        (["0F0 0B0 0R 0R", "0F1 0B1 0R"], "0R is there twice"),
        (["0F0 0B0", "0F1 0B1", ""], "lists for 3 devices, the pipeline 2"),
    ],
)
def test_lists_that_do_not_fit_the_replicas_are_refused(lists: list[str], says: str) -> None:
    """A micro-batch on the wrong replica, and a sum that one replica does not take part in or takes part in twice."""
    with pytest.raises(PlanError) as error:
        simulate(Schedule.from_text("wrong", lists), wide((2,), (Stage(1, 1),)))
    assert says in str(error.value)


def test_pipelines_that_miss_transfers_are_refused() -> None:
    """Every pair of replicas needs its transfer, every replica a device of its own."""
    stages, way = (Stage(1, 1), Stage(1, 1)), Transfer()
    schedule = FAMILIES["gpipe"].write((2, 3), 6)
    with pytest.raises(PlanError, match=r"boundary 0 has 3 transfers; 2 and 3 replicas need 6, their least common"):
        simulate(schedule, wide((2, 3), stages, (way,) * 3))
    with pytest.raises(PlanError, match="transfers for 2 boundaries, and 1 boundaries"):
        simulate(schedule, wide((2, 3), stages, (way,) * 6, (way,) * 6))
    twice = replace(wide((2, 3), stages, (way,) * 6), placement=((0, 0), (2, 3, 4)))
    with pytest.raises(PlanError, match="one device per replica, all different"):
        simulate(schedule, twice)
    with pytest.raises(PlanError, match="1U stands in device 0's list, but stage 1 is on 2, 3, 4"):
        simulate(
            Schedule("x", ((*schedule.orders[0], schedule.orders[2][-1]), *schedule.orders[1:])),
            wide((2, 3), stages, (way,) * 6),
        )


def test_what_is_kept_of_a_schedule_is_only_its_order() -> None:
    """The same schedule on another pipeline has that one's times, transfers and placement, whatever came before."""
    schedule = FAMILIES["gpipe"].write((2, 1), 3)
    slow, fast = (Stage(5, 7), Stage(5, 7)), (Stage(1, 2), Stage(1, 1))
    near, far = ((Transfer(1, 0, time, ("a",)), Transfer(1, 0, time, ("a",))) for time in (0, 9))
    cases = [wide((2, 1), stages, ways) for stages in (slow, fast) for ways in (near, far)]
    first = [simulate(schedule, case) for case in cases]
    for m in range(1, 10):  # more schedules than are kept
        simulate(FAMILIES["gpipe"].write((2, 1), m), cases[0])
    assert [simulate(schedule, case) for case in reversed(cases)] == first[::-1]
    assert len({timeline.makespan for timeline in first}) == 4
    with pytest.raises(PlanError, match="micro-batch 0 of stage 0 is its replica 0's, on 1"):
        simulate(schedule, replace(cases[0], placement=((1, 0), (2,))))


@pytest.mark.parametrize("micro_batches", [1, 4, 5, 12, 34, 40])
def test_only_pairs_that_a_step_meets_count(micro_batches: int) -> None:
    """Neighbours of 5 and 7 replicas have 35 pairs; a step of fewer micro-batches keeps no more, and takes as long."""
    ways = tuple(Transfer(1, 3 + m % 4, m % 3, (f"card {m % 6}",)) for m in range(35))
    pipeline = wide((5, 7), (Stage(2, 3), Stage(3, 4)), ways)
    counts = FAMILIES["1f1b-sno"].in_flight((5, 7), micro_batches)
    met = Recurrence(pipeline, micro_batches, counts)
    assert met.links == 2 * min(micro_batches, 35)
    listed = simulate(FAMILIES["1f1b-sno"].write((5, 7), micro_batches), pipeline)
    assert step_time(pipeline, micro_batches, counts) == listed.makespan
