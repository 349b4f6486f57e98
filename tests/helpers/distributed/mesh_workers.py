"""Models on meshes of several axes with random strategies, and the workers that run them."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cache, partial
from math import prod
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.distributed import vocabulary_workers
from helpers.distributed.exactness import worst_error
from helpers.distributed.exchange_workers import OF_PARTS, OPERATIONS, Sums, halves
from helpers.distributed.models import blank_model, random_cuts
from helpers.mesh_exchanges import BACKWARD, FORWARD, mesh_exchanges
from helpers.plans import plan_for
from helpers.runnable_schedules import halved
from pipeplan.core.cluster import DeviceKind, Link
from pipeplan.core.errors import PlanError
from pipeplan.core.model import LayerCost
from pipeplan.core.operators import TOKEN, Operator
from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Kind, Schedule
from pipeplan.core.strategies import UNSPLIT, WHOLE, LayerStrategies, Placements, Strategy
from pipeplan.costs.sharding.attention import method_of
from pipeplan.costs.sharding.batches import by_samples
from pipeplan.costs.sharding.exchanges import Exchange
from pipeplan.costs.sharding.named import NamedStrategy
from pipeplan.costs.sharding.placements import stream
from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan.costs.sharding.rooflines import Rooflines
from pipeplan.costs.sharding.shapes import Mesh
from pipeplan.costs.sharding.signatures import parts_of
from pipeplan.frontend.batch import call, split, tensors
from pipeplan.frontend.capture import capture_layers
from pipeplan.frontend.capture.flow import trace
from pipeplan.frontend.capture.layer_sequence import LayerSequence
from pipeplan.frontend.operators.find import named_weights
from pipeplan.frontend.operators.follow import program_of
from pipeplan.frontend.operators.program import Program
from pipeplan.frontend.operators.record import record
from pipeplan.frontend.profile.passes import autocast
from pipeplan.frontend.workload import Workload
from pipeplan_executor.optim.updates import shares
from pipeplan_executor.sharding.mesh.run import _Run as MeshRun
from pipeplan_executor.sharding.mesh.saving import Base
from pipeplan_executor.sharding.mesh.shapes import shapes_of
from pipeplan_executor.stages import source
from pipeplan_executor.train.pipeline import Pipeline
from pipeplan_executor.train.reference import materialised
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.sharding import Edge, Sharding, TooLargeError, frontier

NOTHING = LayerCost(
    **dict.fromkeys(
        ("forward", "backward", "input_gradient", "weight_gradient", "saved", "output", "workspace", "update"), 0
    )
)
SAMPLES = 4
Strategies = tuple[tuple[str, LayerStrategies], ...]
"""Of all layers of a model, by name."""
Sent = tuple[Sums, Sums, Sums]
"""In the forward, in the backward or the input gradient, and in the weight gradient."""


class Case(NamedTuple):
    """A plan, and what is sent in the forward and in the backward of a micro-batch; of this ``later`` if it is split.

    That is what its weight gradient sends.
    """

    plan: Plan
    sent: tuple[Sums, Sums]
    later: Sums


def on_mesh(
    build: Callable[[], Workload],
    sizes: tuple[int, ...],
    schedule: Schedule,
    seed: int,
    gathers: bool = True,
    methods: tuple[str, ...] = (),
    named: NamedStrategy | None = None,
    zero: int = 0,
    losses: tuple[bool, ...] = (),
) -> Case:
    """A plan of as many stages as the schedule has, on meshes of these sizes, with random strategies and placements.

    With it what is sent for a micro-batch, forward and backward, as it is priced. ``methods``: for each axis how
    attention gets keys, whose tokens all of them split. ``named``: by which products of matrices are split, and
    samples. ``zero``: the level of ZeRO. ``losses``: for each axis whether it splits the classes of the loss.
    """
    draw = random.Random(seed)
    module, names, held = blank_model(build)
    strategies, sent, later = random_strategies(build, sizes, draw, gathers, methods, named=named, losses=losses)
    cuts = random_cuts(draw, len(names), schedule.stages)
    plan = plan_for(module, names, cuts, schedule, SAMPLES, held=held)
    return Case(replace(with_strategies(plan, strategies, sizes), zero=zero), sent, later)


def with_strategies(plan: Plan, strategies: Strategies, sizes: tuple[int, ...]) -> Plan:
    """The plan on meshes of these sizes, by the strategies of all layers."""
    links = (Link(10**9, 1000), *(Link(10**10, 100),) * (len(sizes) - 1))
    stages = tuple(replace(stage, team=prod(sizes), mesh=sizes, links=links) for stage in plan.stages)
    return replace(plan, stages=stages, strategies=strategies)


def random_strategies(
    build: Callable[[], Workload],
    sizes: tuple[int, ...],
    draw: random.Random,
    gathers: bool = True,
    methods: tuple[str, ...] = (),
    samples: int = SAMPLES,
    named: NamedStrategy | None = None,
    losses: tuple[bool, ...] = (),
) -> tuple[Strategies, tuple[Sums, Sums], Sums]:
    """Random strategies of each layer for micro-batches of so many samples; and what is sent, as in `Case`."""
    names, programs = _programs(build, samples, bool(losses))
    strategies, before, sent, later = [], tuple[int, ...](), {FORWARD: Sums(), BACKWARD: Sums()}, Sums()
    for number, program in enumerate(programs):
        after = () if number == len(programs) - 1 else _between(draw, program, programs[number + 1], sizes, named)
        own, problem = _strategies(draw, program, sizes, (before, after), gathers, methods, samples, named, losses)
        strategies.append(own)
        for each in mesh_exchanges(problem, own):
            sent[each.when] += halves(each.kind, each.size)
            later += halves(each.kind, each.size) if each.later else Sums()
        before = after
    return tuple(zip(names, strategies, strict=True)), (sent[FORWARD], sent[BACKWARD]), later


@cache
def _programs(build: Callable[[], Workload], samples: int, of_loss: bool) -> tuple[tuple[str, ...], list[Program]]:
    """The layers, and the program of each for micro-batches of so many samples; the last one with its loss if asked."""
    workload = source.build(build)
    inputs, targets = source.draw(workload, samples, 0)
    sequence = capture_layers(workload.module, inputs)
    flow = trace(sequence, inputs)
    weights = named_weights(workload.module, sequence)
    programs = []
    for n, layer in enumerate(sequence.layers):
        loss = partial(_loss, workload, sequence) if of_loss and n == len(sequence.layers) - 1 else None
        own = program_of(record(layer, flow.tensors[n], nullcontext, loss, targets), weights[n], samples)
        programs.append(replace(own, graph=by_samples(own.graph, samples)))
    return sequence.names, programs


def _loss(workload: Workload, sequence: LayerSequence, returned: Any, targets: Any) -> Tensor:
    """The loss of what the last layer returns."""
    return workload.loss(sequence.restore(returned), targets)


def _between(
    draw: random.Random, one: Program, other: Program, sizes: tuple[int, ...], named: NamedStrategy | None
) -> Placements:
    """Placements of what passes between two layers, whole if nothing can be split."""
    made, read = stream(one.graph, one.graph.outputs), stream(other.graph, tuple(other.graph.inputs))
    if not made or not read or made in one.graph.inputs or read in other.graph.outputs:
        return ()
    parts = [parts_of(program.graph, name) for program, name in ((one, made), (other, read))]
    if [shapes_of(one)[made].lengths] != [shapes_of(other)[read].lengths]:
        return ()
    asked = [] if named is None else list(named.placements(len(parts[0]), False))
    draw.shuffle(asked)
    while True:
        placements = asked.pop() if asked else tuple(draw.choice((WHOLE, *range(len(parts[0])))) for _ in sizes)
        counts = [prod(n for n, e in zip(sizes, placements, strict=True) if e == axis) for axis in range(len(parts[0]))]
        if not any(length % count for row in parts for length, count in zip(row, counts, strict=True)):
            return placements


def _strategies(
    draw: random.Random,
    program: Program,
    sizes: tuple[int, ...],
    ends: tuple[Placements, Placements],
    gathers: bool,
    methods: tuple[str, ...],
    samples: int,
    named: NamedStrategy | None,
    losses: tuple[bool, ...],
) -> tuple[LayerStrategies, MeshProblem]:
    """Random strategies of a layer: those that cost least if everything costs something random.

    Where all strategies would need tables that are too large, each operator has some of them only.
    """
    seed = draw.randrange(10**9)
    mesh = Mesh(sizes, (Link(10**9, 1000), *(Link(10**10, 100),) * (len(sizes) - 1)))
    own = Rooflines(program.graph, NOTHING, program.graph.parameters, DeviceKind("made up"), None, samples)
    every = MeshProblem(own, mesh, *ends, gathers=gathers, tokens=named is None, named=named)
    for share in (1, 1 / 2, 1 / 4):
        problem = every if share == 1 else replace(every, allows=partial(_is_drawn, seed, share), known={})
        with suppress(TooLargeError):
            return problem.layer_strategies(_choice(problem, np.random.default_rng(seed), methods, losses)), problem
    raise AssertionError(f"too many strategies on {sizes}")


def _is_drawn(seed: int, share: float, operator: Operator, strategy: Strategy) -> bool:
    """Whether a strategy is among this share of an operator's; that of a whole one is, and all of attention."""
    is_kept = operator.attention is not None or all(entry.loop == UNSPLIT for entry in strategy)
    return is_kept or random.Random(f"{seed} {operator.name} {strategy}").random() < share


