"""Random plans that can be run, from a generator: cuts, replicas, order of actions, recomputed layers."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from models import WORKLOADS, layers_of, random_cuts, tiny_thrice, tiny_tied

from pipeplan.plan import Plan
from pipeplan.schedule import Schedule
from pipeplan.schedules import FAMILIES, PLACED
from pipeplan.schedules.alternate import one_forward_one_backward
from pipeplan.workload import Workload
from plans import plan_for
from runnable_schedules import any_order, halved, random_in_flight, random_replicas


@dataclass(frozen=True)
class Case:
    """A plan with the function that builds its model, and what to call it when it fails."""

    name: str
    plan: Plan
    build: Callable[[], Workload]


def random_case(generator: random.Random, world: int, tied: bool = False) -> Case:
    """Any model, cuts and replicas on ``world`` ranks, in one of three kinds of order.

    ``tied``: a model whose layers share weights, and no rank with several stages.
    """
    build = generator.choice((tiny_tied, tiny_thrice) if tied else WORKLOADS)
    workload = build()
    names = layers_of(workload)
    kind = generator.choice(("family", "in flight", "split" if tied else "any order"))
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
        schedule = halved(schedule) if kind == "split" else schedule
    cuts = random_cuts(generator, len(names), schedule.stages)
    return _case(generator, build, cuts, schedule)


def placed_cases(generator: random.Random, world: int) -> list[Case]:
    """Every family that places stages itself, with any model that has layers enough, cuts and micro-batches."""
    found = []
    for family in PLACED.values():
        if family.even and world % 2:
            continue
        chunks = family.chunks or generator.randint(1, 3)
        stages = len(family.placement(world, chunks))
        build = generator.choice([build for build in WORKLOADS if len(layers_of(build())) >= stages])
        schedule = family.write(world, generator.randint(1, 2 * world + 1), chunks)
        cuts = random_cuts(generator, len(layers_of(build())), stages)
        found.append(_case(generator, build, cuts, schedule))
    return found


def _case(generator: random.Random, build: Callable[[], Workload], cuts: tuple[int, ...], schedule: Schedule) -> Case:
    """The schedule's plan; some layers are computed again."""
    workload = build()
    names = layers_of(workload)
    share = generator.choice((0.0, 0.3, 1.0))
    recompute = [name for name in names if generator.random() < share]
    plan = plan_for(workload.module, names, cuts, schedule, recompute=recompute)
    return Case(f"{build.__name__} {cuts} {schedule.as_text()} recompute {recompute}", plan, build)
