"""Link resources in the scheduling instance, and the bounds that follow from them."""

import pytest

from helpers.pipelines import line
from pipeplan.core.cluster import Overlap
from pipeplan.core.errors import InputError
from pipeplan.core.pipeline import Pipeline, Stage, Transfer
from pipeplan.schedules import FAMILIES
from pipeplan.search.scheduling import find_schedule, relaxed_problem, schedule_lower_bound, schedule_problem
from pipeplan.search.scheduling.link_bound import link_bound
from pipeplan.search.scheduling.routes import Routes, routes_of
from pipeplan.simulate import makespan
from pipeplan_formulations.common.report import Limits, Status
from pipeplan_formulations.schedule import evaluate, solve

LIMITS = Limits(time=10, workers=1)


def _transfer(occupancy: int, *resources: str) -> Transfer:
    return Transfer(1, occupancy, 1, resources)


def test_an_unshared_link_counts_where_tensors_are_made_faster_than_sent() -> None:
    """F of 4 and 2 ns, tensors of 3 ns on two links. Those of the second one queue up if they are copied or streamed,
    and never where devices wait until they have left."""
    down, up = [_transfer(3, "a"), _transfer(3, "b")], [_transfer(0), _transfer(0)]
    for overlap, lags in ((Overlap.COPY, (4, 1)), (Overlap.STREAM, (1, 1)), (Overlap.NONE, (1, 1))):
        onward, back = routes_of(overlap, down, up, [4, 2, 9], [9, 9, 9])
        assert onward.lag == lags
        assert back == Routes((1, 1), (), ())
        waited = overlap is not Overlap.NONE
        assert (onward.occupancy, onward.resources) == (((0, 3), ((), (0,))) if waited else ((), ()))


def test_links_with_the_same_tensors_are_one() -> None:
    """The cards of both nodes carry the same tensors: one resource per direction, and none for a subset of them."""
    down = [_transfer(2, "out 0", "in 1"), _transfer(2, "out 0", "in 1", "slow")]
    up = [_transfer(2, "out 1", "in 0"), _transfer(0, "out 1", "in 0")]
    onward, back = routes_of(Overlap.COPY, down, up, [5, 5, 5], [5, 5, 5])
    assert onward == Routes((1, 1), (2, 2), ((0,), (0,)))
    assert back == Routes((3, 1), (), ())


def test_a_shared_link_is_part_of_the_proof() -> None:
    """Three stages, three micro-batches, 3 ns per tensor on one card while devices wait: no order takes less than 50.
    The instance without links, and the bound of the card alone, are lower."""
    pipeline = line(3, 2, 3, overlap=Overlap.NONE, occupancy=3, resource="card")
    found = find_schedule(pipeline, 3, LIMITS, split=False)
    assert (found.value, found.bound, found.status) == (50, 50, Status.OPTIMAL)
    before = solve(relaxed_problem(pipeline, 3, split=False).unshared, LIMITS)
    assert (before.objective, before.status) == (43, Status.OPTIMAL)
    assert link_bound(pipeline, 3, split=False) < 50


def test_orders_for_a_shared_link_are_better_than_those_of_families() -> None:
    """Four micro-batches on three stages, 3 ns per tensor on one card: families take 55 or more, the best order 52."""
    pipeline = line(3, 1, 3, occupancy=3, resource="card")
    families = [family.write((1,) * 3, 4) for family in FAMILIES.values() if not family.two_lanes]
    assert min(makespan(schedule, pipeline) for schedule in families) == 55
    found = find_schedule(pipeline, 4, LIMITS, split=False)
    assert found.value == found.bound == 52


def test_tensors_of_other_replicas_count_on_a_shared_link() -> None:
    """Two replicas through one card: the instance has the tensors of one replica, the link bound all of them."""
    transfers = ((_transfer(9, "card"),) * 2,)
    places = ((0, 1), (2, 3))
    pipeline = Pipeline((Stage(1, 2),) * 2, places, transfers, transfers, Overlap.COPY, (0,) * 4, (9,) * 4)
    assert link_bound(pipeline, 6, split=False) == 1 + 2 * 6 * 9 + 1 + 2
    assert schedule_lower_bound(relaxed_problem(pipeline, 6, split=False)) == 1 + 2 * 3 * 9 + 1 + 2
    found = find_schedule(pipeline, 6, LIMITS, split=False)
    assert found.value is not None
    assert found.bound == link_bound(pipeline, 6, split=False) <= found.value


def test_two_lanes_are_an_instance_of_their_own() -> None:
    """Five micro-batches on three equal stages of two lanes: none takes less than FBP's (M + 2 N − 1)(F + B)."""
    pipeline = line(3, 2, 3, overlap=Overlap.STREAM)
    problem = schedule_problem(pipeline, 5, split=False, two_lanes=True)
    report = solve(problem, LIMITS)
    assert (report.objective, report.status) == ((5 + 2 * 3 - 1) * 5, Status.OPTIMAL)
    assert makespan(FAMILIES["fbp-as"].write((1,) * 3, 5), pipeline) == report.objective


def test_orders_of_either_number_of_lanes_are_proved_each_for_itself() -> None:
    """Streamed tensors of 5 ns, F = 2, B = 3: one lane takes 40 and nothing less is possible on one lane or two."""
    pipeline = line(3, 2, 3, overlap=Overlap.STREAM, occupancy=5)
    found = find_schedule(pipeline, 4, LIMITS, split=False)
    assert found.value == found.bound == 40
    assert schedule_lower_bound(relaxed_problem(pipeline, 4, split=False, two_lanes=True)) > 40


def test_devices_that_wait_while_they_send_have_one_lane() -> None:
    """Two lanes without overlap are refused."""
    with pytest.raises(InputError, match="use two_lanes only where overlap is not none"):
        schedule_problem(line(2, 1, 2, overlap=Overlap.NONE), 3, split=False, two_lanes=True)


def test_orders_take_no_longer_without_links() -> None:
    """Without links an instance gives less time for the same orders, as no tensor waits."""
    pipeline = line(3, 1, 2, occupancy=3, resource="card")
    problem = schedule_problem(pipeline, 4, split=False)
    orders = tuple(tuple(sorted(problem.operations(d), key=lambda op: (op.kind, op.micro_batch))) for d in range(3))
    values = [evaluate(each, orders) for each in (problem.unshared, problem)]
    assert values == sorted(set(values), key=lambda value: value or 0)
    assert problem.unshared.plain