def _choice(
    problem: MeshProblem, numbers: np.random.Generator, methods: tuple[str, ...], losses: tuple[bool, ...]
) -> Sequence[int]:
    """The choice that costs least if everything costs something random."""
    costs = tuple(
        np.where(each >= UNLIMITED, each, numbers.integers(0, 10**6, each.shape)) for each in problem.sharding.costs
    )
    edges = tuple(
        Edge(a, b, np.where(each >= UNLIMITED, each, numbers.integers(0, 10**6, each.shape)))
        for a, b, each in problem.sharding.edges
    )
    for operator, own, each in zip(problem.graph.operators, problem.signatures, costs, strict=False):
        tied = any(weight.shared for weight in operator.weights)
        if operator.name in problem.graph.loss_names:
            each[[tuple(entry.loop != UNSPLIT for entry in strategy) != losses for strategy, _ in own]] = UNLIMITED
        each[[tied and any(entry.loop != UNSPLIT for entry in strategy) for strategy, _ in own]] = UNLIMITED
        if methods and operator.attention is not None:
            each[
                [
                    tuple(entry.loop == TOKEN and method_of(entry) for entry in strategy) != methods
                    for strategy, _ in own
                ]
            ] = UNLIMITED
    first = np.eye(1, costs[0].shape[1], dtype=np.int64)
    return frontier(Sharding(costs, edges).project(first), Clock(Limits(60))).choice(0)


