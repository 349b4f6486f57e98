"""Steps of many micro-batches: their lower bounds, and list schedules."""

from dataclasses import replace
from itertools import islice, pairwise, permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import exhaustive_orders
from helpers.happening import happens
from helpers.lines import line
from helpers.pipeline_schedules import random_schedule
from helpers.quick import rarely
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Stop
from pipeplan_formulations.schedule import Op, PipelineSchedule, evaluate, feasible
from pipeplan_formulations.schedule.constructive import constructive
from pipeplan_formulations.schedule.long_steps import drain_bound, period_bound, solve, step_bound, stride_bound
from pipeplan_formulations.schedule.long_steps.holding import holdings, largest_sum, reach
from pipeplan_formulations.schedule.long_steps.lists import by_rules
from pipeplan_formulations.schedule.long_steps.repeat import stretched
from pipeplan_formulations.schedule.long_steps.stride import by_strides, stride
from pipeplan_formulations.schedule.objective import starts

QUICK = Limits(time=5.0, workers=1)


def instant(problem: PipelineSchedule) -> bool:
    """True if some operation takes no time."""
    return not all(min(problem.time[kind][s] for kind in problem.kinds(s)) for s in range(problem.stages))


@given(st.integers(0, 10**6))
@settings(max_examples=80, deadline=None)
def test_bounds_stay_below_the_optimum(seed):
    """No step is shorter than its bound, or than the mean time of as many micro-batches in an endless schedule."""
    problem = random_schedule(seed)
    report = exhaustive_orders.solve(problem, Limits(time=20.0))
    if report.objective is None:
        assert step_bound(problem) == period_bound(problem) == 0
        return
    assert step_bound(problem) <= report.objective
    assert drain_bound(problem) <= report.objective
    assert period_bound(problem, problem.micro_batches) <= report.objective


@pytest.mark.slow
@pytest.mark.happens(0.5)
def test_bounds_stay_below_many_optima():
    """No step of 2,000 is shorter than its bound."""
    for seed in range(20_000, 22_000):
        problem = random_schedule(seed)
        best = exhaustive_orders.solve(problem, Limits(time=20.0)).objective
        if happens(best is not None):
            assert max(step_bound(problem), drain_bound(problem)) <= best, seed


def test_a_full_memory_costs_a_round_trip_at_the_end():
    """With eight equal stages and memory for eight, step_bound is within 1 % of the optimum; the work bound is not."""
    problem = line(8, 32, 8)
    best = 98_300  # proved by CP-SAT
    assert step_bound(problem) < 0.99 * best <= drain_bound(problem) <= best


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_strides_are_never_too_long(seed):
    """No schedule starts n micro-batches in less than the stride; consecutive strides do not exceed the step."""
    problem = random_schedule(seed)
    best = exhaustive_orders.solve(problem, Limits(time=20.0))
    if best.solution is None or best.objective is None or instant(problem):
        return
    known = [best.solution, *(o for o in islice(by_rules(problem, Clock(QUICK)), 10) if o is not None)]
    for n in range(1, problem.micro_batches):
        least = stride(problem, n, QUICK)
        for orders in known:
            begun = starts(problem, orders)
            assert begun is not None
            forwards = [begun[Op("F", 0, i)] for i in range(problem.micro_batches)]
            assert all(b - a >= least for a, b in zip(forwards, forwards[n:], strict=False))
        assert by_strides(problem, n, QUICK) <= best.objective


@pytest.mark.parametrize(("n", "room"), [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2)])
def test_strides_are_exact(n, room):
    """On two devices with joined backwards, D(n) is the least start of F_0(n) over all orders."""
    problem = replace(
        line(2, n + 1, room, 0.3), weight=(0, 0), split=(False, False), freed=(100, 100), freed_by_weight=(0, 0)
    )
    lists = [[in_order(kinds, d) for kinds in set(permutations("FI" * (n + 1)))] for d in range(2)]
    begun = [starts(problem, orders) for orders in product(*lists) if feasible(problem, orders)]
    assert stride(problem, n, QUICK) == min(b[Op("F", 0, n)] for b in begun if b is not None)


def in_order(kinds: tuple[str, ...], stage: int) -> tuple[Op, ...]:
    """List of a stage's operations from kinds, each on the next micro-batch of its kind."""
    return tuple(Op(kind, stage, kinds[:i].count(kind)) for i, kind in enumerate(kinds))


def test_strides_say_more_than_areas():
    """With memory for three micro-batches on four devices forwards and backwards conflict; area bounds miss that."""
    problem = line(4, 400, 3)
    assert by_strides(problem, 9, Limits(time=20.0)) > 1.03 * step_bound(problem)
    report = solve(problem, Limits(time=60.0, gap=0.5, workers=1))  # the first schedule is enough
    assert report.objective is not None
    assert max(step_bound(problem), stride_bound(problem, Limits(time=0.5))) <= report.objective
    assert stride_bound(line(4, 400, 8), QUICK) == 0  # here work says more


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_rules_make_schedules(seed):
    """Each of the orders by rules is feasible and better than those before."""
    problem = replace(random_schedule(seed), micro_batches=9)
    if not problem.possible:
        return
    values = [evaluate(problem, orders) for orders in by_rules(problem, Clock(QUICK)) if orders is not None]
    assert values and all(value is not None for value in values)
    assert all(a > b for a, b in pairwise(values))


