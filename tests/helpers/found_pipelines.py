"""Random pipelines of one width from a seed, random orders of their instances, and simulated schedules as orders."""

from collections import Counter
from dataclasses import replace
from random import Random

from pipeplan.core.cluster import Overlap
from pipeplan.core.pipeline import Pipeline, Placement, Stage, Transfer
from pipeplan.core.schedule import Schedule
from pipeplan.costs.chain import UNLIMITED
from pipeplan.schedules.placed import loop, vee
from pipeplan.search.scheduling import as_orders
from pipeplan.search.scheduling.replica_pipelines import replica_pipelines, tightest_pipeline
from pipeplan.simulate import simulate
from pipeplan_formulations.schedule import Kind, Op, Orders, PipelineSchedule


def random_pipeline(seed: int, most_devices: int = 4, *, plain: bool = False) -> Pipeline:
    """Pipeline of one or several stages per device, in a line, a loop, a V or at random, on one to three lanes.

    ``plain``: only features that the formulation can express: one data-parallel lane, no ties, one stage per device,
    no link resources without occupancy.
    """
    draw = Random(seed)
    placement = _placement(draw, draw.randint(1, most_devices), 1 if plain else draw.choice((1, 1, 2, 3)))
    rows = 1 if plain else draw.choice((1, 1, 1, 2, 3))
    devices = 1 + max(device for (device,) in placement)
    most = draw.choice((3, 20))
    stages = tuple(_stage(draw, most, draw.random() < 0.3) for _ in placement)
    if draw.random() < 0.5:
        stages = tuple(replace(stage, workspace=stages[0].workspace) for stage in stages)
    overlap = draw.choice(list(Overlap))
    ways = _ways(draw, placement, rows)
    if plain:
        ways = [tuple(tuple(map(_needed, row)) for row in way) for way in ways]
    return Pipeline(
        stages,
        tuple(tuple(row * devices + device for row in range(rows)) for (device,) in placement),
        ways[0],
        ways[1],
        overlap,
        (draw.randint(0, 2),) * devices * rows,
        (UNLIMITED,) * devices * rows,
        () if plain or draw.random() < 0.7 else _tied(draw, placement),
    )


def random_orders(seed: int, problem: PipelineSchedule) -> Orders:
    """Orders without deadlock, each operation drawn from those with all inputs; memory is ignored."""
    draw = Random(seed)
    done: set[Op] = set()
    left = [op for d in range(problem.devices) for op in problem.operations(d)]
    lists: list[list[Op]] = [[] for _ in range(problem.devices)]
    late = draw.random()  # the tendency to delay an operation
    while left:
        ready = [op for op in left if _inputs(problem, op) <= done]
        op = ready[0] if draw.random() > late else draw.choice(ready)
        left.remove(op)
        done.add(op)
        lists[problem.device[op.stage]].append(op)
    return tuple(map(tuple, lists))


def _inputs(problem: PipelineSchedule, op: Op) -> set[Op]:
    """Operations that must have ended before, those of earlier micro-batches of the same kind included."""
    kind, s, i = op
    needs = {op._replace(micro_batch=i - 1)} if i else set()
    if kind == "F":
        return needs | ({Op("F", s - 1, i)} if s else set())
    if kind == "W":
        return needs | {Op("I", s, i)}
    return needs | {Op("F", s, i)} | ({Op("I", s + 1, i)} if s < problem.stages - 1 else set())


def as_simulated(schedule: Schedule, pipeline: Pipeline, problem: PipelineSchedule) -> Orders | None:
    """Orders of one data-parallel lane of a schedule, with its transfers in the simulated order."""
    orders = as_orders(schedule, pipeline, problem)
    if orders is None or not problem.sent:
        return orders
    rows = replica_pipelines(pipeline)
    row = tightest_pipeline(rows, pipeline, schedule.micro_batches)
    seen: Counter[tuple[Kind, int]] = Counter()
    passed: list[Op] = []
    for flight in simulate(schedule, pipeline).transfers:
        kind: Kind = "A" if flight.target > flight.source else "G"
        if flight.micro_batch % rows.count == row and (kind, flight.source) in problem.sent.values():
            passed.append(Op(kind, flight.source, seen[kind, flight.source]))
            seen[kind, flight.source] += 1
    return (*orders, tuple(passed))


def _ways(draw: Random, placement: Placement, rows: int) -> list[tuple[tuple[Transfer, ...], ...]]:
    """Transfers forward and back, on separate links, on one card, or on one incoming and one outgoing card per node.

    A node holds two columns of devices. Cards belong to one data-parallel lane, or all lanes share them.
    """
    latency, kind, apart = draw.choice((0, 4)), draw.choice(("own", "own", "card", "nodes")), draw.random() < 0.5
    found = []
    for way in ("down", "up"):
        boundaries = []
        for s in range(len(placement) - 1):
            time, more = draw.randint(0, 5), draw.randint(0, latency)
            (a,), (b,) = (placement[s], placement[s + 1]) if way == "down" else (placement[s + 1], placement[s])
            cards = {"own": (f"{way} {s}",), "card": ("card",), "nodes": (f"out {a // 2}", f"in {b // 2}")}[kind]
            whose = [f" {row}" if apart or kind == "own" else "" for row in range(rows)]
            boundaries.append(tuple(Transfer(1, time, more, tuple(card + who for card in cards)) for who in whose))
        found.append(tuple(boundaries))
    return found