def treated(case: Case, *, again: bool, split: bool) -> Case:
    """The case with all layers recomputed in the backward, or with weight gradients behind those of inputs."""
    plan, (forward, backward), later = case
    stages = tuple(replace(stage, recompute=stage.layers) for stage in plan.stages) if again else plan.stages
    schedule = halved(plan.schedule) if split else plan.schedule
    sent = forward, backward + forward if again else backward
    return Case(replace(plan, stages=stages, schedule=schedule), sent, later)


def check_sent(case: Case, sent: Sent) -> None:
    """Nothing is sent but what is priced: in the forward, in the backward, and of this in the weight gradient."""
    forward, backward, later = sent
    assert forward == case.sent[0]
    assert backward + later <= case.sent[1]  # what has no gradient is moved for none
    if not case.plan.stages[0].recompute:  # a second forward ends where nothing more is needed
        assert sum((backward + later).values()) > 0.8 * sum(case.sent[1].values())
    assert later <= case.later
    assert bool(later) == (bool(case.later) and splits(case.plan))


def splits(plan: Plan) -> bool:
    """Whether weight gradients come behind those of inputs."""
    return any(action.kind is Kind.WEIGHT_GRADIENT for action in plan.schedule.actions())


def errors(plans: tuple[Plan, ...], build: Callable[[], Workload]) -> list[float]:
    """For each plan the largest relative difference to the unsplit model."""
    return [worst_error(plan, build, 3) for plan in plans]


def exact(plans: tuple[Plan, ...], build: Callable[[], Workload]) -> tuple[list[float], list[Sent]]:
    """For each plan the largest relative difference to the unsplit model; of one stage on equal axes what is sent."""
    return errors(plans, build), [_sent(plan, build) for plan in plans if len(plan.stages) == len({*plan.mesh}) == 1]


class Loss(NamedTuple):
    """A plan with a split loss: differences to the unsplit model, and what is sent for a micro-batch."""

    error: float
    evaluated: float
    predicted: float
    half: float
    sent: Sent | None


def with_losses(cases: dict[str, tuple[Case, Callable[[], Workload]]]) -> dict[str, Any]:
    """What each case makes; and on two processes what is said of other losses and targets."""
    found: dict[str, Any] = {name: _with_loss(case.plan, build) for name, (case, build) in cases.items()}
    if "again" in cases:
        plan, build = cases["again"][0].plan, cases["again"][1]
        for other in (vocabulary_workers.smoothed, vocabulary_workers.dropping):
            with pytest.raises(PlanError, match=(said := "--no-vocabulary-parallel")):
                Pipeline(plan, other)
        pipeline = Pipeline(plan, build)
        inputs, targets = source.draw(pipeline.workload, plan.batch, 3)
        with pytest.raises(IndexError, match=(wrong := "a target is none of the 50 classes")):
            pipeline.evaluate(inputs, targets + 1)
        found |= {"others": said, "target": wrong}
    return found