def test_rules_of_a_long_step_come_best_first():
    """If rules are ranked on short steps, the first one has the least period of all."""
    problem = line(8, 512, 4)
    first = next(by_rules(problem, Clock(Limits(time=60.0))))
    assert first is not None
    value = evaluate(problem, first)
    assert value is not None and value <= 512 * 4850 + 2 * max(reach(problem).round_trip)


@given(st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_endless_bounds_know_no_number(seed):
    """The period bound does not depend on the number of micro-batches."""
    problem = random_schedule(seed)
    bound = period_bound(problem)
    assert all(period_bound(replace(problem, micro_batches=m)) == bound for m in (1, 2, 50))


@pytest.mark.parametrize("in_flight", [2, rarely(4), rarely(6)])
def test_stretching_keeps_what_is_around(in_flight):
    """A stretched schedule is feasible, and no faster than its period and as many micro-batches allow."""
    small = line(4, 24, in_flight, 0.3)
    found = constructive(small, 1.0)
    assert found is not None
    before, orders = found
    long = stretched(small, orders, 144, Clock(Limits(time=20.0)))
    assert long is not None
    after = evaluate(replace(small, micro_batches=144), long)
    assert after is not None
    assert period_bound(small, 120) <= after - before + max(reach(small).round_trip)
    assert after <= 144 / 24 * before


@given(st.integers(0, 10**6))
@settings(max_examples=12, deadline=None)
def test_steps_of_any_number(seed):
    """For any number of micro-batches the orders are feasible, and impossible problems are detected."""
    problem = replace(random_schedule(seed), micro_batches=45)
    report = solve(problem, Limits(time=30.0, gap=0.3, workers=1))
    assert (report.solution is None) == (not problem.possible)
    if report.solution is not None:
        assert evaluate(problem, report.solution) == report.objective


def test_an_interrupt_hands_back_the_incumbent():
    """An interrupt after the first orders returns them with the bound and the stop reason."""

    def interrupt(value: int | None, bound: int) -> None:
        raise KeyboardInterrupt

    problem = line(4, 60, 2)
    report = solve(problem, QUICK, on_progress=interrupt)
    assert report.stop is Stop.INTERRUPT
    assert report.solution is not None and evaluate(problem, report.solution) == report.objective


def test_no_time_is_too_short_for_a_first_order():
    """Where bounds take all of the time, there is an order nevertheless, with the bound."""
    problem = line(4, 400, 3)
    report = solve(problem, Limits(time=0.0, workers=1))
    assert report.stop is Stop.TIME
    assert report.objective is not None and 0 < report.bound <= report.objective


def test_orders_given_are_never_lost():
    """With given orders and very little time, the result is no worse than they are."""
    problem = line(3, 40, 3)
    best = solve(problem, Limits(time=30.0, gap=0.1)).solution
    again = solve(problem, Limits(time=0.1), hint=best)
    assert again.objective is not None and best is not None
    assert again.objective <= (evaluate(problem, best) or 0)


def test_a_thousand_micro_batches():
    """With memory for every device, a step of 1,000 micro-batches is within two per cent of its bound."""
    problem = line(4, 1000, 4, 0.3)
    report = solve(problem, Limits(time=60.0, gap=0.02))
    assert report.gap is not None and report.gap <= 0.02
    assert evaluate(problem, report.solution) == report.objective


@pytest.mark.parametrize("devices", [24, rarely(64)])
def test_many_devices(devices):
    """With memory for as many micro-batches a step over many equal stages is found within half a per cent."""
    problem = line(devices, 4 * devices, devices)
    report = solve(problem, Limits(time=120.0, gap=0.005))
    assert report.gap is not None and report.gap <= 0.005
    assert evaluate(problem, report.solution) == report.objective


@pytest.mark.parametrize(("room", "extra"), [(6, 4), (7, 0)])
def test_a_count_lasts_longer_where_two_micro_batches_leave_no_room_for_a_w(room: int, extra: int) -> None:
    """Two take 6 bytes; where the byte that a W frees fits beside them, nothing says that it has ended."""
    ones = {"device": (0,), "forward": (5,), "backward": (4,), "weight": (9,), "split": (True,), "ending": (0,)}
    memory = {"taken": (3,), "freed": (2,), "freed_by_weight": (1,), "base": (0,), "limit": (room,)}
    problem = PipelineSchedule(micro_batches=4, lag=(), lag_back=(), **ones, **memory)
    assert [(own.capacity, own.extra) for own in holdings(problem) if own.counts] == [(2, extra)]


@given(st.sets(st.integers(1, 40), min_size=1, max_size=4), st.integers(0, 200))
@settings(max_examples=200, deadline=None)
def test_largest_sum(weights, room):
    """The largest sum is a sum of multiples of the weights, and no larger one fits."""
    made = {0}
    for total in range(1, room + 1):
        if any(total - weight in made for weight in weights):
            made.add(total)
    assert largest_sum(weights, room) == max(made)
