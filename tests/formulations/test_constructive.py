"""Constructive portfolio on pipelines with known optimal makespans, and its parts by hand."""

import pytest

from helpers.lines import line
from pipeplan_formulations.schedule import Op, PipelineSchedule, evaluate, lower_bound
from pipeplan_formulations.schedule.constructive import constructive
from pipeplan_formulations.schedule.constructive.dispatch import Admission, dispatch, to_numbers, to_orders
from pipeplan_formulations.schedule.constructive.portfolio import (
    alternating,
    dispatched,
    resident,
    tails,
    zero_bubble,
)


def v_shape(micro_batches: int, room: int) -> PipelineSchedule:
    """Two devices with two stages each in a V; every F takes one unit of memory, every B frees it."""
    return PipelineSchedule(
        device=(0, 1, 1, 0),
        micro_batches=micro_batches,
        forward=(1,) * 4,
        backward=(2,) * 4,
        weight=(0,) * 4,
        split=(False,) * 4,
        lag=(0,) * 3,
        lag_back=(0,) * 3,
        ending=(0,) * 4,
        taken=(1,) * 4,
        freed=(1,) * 4,
        freed_by_weight=(0,) * 4,
        base=(0,) * 2,
        limit=(room,) * 2,
    )


def words(problem: PipelineSchedule, orders: list[list[int]], device: int) -> str:
    """A device's list, as "F0 I0 W0"."""
    return " ".join(f"{op.kind}{op.micro_batch}" for op in to_orders(problem, orders)[device])


def test_alternating_as_drawn() -> None:
    """Three forwards, then I and F alternately, W delayed by one micro-batch: the list drawn in `alternating`."""
    orders = alternating(line(1, 5, 9), [3], [1])
    assert words(line(1, 5, 9), orders, 0) == "F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 I3 W2 I4 W3 W4"


@pytest.mark.parametrize(("extra", "peak"), [(1, 8), (2, 15)])
def test_zero_bubble_holds_as_much_as_published(extra: int, peak: int) -> None:
    """ZB-H1 keeps at most p micro-batches resident anywhere, ZB-H2 at most 2p − 1."""
    problem = line(8, 24, 100)
    held = []
    for order in to_orders(problem, zero_bubble(problem, extra)):
        used = [0]
        for kind, stage, _ in order:
            used.append(used[-1] + problem.delta[kind][stage])
        held.append(max(used))
    assert 100 * (peak - 1) < max(held) <= 100 * peak


@pytest.mark.parametrize(("in_flight", "known"), [(4, 161_900), (6, 121_300), (8, 98_300), (12, 94_100)])
def test_a_rule_of_the_portfolio_reaches_what_is_known(in_flight: int, known: int) -> None:
    """On 8 equal devices with 32 micro-batches the rules alone reach the known makespan of list scheduling."""
    problem = line(8, 32, in_flight)
    assert min(dispatch(problem, rule)[0] for rule in dispatched(problem)) <= known


def test_ends_where_the_bound_is_met() -> None:
    """With a known bound the search ends well before a limit of an hour, once a schedule reaches it."""
    problem = line(8, 32, 12)
    found = constructive(problem, 3600.0, lower_bound(problem))
    assert found is not None
    assert found[0] == lower_bound(problem) == evaluate(problem, found[1]) == 94_100


def test_a_forward_that_would_lock_the_device_waits() -> None:
    """Until a micro-batch reaches the last stage of a device, another one enters only if both fit."""
    tight, wide = Admission(v_shape(3, 2)), Admission(v_shape(3, 3))
    assert tight.keeps_safe(0, [0, 0, 0, 0])
    assert not tight.keeps_safe(0, [1, 1, 1, 0])
    assert wide.keeps_safe(0, [1, 1, 1, 0])
    assert not wide.keeps_safe(0, [2, 1, 1, 0])
    assert wide.keeps_safe(0, [2, 1, 1, 1])


def test_no_rule_is_slower_than_one_micro_batch_after_the_other() -> None:
    """With room for one micro-batch per stage no rule deadlocks, and none is slower than one after the other."""
    problem = v_shape(3, 2)
    values = [dispatch(problem, rule)[0] for rule in dispatched(problem)]
    assert lower_bound(problem) <= min(values) <= max(values) <= 3 * (4 + 8)


def test_tails_count_the_arcs_of_memory() -> None:
    """With one resident micro-batch the tail of the first F has all other round trips, with three only some work."""
    problem = line(1, 3, 1)
    assert resident(problem) == [1]
    forward, _, weight = tails(problem, [1], weights_first=True)
    assert (forward[0][0], weight[0][2]) == (3 * 2700, 700)
    assert tails(problem, [3], weights_first=True)[0][0][0] == 3 * 1000 + 1000 + 700


def test_numbers_and_back() -> None:
    """Numbers encode operations one to one."""
    problem = v_shape(2, 4)
    orders = tuple(tuple(problem.operations(d)) for d in range(2))
    assert to_orders(problem, to_numbers(problem, orders)) == orders
    assert to_numbers(problem, ((Op("I", 3, 1),), ()))[0] == [(1 * 4 + 3) * 2 + 1]
