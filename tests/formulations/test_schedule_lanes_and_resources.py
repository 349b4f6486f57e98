"""Schedules on devices with two lanes and tensors on link resources: times by hand, orders, errors, bounds, solvers."""

from dataclasses import replace
from random import Random

import pytest

from helpers.lines import line
from helpers.pipeline_schedules import random_ways
from pipeplan_formulations.common.report import Limits, Status
from pipeplan_formulations.schedule import Op, PipelineSchedule, evaluate, feasible, long_steps, lower_bound, solve
from pipeplan_formulations.schedule.objective import makespan, orders_of, peaks, starts
from pipeplan_formulations.schedule.start import serial

TWO = line(2, 2, 2)
"""Two devices, two micro-batches, room for both; F and I take 1000, W 700, a tensor's lag is 100."""
F, B, W = ([[Op(kind, s, i) for i in range(2)] for s in range(2)] for kind in "FIW")
A, G = [Op("A", 0, i) for i in range(2)], [Op("G", 1, i) for i in range(2)]
FIRST = (F[0][0], F[0][1], B[0][0], W[0][0], B[0][1], W[0][1])
SECOND = (F[1][0], B[1][0], F[1][1], B[1][1], W[1][0], W[1][1])


def on_one_resource(problem: PipelineSchedule, occupancy: int, overlap: str = "copy") -> PipelineSchedule:
    """Problem whose tensors, forward and back, share one link resource."""
    ways, resources = (occupancy,) * (problem.stages - 1), ((0,),) * (problem.stages - 1)
    return replace(
        problem, overlap=overlap, occupancy=ways, occupancy_back=ways, resources=resources, resources_back=resources
    )  # fmt: skip


BUSY = on_one_resource(
    replace(
        line(3, 2, 9),
        forward=(4, 1, 3),
        backward=(4, 4, 3),
        weight=(0,) * 3,
        split=(False,) * 3,
        lag=(0, 0),
        lag_back=(0, 0),
        freed=(100,) * 3,
        freed_by_weight=(0,) * 3,
    ),
    1,
)
BUSY = replace(BUSY, occupancy=(4, 3), occupancy_back=(2, 2))
"""Three devices whose tensors share one resource, the bottleneck."""


def test_two_lanes_timed_by_hand() -> None:
    """Forwards run concurrently with backwards, but not before preceding operations have freed their memory."""
    both = replace(TWO, two_lanes=(True, True))
    begun = starts(both, (FIRST, (F[1][0], F[1][1], B[1][0], B[1][1], W[1][0], W[1][1])))
    assert begun is not None
    assert (begun[F[1][1]], begun[B[1][0]], begun[B[1][1]]) == (2100, 2100, 3100)
    assert makespan(both, begun) == 5900 + 700
    late = starts(both, (FIRST, SECOND))
    assert late is not None
    assert late[F[1][1]] == 3100
    assert peaks(both, (FIRST, SECOND)) == (200, 140)
    one_of_them = starts(replace(TWO, two_lanes=(True, False)), (FIRST, SECOND))
    assert one_of_them is not None
    assert one_of_them[B[1][1]] == 4100


def test_a_lane_has_no_memory_of_its_own() -> None:
    """A device with memory for one micro-batch alternates between its two lanes."""
    tight = replace(TWO, two_lanes=(True, True), limit=(100, 100))
    report = solve(tight, Limits(time=20.0))
    assert report.status is Status.OPTIMAL
    assert report.objective == solve(replace(tight, two_lanes=()), Limits(time=20.0)).objective
    assert solve(replace(tight, limit=(99, 200)), Limits(time=20.0)).status is Status.INFEASIBLE


def test_resources_timed_by_hand() -> None:
    """With overlap copy a device continues at once, and its tensor arrives a lag after the end of the transfer."""
    problem = on_one_resource(TWO, 300)
    begun = starts(problem, (FIRST, SECOND))
    assert begun is not None
    assert [begun[op] for op in (A[0], F[1][0], A[1], G[0], G[1])] == [1000, 1400, 2000, 3400, 5400]
    assert makespan(problem, begun) == 7500
    assert problem.in_transit == problem.in_transit_back == (400,)


def test_streams_timed_by_hand() -> None:
    """With overlap stream a tensor is sent while it is computed, and arrives no earlier than its operation's end."""
    short, long = (starts(on_one_resource(TWO, o, "stream"), (FIRST, SECOND)) for o in (300, 1500))
    assert short is not None
    assert long is not None
    assert [short[op] for op in (A[0], F[1][0], A[1])] == [0, 1100, 1000]
    assert [long[op] for op in (A[0], F[1][0], A[1])] == [0, 1600, 1500]
    assert on_one_resource(TWO, 300, "stream").in_transit == (100,)
    assert on_one_resource(TWO, 1500, "stream").in_transit == (600,)


def test_waiting_devices_timed_by_hand() -> None:
    """Without overlap a device is busy until its tensor has been sent, and longer if its link is occupied."""
    problem = on_one_resource(replace(TWO, forward=(1000, 500), backward=(1000, 400)), 300, "none")
    begun = starts(problem, (FIRST, SECOND))
    assert begun is not None
    assert [begun[op] for op in (A[0], F[1][0], B[1][0])] == [700, 1100, 1600]
    assert [begun[op] for op in (A[1], G[0], F[1][1])] == [1700, 2000, 2300]
    assert problem.in_transit == (100,)


