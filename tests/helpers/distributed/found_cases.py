"""Searched schedules, one of each kind, with a model to run them: searched once, before the ranks start."""

import random
from collections.abc import Sequence
from itertools import pairwise
from math import lcm

from helpers.distributed.cases import Case
from helpers.distributed.models import WORKLOADS, blank_model, random_cuts
from helpers.plans import plan_for
from pipeplan.core.cluster import Overlap
from pipeplan.core.pipeline import Pipeline, Placement, Stage, Transfer
from pipeplan.core.schedule import Schedule
from pipeplan.schedules.family import FOUND
from pipeplan.search.scheduling import find_schedule
from pipeplan_formulations.common.report import Limits

KINDS = ("joined", "split", "several stages a device", "recomputed", "replicated")


def found_cases(world: int, seed: int, kinds: Sequence[str] = KINDS) -> list[Case]:
    """A case of each of these `KINDS` on this number of ranks, whose order no family has."""
    generator = random.Random(seed)
    found = []
    for kind in kinds:
        split = kind in ("split", "several stages a device") or (kind == "replicated" and generator.random() < 0.5)
        schedule = _found(generator, _placement(generator, kind, world), split)
        build = generator.choice([each for each in WORKLOADS if len(blank_model(each)[1]) >= schedule.stages])
        module, names, held = blank_model(build)
        cuts = random_cuts(generator, len(names), schedule.stages)
        recompute = [name for name in names if kind == "recomputed" and generator.random() < 0.6]
        plan = plan_for(module, names, cuts, schedule, recompute=recompute, held=held)
        found.append(Case(f"{kind}: {build.__name__} {cuts} {schedule.as_text()} recompute {recompute}", plan, build))
    return found


def _found(generator: random.Random, placement: Placement, split: bool) -> Schedule:
    """The first searched schedule, for stages of random times and little memory, that is no family's."""
    while True:
        micro_batches = generator.randint(3, 7)
        schedule = find_schedule(
            _pipeline(generator, placement), micro_batches, Limits(time=1.0, workers=1), split=split
        ).schedule
        if schedule is not None and schedule.family == FOUND:
            return schedule


def _placement(generator: random.Random, kind: str, world: int) -> Placement:
    if kind == "replicated":
        rows = 2 if world % 2 == 0 else world
        homes = tuple(tuple(range(rows * c, rows * (c + 1))) for c in range(world // rows))
        return homes * 2
    devices = [(device,) for device in range(world)]
    if kind == "several stages a device":
        devices *= 2
        generator.shuffle(devices)
    return tuple(devices)


def _pipeline(generator: random.Random, placement: Placement) -> Pipeline:
    """Pipeline with memory for two to four micro-batches of every stage."""
    ranks = 1 + max(device for homes in placement for device in homes)
    stages = []
    for _ in placement:
        inputs, weights = generator.randint(1, 9), generator.randint(1, 9)
        stages.append(Stage(generator.randint(1, 9), inputs + weights, inputs, weights, update=1, held=1))
    ways = tuple((Transfer(1, 0, generator.randint(0, 2)),) * lcm(len(a), len(b)) for a, b in pairwise(placement))
    chunks = sum(0 in homes for homes in placement)
    rooms = (chunks * generator.randint(2, 4),) * ranks
    return Pipeline(tuple(stages), placement, ways, ways, Overlap.COPY, (0,) * ranks, rooms)
