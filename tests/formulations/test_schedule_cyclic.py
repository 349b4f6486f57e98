"""Cyclic schedules: endless patterns, their lower bounds, and the steps built from them."""

from dataclasses import replace
from itertools import islice, pairwise, permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.happening import happens
from helpers.lines import line
from helpers.pipeline_schedules import random_schedule
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Stop
from pipeplan_formulations.schedule import Op, PipelineSchedule, evaluate, exact, feasible
from pipeplan_formulations.schedule.cyclic import (
    Pattern,
    least_period,
    patterns,
    period_bound,
    refined,
    solve,
    step_bound,
    unrolled,
)
from pipeplan_formulations.schedule.cyclic.drain import drain_bound
from pipeplan_formulations.schedule.cyclic.ends import Rule, dispatched, joined
from pipeplan_formulations.schedule.cyclic.holding import largest_sum, reach
from pipeplan_formulations.schedule.cyclic.pattern import compact
from pipeplan_formulations.schedule.cyclic.period import Found, modulo
from pipeplan_formulations.schedule.cyclic.repeat import stretched
from pipeplan_formulations.schedule.cyclic.stride import by_strides, stride, stride_bound
from pipeplan_formulations.schedule.cyclic.unrolled import by_rules
from pipeplan_formulations.schedule.objective import peaks, starts

QUICK = Limits(time=5.0, workers=1)


def unit_times(device: tuple[int, ...], in_flight: int) -> PipelineSchedule:
    """F = I = W = 1, no lags; a micro-batch of a stage takes two bytes, I frees one and W the other."""
    stages, devices = len(device), max(device) + 1
    ones, none = (1,) * stages, (0,) * stages
    return PipelineSchedule(
        device=device,
        micro_batches=16,
        forward=ones,
        backward=ones,
        weight=ones,
        split=(True,) * stages,
        lag=none[1:],
        lag_back=none[1:],
        ending=none,
        taken=(2,) * stages,
        freed=ones,
        freed_by_weight=ones,
        base=(0,) * devices,
        limit=(2 * in_flight,) * devices,
    )


def instant(problem: PipelineSchedule) -> bool:
    """True if some operation takes no time."""
    return not all(min(problem.time[kind][s] for kind in problem.kinds(s)) for s in range(problem.stages))


@pytest.mark.parametrize(("unit", "period", "held"), [(1, 3, 16), (2, 6, 12), (1, 4, 9), (2, 8, 9)])
def test_least_memory_of_eight_stages(unit, period, held):
    """Eight equal stages need memory for 8 micro-batches at 3 a period of one, for 6 at 6 of two, and for 4.5 at 4."""
    problem = unit_times(tuple(range(8)), 16)
    found = modulo(problem, unit, period, Limits(time=60.0), "memory")
    assert found.proved
    assert found.pattern is not None and not found.pattern.faults(problem)
    assert max(found.pattern.peaks(problem)) == held


@pytest.mark.slow
@pytest.mark.parametrize(("period", "halves"), [(6, 14), (7, 13), (8, 12)])
def test_least_memory_of_eight_devices_in_a_v(period, halves):
    """With two chunks per device in a V less memory is enough, counted in bytes of a chunk's I or W."""
    problem = unit_times((*range(8), *reversed(range(8))), 16)
    found = modulo(problem, 1, period, Limits(time=200.0), "memory")
    assert found.pattern is not None and not found.pattern.faults(problem)
    assert max(found.pattern.peaks(problem)) <= halves