def _with_loss(plan: Plan, build: Callable[[], Workload]) -> Loss:
    error = worst_error(plan, build, 3)
    pipeline, (inputs, targets) = _pipeline(plan, build, dtype=torch.float64)
    loss, made = _unsplit(pipeline, inputs, targets)
    predicted = pipeline.predict(inputs)
    apart = 0.0 if predicted is None else float((predicted - made).abs().max())
    half, batch = _pipeline(plan, build, precision="bf16")
    rounded = half.shared_loss(half.compute(*batch, update=False))
    with autocast("bf16", torch.device("cpu")):
        expected, _ = _unsplit(half, *batch)
    sent = _sent(plan, build) if len(plan.stages) == 1 else None
    return Loss(error, abs(pipeline.evaluate(inputs, targets) / loss - 1), apart, abs(rounded / expected - 1), sent)


def _pipeline(plan: Plan, build: Callable[[], Workload], **options: Any) -> tuple[Pipeline, tuple[Any, Any]]:
    pipeline = Pipeline(plan, build, **options)
    return pipeline, source.draw(pipeline.workload, plan.batch, 3, options.get("dtype"))


def _unsplit(pipeline: Pipeline, inputs: Any, targets: Any) -> tuple[float, Tensor]:
    """The mean loss over micro-batches, and the outputs, of the unsplit model."""
    whole, size = materialised(pipeline.fitted, dtype=pipeline.dtype).eval(), pipeline.plan.micro_batch
    wanted = split(targets, size)
    with torch.no_grad():
        made = [call(whole, own) for own in split(inputs, size)]
        losses = [float(pipeline.workload.loss(*both)) for both in zip(made, wanted, strict=True)]
    weights = shares(pipeline.workload.weight, wanted)
    return sum(a * b for a, b in zip(losses, weights, strict=True)), torch.cat(made)


def _sent(plan: Plan, build: Callable[[], Workload]) -> Sent:
    """What is sent for a micro-batch: of gathers and sums along axes.

    In the forward, in the backward or the input gradient, and in the weight gradient. Nothing moved again is kept.
    """
    pipeline = Pipeline(plan, build, seed=3, evaluates=False)
    inputs, targets = source.draw(pipeline.workload, SAMPLES, 3)
    stage = pipeline._stages[0]
    stage.weights = [1.0] * plan.micro_batches
    with SeenAlong(plan.mesh) as forward, _moved_again():
        stage.forward(0, tuple(tensors(inputs)), targets)
    with SeenAlong(plan.mesh) as backward:
        (stage.input_gradient if splits(plan) else stage.backward)(0, ())
    with SeenAlong(plan.mesh) as later:
        if splits(plan):
            stage.weight_gradient(0)
    return forward.sent, backward.sent, later.sent


@contextmanager
def _moved_again() -> Iterator[None]:
    """What is moved for operators that move it again in the backward; nothing of it is there when the context ends."""
    own, found = MeshRun._bases, list[StorageWeakRef]()

    def bases(run: MeshRun, operator: Operator) -> dict[str, Base]:
        made = own(run, operator)
        if run._plan.moves_again(operator):
            found.extend(StorageWeakRef(each.part.untyped_storage()) for each in made.values() if each.is_moved)
        return made

    with patch.object(MeshRun, "_bases", bases):
        yield
    assert all(each.expired() for each in found), "autograd keeps what is moved again"


class SeenAlong(TorchDispatchMode):
    """Counts collectives of layers on a mesh, and the bytes of what the processes along an axis have together."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        assert len(set(sizes)) == 1, "all axes are of one size, so it need not be known which one is used"
        self._size, self.sent = sizes[0], Sums()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.partition(".")[0]
        if name in OPERATIONS and ("c10d_functional" in func.namespace or OPERATIONS[name] is Exchange.SHIFT):
            kind = OPERATIONS[name]
            parts = self._size if kind in OF_PARTS else 1
            tensor = args[0] if isinstance(args[0], Tensor) else args[0][0]
            self.sent += halves(kind, tensor.nbytes * parts)
        return func(*args, **(kwargs or {}))
