"""Orders that were found, as a schedule family of one member: judged, drafted and run like any other."""

from collections.abc import Sequence
from functools import partial

from pipeplan.core.schedule import Action, Schedule
from pipeplan.schedules import Family
from pipeplan.schedules.family import closing, shares
from pipeplan.search.scheduling.lists import FAMILY, kind_of
from pipeplan.search.space.in_flight import held_at_most
from pipeplan_formulations.joint import Choice
from pipeplan_formulations.schedule import Orders


def found_family(choice: Choice, orders: Orders) -> Family:
    """The family that writes these orders of one row, on every row of replicas."""
    return Family(
        FAMILY,
        partial(_write, choice=choice, orders=orders),
        partial(held_at_most, in_flight=choice.in_flight),
        frozenset(),
        "an order that was found for these stages",
    )


def _write(replicas: Sequence[int], micro_batches: int, *, choice: Choice, orders: Orders) -> Schedule:
    lists = []
    for stage, own in shares(replicas, micro_batches):
        actions = (
            Action(kind_of(op, choice.split[stage]), stage, own[op.micro_batch])
            for op in orders[stage]
            if op.micro_batch < len(own)
        )
        lists.append((*actions, *closing((stage,), replicas)))
    return Schedule(FAMILY, tuple(lists))
