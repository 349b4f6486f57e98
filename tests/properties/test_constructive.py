"""Constructive portfolio on random pipelines of up to 16 devices."""

from dataclasses import replace
from itertools import islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.happening import happens
from helpers.pipeline_schedules import random_schedule, random_ways
from pipeplan_formulations.schedule import Op, Orders, PipelineSchedule, evaluate
from pipeplan_formulations.schedule.constructive import constructive
from pipeplan_formulations.schedule.constructive.dispatch import dispatch, to_orders
from pipeplan_formulations.schedule.constructive.local_search import Network, moves
from pipeplan_formulations.schedule.constructive.portfolio import dispatched, handwritten

seeds = st.integers(0, 10**9)


def wide_schedule(seed: int) -> PipelineSchedule:
    """Random problem: up to 16 devices with one or two stages each, in any placement, memory often short."""
    draw = Random(seed)
    devices, m = draw.choice((1, 2, 3, 4, 6, 8, 16)), draw.randint(1, 10)
    line = list(range(devices))
    device = draw.choice((line, line, line + line[::-1], line + line, [draw.choice(line) for _ in line]))
    stages = len(device)
    split = [draw.random() < draw.choice((0.0, 0.5, 1.0)) for _ in device]

    def numbers(count: int, least: int, most: int) -> tuple[int, ...]:
        return tuple(draw.randint(least, most) for _ in range(count))

    freed, by_weight = numbers(stages, 0, 60), tuple(draw.randint(0, 40) if one else 0 for one in split)
    taken = tuple(a + b for a, b in zip(freed, by_weight, strict=True))
    one = [sum(taken[s] for s in range(stages) if device[s] == d) for d in line]
    tight = draw.choice((0.0, 0.5, 1.0, 3.0, 30.0))
    base = numbers(devices, 0, 50)
    limit = [b + n + int(tight * draw.random() * n) for b, n in zip(base, one, strict=True)]
    if draw.random() < 0.1:
        victim = draw.choice(line)
        limit[victim] = base[victim] + one[victim] - draw.choice((1, 20))
    return PipelineSchedule(
        device=tuple(device),
        micro_batches=m,
        forward=numbers(stages, 1, 100),
        backward=numbers(stages, 1, 100),
        weight=tuple(draw.randint(1, 100) if one else 0 for one in split),
        split=tuple(split),
        lag=numbers(stages - 1, 0, 30),
        lag_back=numbers(stages - 1, 0, 30),
        ending=numbers(stages, 0, draw.choice((0, 200))),
        taken=taken,
        freed=freed,
        freed_by_weight=by_weight,
        base=base,
        limit=tuple(limit),
    )


def one_forward_one_backward(problem: PipelineSchedule) -> Orders:
    """Lists of 1F1B: the forwards that fit, no more than on the stage before; then I, its W and F alternately."""
    orders: list[tuple[Op, ...]] = [()] * problem.devices
    held = m = problem.micro_batches
    for s, device in enumerate(problem.device):
        held = min(held, problem.room[device] // problem.taken[s] if problem.taken[s] else m)
        words = [Op("F", s, i) for i in range(held)]
        for i in range(m):
            words += [Op("I", s, i), *([Op("W", s, i)] if problem.split[s] else [])]
            words += [Op("F", s, i + held)] if i + held < m else []
        orders[device] = tuple(words)
    return tuple(orders)


@given(seeds)
@settings(max_examples=80, deadline=None)
def test_schedules_are_complete_and_fit(seed: int) -> None:
    """The orders are feasible, with the reported makespan; None exactly if one micro-batch does not fit."""
    problem = wide_schedule(seed)
    found = constructive(problem, 0.05)
    full = [
        base + sum(t for t, home in zip(problem.taken, problem.device, strict=True) if home == d)
        for d, base in enumerate(problem.base)
    ]
    assert (found is None) == any(need > limit for need, limit in zip(full, problem.limit, strict=True))
    if found is not None:
        assert evaluate(problem, found[1]) == found[0]


@pytest.mark.happens(0.3)
@given(seeds)
@settings(max_examples=60, deadline=None)
def test_never_worse_than_one_forward_one_backward(seed: int) -> None:
    """With one stage per device the makespan is at most that of 1F1B with all in flight that fit, at any time limit."""
    problem = wide_schedule(seed)
    if happens(problem.possible and len(set(problem.device)) == problem.stages):
        found, known = constructive(problem, 0.0), evaluate(problem, one_forward_one_backward(problem))
        assert found is not None
        assert known is not None
        assert found[0] <= known


@pytest.mark.happens(0.3)
@given(seeds)
@settings(max_examples=40, deadline=None)
def test_every_rule_ends_and_fits(seed: int) -> None:
    """Every dispatching rule alone gives a complete schedule within memory, with the correct makespan."""
    problem = wide_schedule(seed)
    if happens(problem.possible and problem.stages <= 8):
        for rule in list(dispatched(problem))[seed % 5 :: 5]:
            value, orders = dispatch(problem, rule)
            assert evaluate(problem, to_orders(problem, orders)) == value


@pytest.mark.happens(0.3)
@given(seeds)
@settings(max_examples=60, deadline=None)
def test_handwritten_lists_end(seed: int) -> None:
    """1F1B and the zero-bubble lists are complete and never deadlock, without regard to memory."""
    problem = wide_schedule(seed)
    if happens(problem.possible):
        for orders in handwritten(problem):
            written = to_orders(problem, orders)
            free = replace(problem, limit=(10**9,) * problem.devices)
            assert evaluate(free, written) is not None


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_estimates_never_exceed_what_an_exchange_gives(seed: int) -> None:
    """An exchange proposed by local search respects memory, and its makespan is at least the estimate."""
    problem = wide_schedule(seed)
    if not problem.possible:
        return
    network = Network(problem)
    value, orders = dispatch(problem, next(dispatched(problem)))
    timed = network.timed(orders)
    assert timed is not None
    assert timed.makespan == value
    for estimate, device, place in moves(network, orders, timed):
        swapped = [list(order) for order in orders]
        swapped[device][place : place + 2] = reversed(swapped[device][place : place + 2])
        after = evaluate(problem, to_orders(problem, swapped))
        assert after is not None
        assert after >= estimate


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_network_times_as_the_evaluator(seed: int) -> None:
    """Heads are the evaluator's starts; head plus tail never exceeds the makespan, and equals it somewhere."""
    problem = random_schedule(seed)
    if not problem.possible:
        return
    network = Network(problem)
    for rule in islice(dispatched(problem), 3):
        _, orders = dispatch(problem, rule)
        timed = network.timed(orders)
        assert timed is not None
        assert timed.makespan == evaluate(problem, to_orders(problem, orders))
        lengths = [timed.heads[op] + timed.tails[op] for order in orders for op in order]
        assert max(lengths) == timed.makespan


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_lanes_and_resources_are_timed_as_they_are(seed: int) -> None:
    """With two lanes and shared link resources every rule is feasible too, and the reported makespan is correct."""
    problem = random_ways(seed)
    if not problem.possible:
        assert constructive(problem, 0.0) is None
        return
    for rule in list(dispatched(problem))[seed % 20 :: 20]:
        value, orders = dispatch(problem, rule)
        assert evaluate(problem, to_orders(problem, orders)) == value
    found = constructive(problem, 0.01)
    assert found is not None
    assert evaluate(problem, found[1]) == found[0]
