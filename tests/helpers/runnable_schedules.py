"""Random schedules that real ranks can run, from a generator: replicas, in-flight counts, any order of actions."""

import random

from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.schedules import FAMILIES
from pipeplan.schedules.alternate import first_deadlock


def random_replicas(generator: random.Random, world: int) -> tuple[int, ...]:
    """A composition of ``world``: any number of stages, any widths."""
    edges = sorted(generator.sample(range(1, world), generator.randint(0, world - 1)))
    return tuple(b - a for a, b in zip([0, *edges], [*edges, world], strict=True))


def random_in_flight(generator: random.Random, replicas: tuple[int, ...]) -> tuple[int, ...]:
    """In-flight counts with which 1F1B does not deadlock."""
    while True:
        in_flight = tuple(generator.randint(1, 6) for _ in replicas)
        if first_deadlock(replicas, in_flight) is None:
            return in_flight


def any_order(generator: random.Random, world: int, most_stages: int, micro_batches: int) -> Schedule:
    """Random order without deadlock, on any placement with any replicas; some micro-batches split their backward.

    The replica of a stage for each micro-batch is drawn too. All reductions come at the end.
    """
    stages = generator.randint(1, most_stages)
    homes: list[list[int]] = [[] for _ in range(stages)]
    for rank in range(world):  # every rank has a stage, and every stage a rank
        homes[generator.randrange(stages)].append(rank)
    for ranks in homes:
        ranks += [] if ranks else [generator.randrange(world)]
    owner = {(s, m): generator.choice(homes[s]) for s in range(stages) for m in range(micro_batches)}
    split = {m for m in range(micro_batches) if generator.random() < 0.4}
    orders: list[list[Action]] = [[] for _ in range(world)]
    done: set[tuple[str, int, int]] = set()
    todo = {
        (kind, s, m) for s in range(stages) for m in range(micro_batches) for kind in ("FIW" if m in split else "FB")
    }

    def ready(kind: str, s: int, m: int) -> bool:
        back = "I" if m in split else "B"
        if kind == "F":
            return s == 0 or ("F", s - 1, m) in done
        if kind == "W":
            return ("I", s, m) in done
        return ("F", s, m) in done and (s == stages - 1 or (back, s + 1, m) in done)

    while todo:
        kind, s, m = generator.choice(sorted(item for item in todo if ready(*item)))
        todo.remove((kind, s, m))
        done.add((kind, s, m))
        orders[owner[s, m]].append(Action(Kind(kind), s, m))
    for s, ranks in enumerate(homes):
        for rank in ranks if len(ranks) > 1 else ():
            orders[rank].append(Action(Kind.REDUCE, s))
    for s, ranks in enumerate(homes):
        for rank in ranks:
            orders[rank].append(Action(Kind.UPDATE, s))
    return Schedule("random", tuple(map(tuple, orders)))


def halved(schedule: Schedule) -> Schedule:
    """The schedule with every backward split into its two parts, one directly after the other."""
    halves = (Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)
    return Schedule(
        schedule.family,
        tuple(
            tuple(
                part
                for action in order
                for part in ([action._replace(kind=k) for k in halves] if action.kind is Kind.BACKWARD else [action])
            )
            for order in schedule.orders
        ),
    )


def random_schedule(seed: int) -> Schedule:
    """Schedule of a family with random replicas, or any order without deadlock."""
    generator = random.Random(seed)
    world, micro_batches = generator.randint(1, 5), generator.randint(1, 7)
    if seed % 2:
        return any_order(generator, world, world + 2, micro_batches)
    return generator.choice(list(FAMILIES.values())).write(random_replicas(generator, world), micro_batches)
