"""Random plans that can be run, from a generator: cuts, replicas, order of actions, recomputed layers."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from models import WORKLOADS, layers_of, random_cuts

from pipeplan.plan import Plan
from pipeplan.schedule import Action, Kind, Schedule
from pipeplan.schedules import FAMILIES
from pipeplan.schedules.alternate import first_deadlock, one_forward_one_backward
from pipeplan.workload import Workload
from plans import plan_for


@dataclass(frozen=True)
class Case:
    """A plan with the function that builds its model, and what to call it when it fails."""

    name: str
    plan: Plan
    build: Callable[[], Workload]


def random_case(generator: random.Random, world: int) -> Case:
    """Any model, cuts and replicas on ``world`` ranks, in one of three kinds of order."""
    build = generator.choice(WORKLOADS)
    workload = build()
    names = layers_of(workload)
    kind = generator.choice(("family", "in flight", "any order"))
    micro_batches = generator.randint(1, 7)
    if kind == "any order":
        schedule = any_order(generator, world, min(len(names), world + 2), micro_batches)
    else:
        replicas = random_replicas(generator, world)
        if kind == "family":
            schedule = generator.choice(list(FAMILIES.values())).write(replicas, micro_batches)
        else:
            in_flight = random_in_flight(generator, replicas)
            schedule = one_forward_one_backward(replicas, micro_batches, in_flight)
    cuts = random_cuts(generator, len(names), schedule.stages)
    joined = all(action.kind is not Kind.INPUT_GRADIENT for action in schedule.actions())
    share = generator.choice((0.0, 0.3, 1.0)) if joined else 0.0
    recompute = [name for name in names if generator.random() < share]
    plan = plan_for(workload.module, names, cuts, schedule, recompute=recompute)
    return Case(f"{build.__name__} {cuts} {schedule.as_text()} recompute {recompute}", plan, build)


def random_replicas(generator: random.Random, world: int) -> tuple[int, ...]:
    """A composition of ``world``: any number of stages, any widths."""
    edges = sorted(generator.sample(range(1, world), generator.randint(0, world - 1)))
    return tuple(b - a for a, b in zip([0, *edges], [*edges, world], strict=True))


def random_in_flight(generator: random.Random, replicas: tuple[int, ...]) -> tuple[int, ...]:
    """Micro-batches in flight with which 1F1B does not wait for ever."""
    while True:
        in_flight = tuple(generator.randint(1, 6) for _ in replicas)
        if first_deadlock(replicas, in_flight) is None:
            return in_flight


def any_order(generator: random.Random, world: int, most_stages: int, micro_batches: int) -> Schedule:
    """Any order that can be played, on any placement with any replicas; some micro-batches split their backward.

    Which replica of a stage takes a micro-batch is drawn too. All reductions stand at the end.
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
