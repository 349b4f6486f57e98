"""Head and tail of a step around the steady state: each tried greedy from several points on, the best one kept."""

import itertools
from collections.abc import Iterator

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.schedule.cyclic.dispatch import Rule, dispatched, joined
from pipeplan_formulations.schedule.instance import Orders, PipelineSchedule
from pipeplan_formulations.schedule.objective import evaluate, makespan, starts

TAILS = (1.0, 0.7, 1.4, 0.5, 2.0)
"""Where a greedy tail begins: so many latencies before the end of the step."""
HEADS = (0.5, 0.75, 0.35, 1.0, 1.5)
"""Where a greedy head ends: so many latencies after the beginning."""
RULES = (Rule(0.5), Rule(0.0), Rule(1.0), Rule(0.5, backwards_first=False), Rule(1.0, backwards_first=False))


def with_ends(problem: PipelineSchedule, orders: Orders, latency: int, clock: Clock) -> Orders:
    """Orders at least as good, with other heads and tails, until the clock runs out."""
    for candidates in (_whole, _tails, _heads, _tails):
        if clock.left <= 0:
            break
        orders = _best(problem, orders, candidates(problem, orders, latency), clock)
    return orders


def with_tail(problem: PipelineSchedule, orders: Orders, latency: int, clock: Clock) -> Orders:
    """The same for tails alone."""
    return _best(problem, orders, _tails(problem, orders, latency), clock)


def _best(problem: PipelineSchedule, orders: Orders, trials: Iterator[Orders | None], clock: Clock) -> Orders:
    """The best of orders and trials, until the clock runs out."""
    best, value = orders, evaluate(problem, orders)
    for trial in trials:
        worth = None if trial is None else evaluate(problem, trial)
        if trial is not None and worth is not None and (value is None or worth < value):
            best, value = trial, worth
        if clock.left <= 0:
            break
    return best


def _whole(problem: PipelineSchedule, orders: Orders, _: int) -> Iterator[Orders | None]:
    """Greedy from the beginning to the end, which is hard to beat where memory is plenty."""
    return (dispatched(problem, tuple(() for _ in orders), rule) for rule in RULES)


def _tails(problem: PipelineSchedule, orders: Orders, latency: int) -> Iterator[Orders | None]:
    begun = starts(problem, orders)
    if begun is None:
        return
    end = makespan(problem, begun)
    for share, rule in itertools.product(TAILS, RULES):
        cut = end - int(share * latency)
        yield dispatched(problem, tuple(tuple(op for op in order if begun[op] < cut) for order in orders), rule)


def _heads(problem: PipelineSchedule, orders: Orders, latency: int) -> Iterator[Orders | None]:
    for rule in RULES:
        greedy = dispatched(problem, tuple(() for _ in orders), rule)
        begun = None if greedy is None else starts(problem, greedy)
        if greedy is None or begun is None:
            continue
        for share in HEADS:
            cut = int(share * latency)
            yield joined(tuple(tuple(op for op in order if begun[op] < cut) for order in greedy), orders)
