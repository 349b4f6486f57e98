"""List schedules of a whole step, rule after rule; where it is long, first the rules that are best on a shorter one."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from pipeplan_formulations.clock import Clock
from pipeplan_formulations.schedule.constructive.dispatch import dispatch
from pipeplan_formulations.schedule.constructive.members import automatic, dispatched
from pipeplan_formulations.schedule.constructive.numbers import to_orders
from pipeplan_formulations.schedule.constructive.rule import Rule
from pipeplan_formulations.schedule.problem import Orders, PipelineSchedule

LONG = 20_000
"""Forwards of a step from which on rules are ranked first."""
ROUNDS = 4
"""Micro-batches for each stage of the step on which they are ranked."""


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
    """As the portfolio orders them, or where a step is long, by what they make of a shorter one."""
    few = ROUNDS * problem.stages
    if problem.micro_batches * problem.stages <= LONG or problem.micro_batches < 2 * few:
        yield from _rules(problem)
        return
    short = replace(problem, micro_batches=few)
    values: list[tuple[int, int]] = []
    for place, rule in enumerate(_rules(short)):
        values.append((dispatch(short, rule)[0], place))
        if clock.left <= 0:
            break
    rules = list(_rules(problem))
    yield from (rules[place] for _, place in sorted(values))


def _rules(problem: PipelineSchedule) -> Iterator[Rule]:
    return chain(automatic(problem), dispatched(problem))
