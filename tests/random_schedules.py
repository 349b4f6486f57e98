"""Random pipelines and random action lists that can be played to the end, from a seed.

Wider than what any family writes: several stages on a device, devices without a stage, split and joined backwards side
by side, token slices, reductions, two lanes, wires that transfers share.
"""

from dataclasses import dataclass
from random import Random

from pipeplan.chain import UNLIMITED
from pipeplan.cluster import Overlap
from pipeplan.pipeline import Pipeline, Stage, Transfer
from pipeplan.schedule import Action, Kind, Schedule

Placement = tuple[tuple[int, ...], ...]
Ways = tuple[tuple[Transfer, ...], ...]
F, B, DX, DW, R, U = Kind  # forward, backward, input and weight gradient, reduction, update


@dataclass(frozen=True)
class Case:
    """A schedule and a pipeline that fit each other."""

    schedule: Schedule
    pipeline: Pipeline


def random_case(seed: int, *, least_time: int = 0, least_latency: int = 0, shared_wires: bool = True) -> Case:
    """Up to four stages, four micro-batches and two slices."""
    random = Random(seed)
    stages, devices = random.randint(1, 4), random.randint(1, 4)
    placement = tuple((random.randrange(devices),) for _ in range(stages))
    schedule = random_schedule(random, placement, devices)
    return Case(schedule, random_pipeline(random, placement, devices, least_time, shared_wires, least_latency))


def random_pipeline(
    random: Random,
    placement: Placement,
    devices: int,
    least_time: int,
    shared_wires: bool,
    least_latency: int = 0,
) -> Pipeline:
    """Times from ``least_time`` to 9, transfers that take up to two of three wires, or none."""

    def time() -> int:
        return random.randint(least_time, 9)

    def stage() -> Stage:
        held = random.randint(0, 9)
        later = random.choice([None, random.randint(0, held)])
        resident, workspace = random.randint(0, 9), random.randint(0, 5)
        return Stage(time(), time(), time(), time(), time(), time(), resident, held, later, workspace)

    def way(name: str) -> Transfer:
        wires = random.sample(["x", "y", "z"], random.randint(0, 2)) if shared_wires else [name]
        return Transfer(1, random.randint(0, 9), random.randint(least_latency, 4), tuple(wires))

    boundaries = range(len(placement) - 1)
    return Pipeline(
        stages=tuple(stage() for _ in placement),
        placement=placement,
        transfers=tuple((way(f"down {s}"),) for s in boundaries),
        returns=tuple((way(f"up {s}"),) for s in boundaries),
        overlap=random.choice(list(Overlap)),
        runtime=tuple(random.randint(0, 9) for _ in range(devices)),
        limits=(UNLIMITED,) * devices,
    )


def random_schedule(
    random: Random, placement: Placement, devices: int, *, joined: bool = False, reduces: bool | None = None
) -> Schedule:
    """Play every action once, each time a random one of those whose needs are met."""
    stages, micro_batches, slices = len(placement), random.randint(1, 4), random.randint(1, 2)
    reduces = random.random() < 0.3 if reduces is None else reduces
    left: list[Action] = [Action(U, s) for s in range(stages)] + [Action(R, s) for s in range(stages) if reduces]
    for s in range(stages):
        for m in range(micro_batches):
            for k in range(slices):
                left.append(Action(F, s, m, k))
                left += [Action(kind, s, m, k) for kind in ((B,) if joined else random.choice([(B,), (DX, DW)]))]
    needs = all_needs(left)
    orders: list[list[Action]] = [[] for _ in range(devices)]
    done: set[Action] = set()
    while left:
        action = random.choice([action for action in left if needs[action] <= done])
        left.remove(action)
        done.add(action)
        orders[placement[action.stage][0]].append(action)
    return Schedule("random", tuple(map(tuple, orders)), two_lanes=random.random() < 0.3)


def all_needs(actions: list[Action]) -> dict[Action, set[Action]]:
    """Every action that each one has to wait for, all of them spelled out."""
    there = set(actions)
    backwards = {a for a in there if a.kind in (B, DX, DW)}

    def needs(a: Action) -> set[Action]:
        if a.kind is F:
            wanted = {a._replace(stage=a.stage - 1), a._replace(slice=a.slice - 1)}
        elif a.kind is DW:
            wanted = {a._replace(kind=DX)}
        elif a.kind in (B, DX):
            behind = [(a.stage + 1, a.slice), (a.stage, a.slice + 1)]
            wanted = {a._replace(kind=F)}
            wanted |= {a._replace(kind=kind, stage=s, slice=k) for kind in (B, DX) for s, k in behind}
        else:
            wanted = {b for b in backwards if b.stage == a.stage}
            wanted |= {Action(R, a.stage)} if a.kind is U else set()
        return wanted & there

    return {action: needs(action) for action in actions}
