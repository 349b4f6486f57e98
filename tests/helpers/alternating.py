"""Random pipelines with random GPipe and 1F1B schedules, from a seed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import lcm
from random import Random

from helpers.random_schedules import stage_by_stage, with_gathers
from pipeplan.core.cluster import Overlap
from pipeplan.core.pipeline import Pipeline, Stage, Transfer
from pipeplan.core.schedule import Schedule
from pipeplan.core.shared_weights import with_reductions
from pipeplan.costs.chain import UNLIMITED
from pipeplan.schedules import FAMILIES, first_deadlock, one_forward_one_backward


@dataclass(frozen=True)
class Alternating:
    """A pipeline with its micro-batches, in-flight counts, and the lists of that schedule."""

    pipeline: Pipeline
    micro_batches: int
    in_flight: tuple[int, ...]
    schedule: Schedule


def random_alternating(seed: int, most_micro_batches: int = 200) -> Alternating:
    """One to eight stages of one to four replicas; times from 0 on, slow and fast links, most of them in nodes."""
    random = Random(seed)
    widths = random.choice(((1,), (1, 1, 2), (1, 2, 3, 4), (2,), (3,)))
    replicas = tuple(random.choice(widths) for _ in range(random.randint(1, 8)))
    count = random.choice((random.randint(1, 16), random.randint(30, most_micro_batches)))
    if len(set(replicas)) == 1 and random.random() < 0.7:
        count += -count % replicas[0]
    pipeline = random_pipeline(random, replicas)
    pipeline = replace(pipeline, coupled=len(set(replicas)) == 1 and not count % replicas[0])
    family = random.choice(("gpipe", "1f1b-sno", "1f1b-so", "free", "free"))
    if family == "free":
        in_flight = legal_counts(random, replicas, count)
        schedule = one_forward_one_backward(replicas, count, in_flight)
    else:
        in_flight = FAMILIES[family].in_flight(replicas, count)
        schedule = FAMILIES[family].write(replicas, count)
    case = Alternating(pipeline, count, in_flight, with_reductions(schedule, pipeline.tied))
    places = Random(f"places {seed}")
    return elsewhere(case, places) if places.random() < 0.5 else case


def elsewhere(case: Alternating, random: Random) -> Alternating:
    """The case on devices in another order than that of the stages."""
    device = random.sample(range(case.pipeline.devices), case.pipeline.devices)
    before = sorted(range(len(device)), key=device.__getitem__)
    pipeline = replace(
        case.pipeline,
        placement=tuple(tuple(device[old] for old in own) for own in case.pipeline.placement),
        runtime=tuple(case.pipeline.runtime[old] for old in before),
    )
    schedule = replace(case.schedule, orders=tuple(case.schedule.orders[old] for old in before))
    return replace(case, pipeline=pipeline, schedule=schedule)


def random_pipeline(random: Random, replicas: Sequence[int]) -> Pipeline:
    """Times of any stage up to 3 … 10,000; nodes of any size, whose devices share a card; sometimes tied stages."""
    most, least = random.choice((3, 10, 100, 10_000)), random.choice((0, 1, 1, 1))
    if random.random() < 0.3:
        least = most - most // random.choice((4, 100))  # almost equal stages: long transients
    placement, devices = stage_by_stage(replicas), sum(replicas)
    per_node = random.choice((devices, random.randint(1, devices)))
    slow, bare = random.choice((0, 0.1, 1, 3)), random.choice((0, 0.2))

    def transfer(source: int, target: int) -> Transfer:
        occupancy, latency = int(most * slow * random.uniform(0.2, 1)), random.choice((0, random.randint(0, most)))
        if random.random() < bare:
            return Transfer(1, occupancy, latency)
        nodes = source // per_node, target // per_node
        if nodes[0] == nodes[1]:
            return Transfer(1, occupancy // 2, latency, (f"{source} to {target}",))
        return Transfer(1, occupancy, latency, (f"out {nodes[0]}", f"in {nodes[1]}"))

    def ways(source: Sequence[int], target: Sequence[int]) -> tuple[Transfer, ...]:
        period = lcm(len(source), len(target))
        return tuple(transfer(source[m % len(source)], target[m % len(target)]) for m in range(period))

    every = tuple(_stage(random, least, most) for _ in replicas)
    tied = sorted(random.sample(range(len(replicas)), min(len(replicas), random.choice((0, 0, 2, 3)))))
    pipeline = Pipeline(
        stages=every,
        placement=placement,
        transfers=tuple(ways(a, b) for a, b in pairwise(placement)),
        returns=tuple(ways(b, a) for a, b in pairwise(placement)),
        overlap=random.choice((Overlap.NONE, Overlap.COPY, Overlap.COPY, Overlap.STREAM)),
        runtime=tuple(random.randint(0, 9) for _ in range(devices)),
        limits=(UNLIMITED,) * devices,
        tied=(tuple(tied),) if len(tied) > 1 else (),
    )
    return with_gathers(random, pipeline, most)


def _stage(random: Random, least: int, most: int) -> Stage:
    stage = Stage(
        forward=random.randint(least, most),
        backward=random.randint(least, 2 * most),
        update=random.randint(0, most),
        reduce=random.randint(0, most),
        resident=random.randint(0, 1000),
        held=random.randint(0, 50),
        workspace=random.randint(0, 9),
    )
    return stage if random.random() < 0.5 else replace(stage, forward_workspace=random.randint(0, stage.workspace))


def legal_counts(random: Random, replicas: Sequence[int], micro_batches: int) -> tuple[int, ...]:
    """Random in-flight counts without deadlock, from the last stage on; some exceed a replica's micro-batches."""
    counts: list[int] = []
    for s in reversed(range(len(replicas))):
        count = random.choice((1, 1, 2, random.randint(1, micro_batches)))
        while first_deadlock(replicas[s:], [count, *counts]):
            count += 1
        counts.insert(0, count)
    return tuple(counts)