def _needed(way: Transfer) -> Transfer:
    """The transfer, without link resources if it does not occupy them."""
    return way if way.occupancy else replace(way, resources=())


def _placement(draw: Random, devices: int, chunks: int) -> Placement:
    down = list(range(devices))
    shape = draw.choice(("loop", "vee", "any"))
    found = [device for chunk in range(chunks) for device in (down[::-1] if shape == "vee" and chunk % 2 else down)]
    if shape == "any":
        draw.shuffle(found)
    return tuple((device,) for device in found)


def _stage(draw: Random, most: int, uneven: bool) -> Stage:
    inputs, weights = draw.randint(1, most), draw.randint(1, most)
    held = draw.randint(0, 4)
    return Stage(
        forward=draw.randint(1, most),
        backward=max(1, inputs + weights + (draw.randint(-1, 1) if uneven else 0)),
        input_gradient=inputs,
        weight_gradient=weights,
        update=draw.randint(0, 3),
        reduce=draw.randint(0, 3),
        resident=draw.randint(0, 5),
        held=held,
        held_after_input_gradient=draw.choice((None, draw.randint(0, held))),
        workspace=draw.randint(0, 3),
    )


def _tied(draw: Random, placement: Placement) -> tuple[tuple[int, ...], ...]:
    """Two tied stages on different devices, if there are any."""
    pairs = [
        (a, b) for a in range(len(placement)) for b in range(a + 1, len(placement)) if placement[a] != placement[b]
    ]
    return (draw.choice(pairs),) if pairs else ()


def family_pipeline(seed: int, most_devices: int = 16) -> tuple[Pipeline, int]:
    """A pipeline on some family's placement (loop, V, or one stage per device on one or two lanes), and a number of
    micro-batches; with memory for anything between one micro-batch and all."""
    draw = Random(seed)
    devices = draw.randint(1, most_devices)
    micro_batches = draw.randint(1, 2 * devices)
    placement = draw.choice((loop(devices, 1), loop(devices, 1), loop(devices, 2), vee(devices)))
    base = placed_pipeline(draw, placement)
    rows = draw.choice((1, 1, 2)) if len(placement) == devices else 1
    pipeline = _on_rows(base, rows)
    if draw.random() < 0.3:
        return pipeline, micro_batches
    limits: list[int] = []
    for device in range(base.devices):
        own = [base.stages[s] for s in base.stages_on[device]]
        one = sum(stage.resident + stage.held for stage in own) + max(stage.workspace for stage in own)
        most = micro_batches * sum(stage.held for stage in own)
        limit = base.runtime[device] + one + (draw.randint(0, most) if draw.random() < 0.95 else -1)
        limits += [limit] * rows
    return replace(pipeline, limits=tuple(limits)), micro_batches


def placed_pipeline(draw: Random, placement: Placement) -> Pipeline:
    """Unequal stages on a placement without replicas, with known parts of backwards, and transfers of any kind."""
    most = draw.choice((3, 30))
    stages = tuple(_stage(draw, most, draw.random() < 0.3) for _ in placement)
    devices = 1 + max(device for (device,) in placement)
    overlap, card = draw.choice(list(Overlap)), draw.random() < 0.3
    ways = [
        tuple(
            (Transfer(1, draw.randint(0, 4), draw.randint(0, 4), ("card",) if card else (f"{way} {s}",)),)
            for s in range(len(placement) - 1)
        )
        for way in ("down", "up")
    ]
    return Pipeline(stages, placement, *ways, overlap, (draw.randint(0, 2),) * devices, (UNLIMITED,) * devices)


def _on_rows(pipeline: Pipeline, rows: int) -> Pipeline:
    """The pipeline with ``rows`` replicas of each stage, and separate links for every pair."""
    if rows == 1:
        return pipeline

    def ways(own: tuple[tuple[Transfer, ...], ...]) -> tuple[tuple[Transfer, ...], ...]:
        return tuple(
            tuple(replace(way, resources=tuple(f"{name} {row}" for name in way.resources)) for row in range(rows))
            for (way,) in own
        )

    return replace(
        pipeline,
        placement=tuple(tuple(range(rows * s, rows * (s + 1))) for s in range(len(pipeline.stages))),
        transfers=ways(pipeline.transfers),
        returns=ways(pipeline.returns),
        runtime=pipeline.runtime * rows,
        limits=pipeline.limits * rows,
    )
