"""List schedules of a whole step, rule after rule; where it is long, first the rules that are best on a shorter one."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import chain

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.schedule.constructive.dispatch import dispatch
from pipeplan_formulations.schedule.constructive.members import automatic, dispatched
from pipeplan_formulations.schedule.constructive.numbers import to_orders
from pipeplan_formulations.schedule.constructive.rule import Rule
from pipeplan_formulations.schedule.instance import Orders, PipelineSchedule

ROUNDS = (4, 8)
"""Micro-batches for each stage of the two steps on which rules are ranked."""
LONG = 2
"""A step is long if it has so many times the micro-batches of the longer one."""


def ruled(problem: PipelineSchedule, ranking: Clock) -> Iterator[Orders | None]:
    """For each rule its orders of a possible problem, or None where a rule before was as good.

    ``ranking`` limits the time in which rules are ranked; there is no limit to the rest.
    """
    least: int | None = None
    for rule in _ranked(problem, ranking):
        value, numbered = dispatch(problem, rule)
        if least is None or value < least:
            least = value
            yield to_orders(problem, numbered)
        else:
            yield None


def _ranked(problem: PipelineSchedule, clock: Clock) -> Iterator[Rule]:
    """As the portfolio orders them, or where a step is long, by what they make of a shorter one.

    From two short steps it is foreseen what the long one takes: good ends are soon made good for by a good middle.
    """
    few, some = (rounds * problem.stages for rounds in ROUNDS)
    if problem.micro_batches < LONG * some:
        yield from _rules(problem)
        return
    short, longer = replace(problem, micro_batches=few), replace(problem, micro_batches=some)
    times = Fraction(problem.micro_batches - some, some - few)
    foreseen: list[tuple[Fraction, int]] = []
    for place, (rule, same) in enumerate(zip(_rules(short), _rules(longer), strict=True)):
        value = dispatch(longer, same)[0]
        foreseen.append((value + times * (value - dispatch(short, rule)[0]), place))
        if clock.left <= 0:
            break
    rules = list(_rules(problem))
    yield from (rules[place] for _, place in sorted(foreseen))


def _rules(problem: PipelineSchedule) -> Iterator[Rule]:
    return chain(automatic(problem), dispatched(problem))
