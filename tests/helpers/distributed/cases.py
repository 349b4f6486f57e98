"""Random plans that can be run, from a generator: cuts, replicas, order of actions, recomputed layers."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from helpers.distributed.models import TIED, WORKLOADS, blank_model, random_cuts
from helpers.plans import plan_for, with_buckets
from helpers.runnable_schedules import any_order, halved, random_in_flight, random_replicas
from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Schedule
from pipeplan.core.validate.deadlock import deadlocks
from pipeplan.frontend.workload import Workload
from pipeplan.schedules import FAMILIES, PLACED
from pipeplan.schedules.alternate import one_forward_one_backward
from pipeplan.schedules.placed import PlacedFamily


@dataclass(frozen=True)
class Case:
    """A plan with the function that builds its model, and its name in failures."""

    name: str
    plan: Plan
    build: Callable[[], Workload]


def random_case(generator: random.Random, world: int, build: Callable[[], Workload]) -> Case:
    """Any cuts and replicas of a model on ``world`` ranks, in one of three kinds of order.

    If stages share weights, those on one rank are on the same ranks.
    """
    while True:
        case = _random_case(generator, world, build)
        if not any(deadlocks(case.plan.schedule, case.plan.pipeline.tied)):
            return case


def _random_case(generator: random.Random, world: int, build: Callable[[], Workload]) -> Case:
    _, names, _ = blank_model(build)
    kind = generator.choice(("family", "in flight", "split", "any order"))
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
    """Every family that places stages itself, with any model of enough layers, cuts, copies and micro-batches."""
    found = []
    for family in PLACED.values():
        copies = [c for c in range(1, world + 1) if world % c == 0 and not (family.even and world // c % 2)]
        if copies:
            found.append(_placed_case(generator, family, world, generator.choice(copies)))
    return found


def _placed_case(generator: random.Random, family: PlacedFamily, world: int, copies: int) -> Case:
    devices, chunks = world // copies, family.chunks or generator.randint(1, 3)
    stages = len(family.placement(devices, chunks))
    builds = [build for build in (*WORKLOADS, *TIED) if len(blank_model(build)[1]) >= stages]
    while True:
        build = generator.choice(builds)
        schedule = family.write(devices, generator.randint(copies, 2 * world + 1), chunks, copies)
        case = _case(generator, build, random_cuts(generator, len(blank_model(build)[1]), stages), schedule)
        if not any(deadlocks(case.plan.schedule, case.plan.pipeline.tied)):
            return replace(case, plan=with_buckets(case.plan, generator.randint(0, 2)))


def _case(generator: random.Random, build: Callable[[], Workload], cuts: tuple[int, ...], schedule: Schedule) -> Case:
    """Plan of the schedule, with some layers recomputed."""
    module, names, held = blank_model(build)
    share = generator.choice((0.0, 0.3, 1.0))
    recompute = [name for name in names if generator.random() < share]
    plan = plan_for(module, names, cuts, schedule, recompute=recompute, held=held)
    return Case(f"{build.__name__} {cuts} {schedule.as_text()} recompute {recompute}", plan, build)