def test_a_resource_may_wait_for_a_better_tensor() -> None:
    """First come, first served is not always optimal: a solution may list the order of its transfers."""
    report = solve(BUSY, Limits(time=20.0))
    assert (report.status, report.objective) == (Status.OPTIMAL, 38)
    assert report.solution is not None
    assert len(report.solution) == BUSY.devices + 1
    assert evaluate(BUSY, report.solution) == 38
    alone = evaluate(BUSY, report.solution[: BUSY.devices])
    assert alone is not None
    assert alone > 38


def test_lists_of_transfers() -> None:
    """Lists of transfers must be complete, are valid only with link resources, and may deadlock."""
    problem = on_one_resource(TWO, 300)
    assert evaluate(problem, (FIRST, SECOND, (A[0], A[1], G[0], G[1]))) == 7500
    assert evaluate(problem, (FIRST, SECOND, (G[0], A[0], A[1], G[1]))) is None
    for wrong in ((A[0], A[1], G[0]), (A[0], A[1], G[0], G[0])):
        with pytest.raises(ValueError, match="links must carry 4"):
            evaluate(problem, (FIRST, SECOND, wrong))
    with pytest.raises(ValueError, match="3 orders for 2 devices"):
        evaluate(TWO, (FIRST, SECOND, ()))
    assert not feasible(problem, (FIRST, SECOND, ()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"two_lanes": (True,)}, "two_lanes has 1 entries; 2 or none"),
        ({"occupancy": (3, 3), "resources": ((0,), (0,))}, "occupancy has 2 entries; 1 or none"),
        ({"occupancy": (3,)}, "occupancy and resources belong together"),
        ({"resources_back": ((1,),)}, "occupancy_back and resources_back belong together"),
        ({"occupancy": (3,), "resources": ((),)}, r"boundary 0 is 3 on resources \(\)"),
        ({"occupancy": (0,), "resources": ((1,),)}, "boundary 0 is 0"),
        ({"occupancy": (-1,), "resources": ((1,),)}, "boundary 0 is -1"),
        ({"occupancy": (3,), "resources": ((1, 1),)}, "each resource once"),
        ({"overlap": "half"}, "copy, stream or none"),
        ({"overlap": "none", "two_lanes": (False, True)}, "does not wait while it sends"),
        ({"overlap": "none", "occupancy_back": (1001,), "resources_back": ((0,),)}, "occupancy_back of boundary 0 is"),
    ],
)
def test_wrong_ways_are_refused(change: dict[str, object], message: str) -> None:
    """The error names each fault with its numbers."""
    with pytest.raises(ValueError, match=message):
        replace(TWO, **change)


def test_orders_of_starts_are_the_orders() -> None:
    """Orders recovered from starts with lanes and link resources are no slower and need no more memory."""
    for seed in range(300):
        problem = random_ways(seed)
        if not problem.possible:
            continue
        begun = starts(problem, serial(problem))
        assert begun is not None
        again = orders_of(problem, begun)
        value = evaluate(problem, again)
        assert value is not None, seed
        assert value <= makespan(problem, begun), seed


def test_without_shared_resources_nothing_is_later() -> None:
    """Without shared resources any lists end no later, for service first come, first served and in a random order."""
    tried = 0
    for seed in range(300):
        problem, draw = random_ways(seed), Random(seed)
        if not problem.sent or not problem.possible:
            continue
        lists = serial(problem)
        sent = list(problem.transfers())
        served = evaluate(problem, (*lists, tuple(draw.sample(sent, len(sent)))))
        first_come = evaluate(problem, lists)
        easier = evaluate(problem.unshared, lists)
        assert easier is not None
        assert first_come is not None
        assert easier <= first_come <= problem.largest
        assert served is None or easier <= served
        tried += 1
    assert tried >= 100


def test_a_lane_is_as_busy_as_its_own_work() -> None:
    """A device with two lanes needs the longer of both, and is bounded by it."""
    problem = replace(line(1, 4, 4), two_lanes=(True,))
    assert problem.work == (4 * 1700,)
    assert lower_bound(problem) == 1000 + 4 * 1700 == solve(problem, Limits(time=20.0)).objective


def test_a_resource_is_as_busy_as_its_tensors() -> None:
    """A resource that all tensors share carries them one after the other, between a first F and a last I and W."""
    problem = on_one_resource(line(3, 8, 8), 2000)
    assert lower_bound(problem) == 1000 + 4 * 8 * 2000 + 100 + 1700
    assert lower_bound(problem.unshared) < lower_bound(problem)


@pytest.mark.parametrize(
    "problem",
    [
        replace(line(3, 120, 6, 0.3), two_lanes=(True,) * 3),
        on_one_resource(replace(line(3, 120, 6, 0.3), two_lanes=(True,) * 3), 300, "stream"),
        on_one_resource(line(3, 120, 3, 0.3), 300),
        on_one_resource(line(3, 120, 3, 0.3), 300, "none"),
    ],
    ids=["lanes", "lanes and resources", "resources", "waiting"],
)
def test_long_steps(problem: PipelineSchedule) -> None:
    """For many micro-batches the result is a schedule close to its bound."""
    report = long_steps.solve(problem, Limits(time=30.0, gap=0.14))
    assert report.solution is not None
    assert evaluate(problem, report.solution) == report.objective
    assert report.gap is not None
    assert report.gap < 0.15
    assert report.bound >= lower_bound(problem)