@given(st.integers(0, 10**6), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_patterns_are_schedules(seed, unit):
    """A least period has a pattern without faults, above its bounds; unrolled orders respect its period and memory."""
    problem = random_schedule(seed)
    least = least_period(problem, unit, QUICK)
    assert (least.pattern is None) == (not problem.possible)
    if least.pattern is None:
        return
    assert not least.pattern.faults(problem)
    assert least.pattern.period >= least.bound >= least.any_unit == period_bound(problem, unit)
    long = replace(problem, micro_batches=10 * unit)
    orders = least.pattern.orders(long)
    value = evaluate(long, orders)
    assert value is not None
    assert value <= least.pattern.latency(long) + 9 * least.pattern.period + max(long.ending)
    held = [peak - base for peak, base in zip(peaks(long, orders), long.base, strict=True)]
    assert all(a <= b for a, b in zip(held, least.pattern.peaks(problem), strict=True))


@given(st.integers(0, 10**6))
@settings(max_examples=80, deadline=None)
def test_bounds_stay_below_the_optimum(seed):
    """No step is shorter than its bound, or than the mean time of as many micro-batches in an endless schedule."""
    problem = random_schedule(seed)
    report = exact.solve(problem, Limits(time=20.0))
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
        best = exact.solve(problem, Limits(time=20.0)).objective
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
    best = exact.solve(problem, Limits(time=20.0))
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
    report = solve(problem, Limits(time=3.0, workers=1))
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
    """The period bound does not depend on the number of micro-batches, and patterns found without it respect it."""
    problem = random_schedule(seed)
    bound = period_bound(problem)
    assert all(period_bound(replace(problem, micro_batches=m)) == bound for m in (1, 2, 50))
    for period in range(1, bound):
        assert compact(problem, period) is None
        if not instant(problem):
            assert modulo(problem, 1, period, QUICK) == Found(None, True)
    if bound > 0 and not instant(problem):
        assert modulo(problem, 2, period_bound(problem, 2) - 1, QUICK) == Found(None, True)


@pytest.mark.happens(0.3)
@given(st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_a_step_is_a_pattern(seed):
    """The least period of all micro-batches of a step is at most its optimum, and no proof contradicts that."""
    problem = random_schedule(seed, most_micro_batches=3)
    best = exact.solve(problem, Limits(time=20.0)).objective
    if happens(best is not None and not instant(problem)):
        least = least_period(problem, problem.micro_batches, QUICK)
        assert least.bound <= best - max(0, min(problem.ending))


@given(st.integers(0, 10**6), st.integers(-3, 3), st.integers(0, 20))
@settings(max_examples=100, deadline=None)
def test_faults_are_found(seed, shift, which):
    """A pattern with one moved start has faults exactly if its long unrolling breaks a rule."""
    problem = random_schedule(seed)
    if not problem.possible or instant(problem):
        return
    pattern = least_period(problem, 1, QUICK).pattern
    assert pattern is not None
    op = sorted(pattern.starts)[which % len(pattern.starts)]
    moved = Pattern(1, pattern.period, {**pattern.starts, op: pattern.starts[op] + shift * pattern.period // 3})
    assert bool(moved.faults(problem)) == breaks_a_rule(problem, moved)


def breaks_a_rule(problem: PipelineSchedule, pattern: Pattern) -> bool:
    """True if the starts of sixty periods break inputs and memory limit of the schedule problem in their middle."""
    times = {
        op._replace(micro_batch=n): begin + n * pattern.period
        for op, begin in pattern.starts.items()
        for n in range(60)
    }
    ends = {op: begin + problem.duration(op) for op, begin in times.items()}
    for (kind, s, n), begin in times.items():
        if kind == "F" and s and begin < ends[Op("F", s - 1, n)] + problem.lag[s - 1]:
            return True
        if kind == "I" and begin < ends[Op("F", s, n)]:
            return True
        if kind == "I" and s + 1 < problem.stages and begin < ends[Op("I", s + 1, n)] + problem.lag_back[s]:
            return True
        if kind == "W" and begin < ends[Op("I", s, n)]:
            return True
    for d, hosted in enumerate(problem.hosted):
        mine = sorted((begin, ends[op]) for op, begin in times.items() if op.stage in hosted)
        if any(then < end for (_, end), (then, _) in pairwise(mine)):
            return True
        events = [
            (times[op] if op.kind == "F" else ends[op], problem.delta[op.kind][op.stage])
            for op in times
            if op.stage in hosted
        ]
        held = 0
        for _, change in sorted(events):
            held += change
            if held > problem.room[d]:
                return True
    return False


def test_settling_keeps_the_period():
    """Least latency and least memory are found at the same period, each no worse than the other in its own aim."""
    problem = line(4, 16, 6)
    pattern = least_period(problem, 1, QUICK).pattern
    assert pattern is not None
    short, small = (refined(problem, pattern, Limits(time=10.0), aim) for aim in ("latency", "memory"))
    assert short.period == small.period == pattern.period
    assert not short.faults(problem) and not small.faults(problem)
    assert short.latency(problem) <= min(small.latency(problem), pattern.latency(problem))
    assert max(small.peaks(problem)) <= min(max(short.peaks(problem)), max(pattern.peaks(problem)))


@given(st.integers(0, 10**6), st.sampled_from([Rule(), Rule(0.5), Rule(1.0, backwards_first=False)]))
@settings(max_examples=100, deadline=None)
def test_greedy_ends_are_complete(seed, rule):
    """A greedy tail after any prefix is complete and respects memory; with two stages on a device it may fail."""
    problem = replace(random_schedule(seed), micro_batches=6)
    empty = tuple(() for _ in problem.base)
    orders = dispatched(problem, empty, rule)
    if orders is None:
        assert not problem.possible or any(len(hosted) > 1 for hosted in problem.hosted)
        return
    value, begun = evaluate(problem, orders), starts(problem, orders)
    assert value is not None and begun is not None
    beginning = tuple(tuple(op for op in order if begun[op] < value // 2) for order in orders)
    assert joined(beginning, orders) == orders
    again = dispatched(problem, beginning, rule)
    assert again is not None and evaluate(problem, again) is not None
    assert all(a[: len(b)] == b for a, b in zip(again, beginning, strict=True))


@pytest.mark.parametrize("in_flight", [2, 4, 6])
def test_stretching_keeps_what_is_around(in_flight):
    """A stretched schedule is feasible, and takes one more period for each additional micro-batch."""
    small = line(4, 24, in_flight, 0.3)
    pattern = least_period(small, 1, QUICK).pattern
    assert pattern is not None
    orders = pattern.orders(small)
    before = evaluate(small, orders)
    long = stretched(small, orders, 144, Clock(Limits(time=20.0)))
    assert long is not None and before is not None
    after = evaluate(replace(small, micro_batches=144), long)
    assert after is not None
    assert period_bound(small, 120) <= after - before + pattern.latency(small)
    assert after <= before + 120 * pattern.period


@given(st.integers(0, 10**6), st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_compact_patterns_are_schedules(seed, more):
    """A pattern built without a solver has no faults, and exists at a period with room for all operations."""
    problem = random_schedule(seed)
    pattern = compact(problem, max(1, period_bound(problem)) + more)
    assert pattern is None or not pattern.faults(problem)
    free = replace(problem, limit=tuple(10**6 for _ in problem.base))
    at_ease = compact(free, max(1, free.largest))
    assert at_ease is not None and not at_ease.faults(free)


def test_sixty_four_stages_keep_the_busiest_device_busy():
    """Without a solver 64 stages with memory for 64 micro-batches have the period of their busiest device's work."""
    for spread in (0.0, 0.3):
        problem = line(64, 256, 64, spread)
        pattern = compact(problem, period_bound(problem))
        assert pattern is not None and pattern.period * 256 == max(problem.work)
        assert evaluate(problem, pattern.orders(problem)) is not None


@given(st.integers(0, 10**6))
@settings(max_examples=12, deadline=None)
def test_steps_of_any_number(seed):
    """For any number of micro-batches the orders are feasible, and impossible problems are detected."""
    problem = replace(random_schedule(seed), micro_batches=45)
    report = solve(problem, Limits(time=1.5, gap=0.05, workers=1))
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


def test_orders_given_are_never_lost():
    """With given orders and very little time, the result is no worse than they are."""
    problem = line(3, 40, 3)
    best = solve(problem, Limits(time=4.0)).solution
    again = solve(problem, Limits(time=0.1), hint=best)
    assert again.objective is not None and best is not None
    assert again.objective <= (evaluate(problem, best) or 0)


def test_a_thousand_micro_batches():
    """With memory for every device, a step of 1,000 micro-batches is within two per cent of its bound."""
    problem = line(4, 1000, 4, 0.3)
    report = solve(problem, Limits(time=15.0, gap=0.02))
    assert report.gap is not None and report.gap <= 0.02
    assert evaluate(problem, report.solution) == report.objective


def test_sixty_four_devices():
    """With memory for 64 micro-batches a step of 256 over 64 equal stages is found within half a per cent."""
    problem = line(64, 256, 64)
    report = solve(problem, Limits(time=40.0, gap=0.005))
    assert report.gap is not None and report.gap <= 0.005
    assert evaluate(problem, report.solution) == report.objective


def test_a_second_micro_batch_helps():
    """With little memory a period of two micro-batches is below twice that of one, and the step is built from it."""
    problem = unit_times(tuple(range(4)), 3)
    one, two = (least_period(problem, unit, Limits(time=20.0)).pattern for unit in (1, 2))
    assert one is not None and two is not None
    assert two.period < 2 * one.period
    orders = unrolled(replace(problem, micro_batches=202), Limits(time=3.0, workers=1))
    assert orders is not None
    value = evaluate(replace(problem, micro_batches=202), orders)
    assert value is not None and value <= 101 * two.period + two.latency(problem)


def test_patterns_come_best_first():
    """Of the patterns of several units the first has the least period per micro-batch, and none has faults."""
    problem = line(3, 8, 2)
    limits = Limits(time=2.0, workers=1)
    found = patterns(problem, limits, Clock(limits))
    assert found and not any(pattern.faults(problem) for pattern in found)
    means = [pattern.period / pattern.unit for pattern in found]
    assert means == sorted(means)


@given(st.sets(st.integers(1, 40), min_size=1, max_size=4), st.integers(0, 200))
@settings(max_examples=200, deadline=None)
def test_largest_sum(weights, room):
    """The largest sum is a sum of multiples of the weights, and no larger one fits."""
    made = {0}
    for total in range(1, room + 1):
        if any(total - weight in made for weight in weights):
            made.add(total)
    assert largest_sum(weights, room) == max(made)
