"""Random pipelines and random action lists without deadlock, from a seed.

They cover more than the schedule families: several stages on a device, several replicas of a stage, devices without a
stage, split and joined backwards together, token slices, reductions, stages that reduce together, two lanes, link
resources that transfers share.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import lcm
from random import Random

from pipeplan.core.cluster import Overlap
from pipeplan.core.pipeline import Pipeline, Stage, Transfer
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.costs.chain import UNLIMITED

Placement = tuple[tuple[int, ...], ...]
Ways = tuple[tuple[Transfer, ...], ...]
Item = tuple[int, Action]
"""An action and the device that runs it, as every replica of a stage reduces and updates."""
F, B, DX, DW, R, U, _ = Kind  # forward, backward, input and weight gradient, reduction, update


@dataclass(frozen=True)
class Case:
    """A schedule and a pipeline that fit each other."""

    schedule: Schedule
    pipeline: Pipeline


def random_case(seed: int, *, least_time: int = 0, least_latency: int = 0, shared_resources: bool = True) -> Case:
    """Up to four stages on up to five devices, four micro-batches and two slices."""
    random = Random(seed)
    devices = random.randint(1, 5)
    placement = random_placement(random, random.randint(1, 4), devices)
    tied = random_ties(random, placement)
    schedule = random_schedule(random, placement, devices, tied=tied)
    pipeline = random_pipeline(random, placement, devices, least_time, shared_resources, least_latency)
    return Case(schedule, with_gathers(random, replace(pipeline, tied=tied), 9))


def with_gathers(random: Random, pipeline: Pipeline, most: int) -> Pipeline:
    """The pipeline, sometimes with stages that wait for parameters at the begin of a step."""
    longest = random.choice([0, 0, most, 3 * most])
    return replace(pipeline, stages=tuple(replace(s, gather=random.randint(0, longest)) for s in pipeline.stages))


def with_unlike_slices(case: Case, seed: int) -> Case:
    """The case with different times, up to 9, for every slice of a stage; unchanged if there is one slice."""
    random, slices = Random(seed), 1 + max(action.slice for action in case.schedule.actions())
    stages = tuple(
        stage.with_durations(lambda kind, part, own=stage: random.randint(0, 9) if part else own.duration(kind))
        for stage in (replace(own, forward=(own.forward,) * slices) for own in case.pipeline.stages)
    )
    return replace(case, pipeline=replace(case.pipeline, stages=stages))


def random_ties(random: Random, placement: Placement) -> Placement:
    """Sometimes a group of tied stages that share no device."""
    stages = random.sample(range(len(placement)), min(len(placement), random.choice([0, 0, 2, 3])))
    homes = [device for stage in stages for device in placement[stage]]
    return (tuple(sorted(stages)),) if len(stages) > 1 and len(set(homes)) == len(homes) else ()


def random_placement(random: Random, stages: int, devices: int) -> Placement:
    """Half of the stages on one device, the others on up to three, in any order."""
    most = [random.choice([1, random.randint(1, min(3, devices))]) for _ in range(stages)]
    return tuple(tuple(random.sample(range(devices), count)) for count in most)


def stage_by_stage(replicas: Sequence[int]) -> Placement:
    """The devices of each stage, numbered as in families."""
    return tuple(tuple(range(a, b)) for a, b in pairwise(accumulate(replicas, initial=0)))


def random_pipeline(
    random: Random,
    placement: Placement,
    devices: int,
    least_time: int,
    shared_resources: bool,
    least_latency: int = 0,
) -> Pipeline:
    """Times from ``least_time`` to 9, transfers that take up to two of three link resources, or none."""

    def time() -> int:
        return random.randint(least_time, 9)

    def stage() -> Stage:
        held = random.randint(0, 9)
        later = random.choice([None, random.randint(0, held)])
        resident, workspace = random.randint(0, 9), random.randint(0, 5)
        return Stage(time(), time(), time(), time(), time(), time(), resident, held, later, workspace)

    def way(name: str) -> Transfer:
        resources = random.sample(["x", "y", "z"], random.randint(0, 2)) if shared_resources else [name]
        return Transfer(1, random.randint(0, 9), random.randint(least_latency, 4), tuple(resources))

    def ways(name: str) -> Ways:
        periods = [lcm(len(a), len(b)) for a, b in pairwise(placement)]
        return tuple(tuple(way(f"{name} {s}.{p}") for p in range(period)) for s, period in enumerate(periods))

    return Pipeline(
        stages=tuple(stage() for _ in placement),
        placement=placement,
        transfers=ways("down"),
        returns=ways("up"),
        overlap=random.choice(list(Overlap)),
        runtime=tuple(random.randint(0, 9) for _ in range(devices)),
        limits=(UNLIMITED,) * devices,
    )


def random_schedule(
    random: Random,
    placement: Placement,
    devices: int,
    *,
    joined: bool = False,
    reduces: bool | None = None,
    tied: Placement = (),
) -> Schedule:
    """Order all actions, each time a random one of those whose predecessors are done.

    All replicas reduce at once, and so do all stages of a group in ``tied``.
    """
    stages, micro_batches, slices = len(placement), random.randint(1, 4), random.randint(1, 2)
    reduces = random.random() < 0.3 if reduces is None else reduces
    left: list[Action] = []
    for s in range(stages):
        for m in range(micro_batches):
            for k in range(slices):
                left.append(Action(F, s, m, k))
                left += [Action(kind, s, m, k) for kind in ((B,) if joined else random.choice([(B,), (DX, DW)]))]
    items: list[tuple[Item, ...]] = [((owner(a, placement), a),) for a in left]
    for s, homes in enumerate(placement):
        items += [((device, Action(U, s)),) for device in homes]
        alone = s not in {stage for group in tied for stage in group}
        items += [tuple((device, Action(R, s)) for device in homes)] if alone and (reduces or len(homes) > 1) else []
    items += [tuple((device, Action(R, s)) for s in group for device in placement[s]) for group in tied]
    needs = all_needs([item for together in items for item in together])
    orders: list[list[Action]] = [[] for _ in range(devices)]
    done: set[Item] = set()
    while items:
        chosen = random.choice([together for together in items if all(needs[item] <= done for item in together)])
        items.remove(chosen)
        done.update(chosen)
        for device, action in chosen:
            orders[device].append(action)
    return Schedule("random", tuple(map(tuple, orders)), two_lanes=random.random() < 0.3)


def owner(action: Action, placement: Placement) -> int:
    """The device of a forward or backward."""
    homes = placement[action.stage]
    return homes[action.micro_batch % len(homes)]


def all_items(schedule: Schedule) -> list[Item]:
    """Every action with its device, device by device."""
    return [(device, action) for device, order in enumerate(schedule.orders) for action in order]


def all_needs(items: Sequence[Item]) -> dict[Item, set[Item]]:
    """All direct predecessors of each action, except the joint start of replicas that reduce together."""
    home = {action: device for device, action in items if action.kind not in (R, U)}
    backwards = {a for a in home if a.kind in (B, DX, DW)}
    there = set(items)

    def needs(device: int, a: Action) -> set[Item]:
        if a.kind in (R, U):
            own = {(device, b) for b in backwards if b.stage == a.stage and home[b] == device}
            return own | ({(device, Action(R, a.stage))} & there if a.kind is U else set())
        if a.kind is F:
            wanted = {a._replace(stage=a.stage - 1), a._replace(slice=a.slice - 1)}
        elif a.kind is DW:
            wanted = {a._replace(kind=DX)}
        else:
            behind = [(a.stage + 1, a.slice), (a.stage, a.slice + 1)]
            wanted = {a._replace(kind=F)}
            wanted |= {a._replace(kind=kind, stage=s, slice=k) for kind in (B, DX) for s, k in behind}
        return {(home[b], b) for b in wanted if b in home}

    return {item: needs(*item) for item in items}
