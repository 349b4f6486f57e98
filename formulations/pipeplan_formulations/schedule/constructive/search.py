"""Constructive search: the portfolio as time allows, then tuning of its best rules, then local search."""

import time
from collections.abc import Iterator
from itertools import count
from typing import Generic, TypeVar

from pipeplan_formulations.schedule.constructive.dispatch import Numbered, Rule, dispatch, to_numbers, to_orders, tuned
from pipeplan_formulations.schedule.constructive.local_search import Network, annealed, improved
from pipeplan_formulations.schedule.constructive.portfolio import dispatched, handwritten
from pipeplan_formulations.schedule.instance import Orders, PipelineSchedule
from pipeplan_formulations.schedule.objective import evaluate

_PORTFOLIO, _TUNING = 0.25, 0.35  # shares of the time after which these end
_TUNED = 6  # number of rules that are tuned
_STARTS = 3  # number of schedules from which local search starts

_Item = TypeVar("_Item")


class _Best(Generic[_Item]):
    """Best few items, one per makespan, since equal makespans are often the same schedule."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[int, _Item] = {}

    def add(self, makespan: int, item: _Item) -> None:
        self._kept.setdefault(makespan, item)
        if len(self._kept) > self._most:
            del self._kept[max(self._kept)]

    @property
    def least(self) -> int:
        return min(self._kept)

    def sorted(self) -> list[tuple[int, _Item]]:
        return [(value, self._kept[value]) for value in sorted(self._kept)]


def constructive(problem: PipelineSchedule, seconds: float, bound: int = 0) -> tuple[int, Orders] | None:
    """Return a good schedule with its makespan; None exactly if one micro-batch does not fit.

    Parameters
    ----------
    seconds : float
        Wall time. It decides the number of portfolio members that run, not their results; 1F1B, the zero-bubble
        schedules and a first rule always run. The same holds for the steps of the searches.
    bound : int
        Makespan that is good enough, such as a lower bound: the search ends once it is reached.
    """
    if not problem.possible:
        return None
    begin = time.monotonic()
    found: _Best[Numbered] = _Best(_STARTS)
    for value, orders in _written(problem):
        found.add(value, orders)
    rules = _run(problem, found, begin + _PORTFOLIO * seconds, bound)
    for number, rule in enumerate(rules):
        if found.least > bound:
            found.add(*tuned(problem, rule, _share(begin + _TUNING * seconds, len(rules) - number)))
    (_swap if problem.plain else _anneal)(problem, found, begin + seconds, bound)
    return found.least, to_orders(problem, found.sorted()[0][1])


def _swap(problem: PipelineSchedule, found: _Best[Numbered], until: float, bound: int) -> None:
    """Tabu search from the best schedules, for problems without two lanes and link resources."""
    network, seeds = Network(problem), count()
    while found.least > bound and time.monotonic() < until:
        seed = next(seeds)
        for _, orders in found.sorted():
            found.add(*improved(network, orders, until, seed))


def _anneal(problem: PipelineSchedule, found: _Best[Numbered], until: float, bound: int) -> None:
    """Simulated annealing from the best schedules, with lanes and link resources."""
    starts = found.sorted()
    for place, (_, orders) in enumerate(starts):
        if found.least > bound:
            seconds = _share(until, len(starts) - place) - time.monotonic()
            value, better = annealed(problem, to_orders(problem, orders), seconds, bound=bound)
            found.add(value, to_numbers(problem, better))


def _written(problem: PipelineSchedule) -> Iterator[tuple[int, Numbered]]:
    for orders in handwritten(problem):
        value = evaluate(problem, to_orders(problem, orders))
        if value is not None:
            yield value, orders


def _run(problem: PipelineSchedule, found: _Best[Numbered], until: float, bound: int) -> list[Rule]:
    """Run the rules, record their schedules, and return the best few rules."""
    best: _Best[Rule] = _Best(_TUNED)
    for rule in dispatched(problem):
        value, orders = dispatch(problem, rule)
        found.add(value, orders)
        best.add(value, rule)
        if value <= bound or time.monotonic() > until:
            break
    return [rule for _, rule in best.sorted()]


def _share(until: float, parts: int) -> float:
    """End of the first of ``parts`` equal parts of the time from now on."""
    now = time.monotonic()
    return now + (until - now) / parts
