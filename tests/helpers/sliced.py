"""Plans whose sequences run in slices, one after the other."""

from collections.abc import Sequence
from dataclasses import replace

from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Action, Kind, Schedule


def sliced(plan: Plan, tokens: Sequence[int]) -> Plan:
    """The plan with each action once for each slice: forwards in order, backwards in reverse."""
    return replace(plan, slices=tuple(tokens), schedule=sliced_schedule(plan.schedule, len(tokens)))


def sliced_schedule(schedule: Schedule, count: int) -> Schedule:
    """The schedule with each action once for each of so many slices."""

    def each(action: Action) -> list[Action]:
        if not action.kind.per_micro_batch:
            return [action]
        parts = range(count) if action.kind is Kind.FORWARD else reversed(range(count))
        return [action._replace(slice=part) for part in parts]

    orders = (tuple(own for action in order for own in each(action)) for order in schedule.orders)
    return replace(schedule, orders=tuple(orders))


def on_one_rank(schedule: Schedule) -> Schedule:
    """The schedule of a rank that has all stages of another one: a micro-batch after the other, forward and back."""
    actions = [a for a in schedule.actions() if a.kind.per_micro_batch]
    place = {Kind.FORWARD: 0, Kind.BACKWARD: 1, Kind.INPUT_GRADIENT: 1, Kind.WEIGHT_GRADIENT: 2}

    def rank(a: Action) -> tuple[int, ...]:
        back = a.kind is not Kind.FORWARD
        return place[a.kind], a.micro_batch, -a.stage if back else a.stage

    ends = [a for a in schedule.actions() if not a.kind.per_micro_batch and a.kind is not Kind.REDUCE]
    return replace(schedule, orders=((*sorted(actions, key=rank), *ends),))
