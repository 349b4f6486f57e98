"""The portfolio as time allows, then its best rules tuned, then local search from the best schedules."""

import time
from collections.abc import Iterator
from itertools import chain, count
from typing import Generic, TypeVar

from pipeplan_formulations.schedule.constructive.dispatch import Numbered, Rule, dispatch, to_numbers, to_orders, tuned
from pipeplan_formulations.schedule.constructive.local_search import Network, annealed, improved
from pipeplan_formulations.schedule.constructive.members import automatic, dispatched, handwritten
from pipeplan_formulations.schedule.instance import Orders, PipelineSchedule
from pipeplan_formulations.schedule.objective import evaluate

_PORTFOLIO, _TUNING = 0.25, 0.35  # of the time has passed when these end
_TUNED = 6  # rules
_STARTS = 3  # schedules from which local search sets out

_Item = TypeVar("_Item")


class _Best(Generic[_Item]):
    """The best few, one of each makespan: equal ones are often the same schedule."""

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
    """A good schedule and its makespan; None if there is none, which is so exactly if one micro-batch does not fit.

    Parameters
    ----------
    seconds : float
        Wall time. What a member of the portfolio finds does not depend on it, only how many of them run; 1F1B, the
        zero-bubble schedules and a first rule always do. The same holds for the steps of the searches.
    bound : int
        A makespan that is good enough, as one below which there is none: the search ends where it is met.
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
    """Local search from the best schedules; its network has no lanes and no wires."""
    network, seeds = Network(problem), count()
    while found.least > bound and time.monotonic() < until:
        seed = next(seeds)
        for _, orders in found.sorted():
            found.add(*improved(network, orders, until, seed))


def _anneal(problem: PipelineSchedule, found: _Best[Numbered], until: float, bound: int) -> None:
    """Local search that times whole schedules, with lanes and wires."""
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
    """Run rules and note what they find; the best few of them."""
    best: _Best[Rule] = _Best(_TUNED)
    for rule in chain(automatic(problem), dispatched(problem)):
        value, orders = dispatch(problem, rule)
        found.add(value, orders)
        best.add(value, rule)
        if value <= bound or time.monotonic() > until:
            break
    return [rule for _, rule in best.sorted()]


def _share(until: float, parts: int) -> float:
    """The end of the first of some equal parts of the time from now on."""
    now = time.monotonic()
    return now + (until - now) / parts
