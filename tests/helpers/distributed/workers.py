"""Workers for the tests of runs, importable by name in other processes."""

import random
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from helpers.distributed import models as models_of_tests
from helpers.distributed.cases import Case, placed_cases, random_case
from helpers.distributed.everywhere import greatest
from helpers.distributed.models import layers_of, tiny_decoder, tiny_dropping, tiny_resnet, tiny_tied
from helpers.plans import plan_for, with_buckets
from helpers.quick import QUICK, part
from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Schedule
from pipeplan.frontend.batch import Batch, call, split, tensors
from pipeplan.frontend.workload import Workload
from pipeplan.schedules import FAMILIES, PLACED
from pipeplan_executor.stages.source import draw
from pipeplan_executor.train.pipeline import Pipeline
from pipeplan_executor.train.reference import materialised
from pipeplan_executor.train.verdict import Verdict
from pipeplan_executor.train.verify import verify

RATE = 0.05
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=RATE),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=RATE, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=RATE),
}


def random_cases(count: int, seed: int, models: str = "WORKLOADS") -> dict[str, float]:
    """The worst error of each random case; ``models`` is the name of a list in models.py.

    Every third plan has no buckets, every third buckets of two layers.
    """
    generator, world = random.Random(seed), dist.get_world_size()
    builds = getattr(models_of_tests, models)
    found = {}
    for number in range(count):
        case = random_case(generator, world, builds[number % len(builds)])
        case = replace(case, plan=with_buckets(case.plan, number % 3))
        found[f"{number} {case.name}"] = worst_error(case, passes=1 + number % 2)
    return found


def placed_families(seed: int) -> dict[str, float]:
    """The worst error of a random case of every family that places stages itself; on four ranks of some of them."""
    cases = placed_cases(random.Random(seed), dist.get_world_size())
    cases = [*part(cases, 3)] if dist.get_world_size() == 4 else cases
    return {f"{case.plan.schedule.family}: {case.name}": worst_error(case, passes=1) for case in cases}


def found_schedules(cases: list[Case]) -> dict[str, float]:
    """The worst error of each of these cases."""
    return {case.name: worst_error(case, passes=1) for case in cases}


def worst_error(case: Case, passes: int) -> float:
    """Largest relative difference of loss and gradients to the unsplit model, in float64, over all ranks.

    Passes without an update in between add up, so the gradients must be ``passes`` times as large. For a single pass,
    captured models are captured in training mode only.
    """
    pipeline = Pipeline(case.plan, case.build, dtype=torch.float64, evaluates=passes > 1)
    inputs, targets = draw(pipeline.workload, case.plan.batch, 3, torch.float64)
    losses = [pipeline.step(inputs, targets, update=False) for _ in range(passes)]
    whole = unsplit(pipeline)
    reference = accumulate(whole, pipeline.workload, case.plan, inputs, targets)
    expected = dict(whole.named_parameters(remove_duplicate=False))
    worst = max(abs(loss - reference) / abs(reference) for loss in losses)
    largest = max(float(parameter.grad.abs().max()) for parameter in whole.parameters() if parameter.grad is not None)
    for name, parameter in pipeline.named_parameters():
        gradient = expected[name].grad
        wanted = torch.zeros_like(parameter) if gradient is None else gradient
        scale = max(float(wanted.abs().max()), 1e-6 * largest)  # some are zero except for rounding
        worst = max(worst, float((parameter.grad / passes - wanted).abs().max()) / scale)
    return greatest(worst)


def unsplit(pipeline: Pipeline) -> nn.Module:
    """The whole model with the weights that the pipeline's stages have at the start."""
    return materialised(pipeline.fitted, dtype=torch.float64)


def accumulate(whole: nn.Module, workload: Workload, plan: Plan, inputs: Batch, targets: Batch) -> float:
    """The unsplit model's mean loss, and its gradients; with batch norm by micro-batches, otherwise at once."""
    batch_norm = any(isinstance(part, nn.BatchNorm2d) for part in whole.modules())
    size = plan.micro_batch if batch_norm else plan.batch
    total = 0.0
    for some_inputs, some_targets in zip(split(inputs, size), split(targets, size), strict=True):
        loss = workload.loss(call(whole, some_inputs), some_targets) * size / plan.batch
        loss.backward()
        total += float(loss.detach())
    return total


def training(steps: int, tied: bool = False) -> dict[str, tuple[list[float], list[float], float]]:
    """By optimiser, replicas and sharding: losses pipelined and unsplit, and the difference of the weights.

    ``tied``: for a model whose first and last layer share weights.
    """
    world = dist.get_world_size()
    none, some, all_ranks = (1,) * world, (world - 1, 1), (world,)
    cases = [("sgd", none, False), ("momentum", some, False), ("adam", all_ranks, False)]
    cases += [("sgd", all_ranks, True), ("momentum", all_ranks, True), ("adam", some, True)]
    if tied:
        cases += [("adam", none, False), ("momentum", (1, world - 1), True)]
    build = tiny_tied if tied else tiny_decoder
    return {
        f"{name} {replicas} {zero1}": _train(steps, name, replicas, zero1, build) for name, replicas, zero1 in cases
    }


def tied_training(steps: int) -> dict[str, tuple[list[float], list[float], float]]:
    """Results of `training` for a model whose first and last layer share weights."""
    return training(steps, tied=True)


def tied_pairs(steps: int) -> dict[str, tuple[list[float], list[float], float]]:
    """The same where both stages that share weights have several replicas: two by two, and one beside three."""
    cases = [("sgd", (2, 2), False), ("adam", (2, 2), True), ("momentum", (1, 3), False), ("sgd", (3, 1), True)]
    return {
        f"{name} {replicas} {zero1}": _train(steps, name, replicas, zero1, tiny_tied) for name, replicas, zero1 in cases
    }


def _train(
    steps: int, optimizer: str, replicas: tuple[int, ...], zero1: bool, build: Callable[[], Workload]
) -> tuple[list[float], list[float], float]:
    workload = build()
    names = layers_of(workload)
    cuts = (0, *range(2, 2 + len(replicas) - 1), len(names))
    plan = plan_for(workload.module, names, cuts, FAMILIES["1f1b-sno"].write(replicas, 4), 2, optimizer)
    pipeline = Pipeline(replace(plan, zero=int(zero1)), build, dtype=torch.float64, learning_rate=RATE)
    whole = unsplit(pipeline)
    update = OPTIMIZERS[optimizer](whole.parameters())
    losses, theirs = [], []  # losses are told at the end: until then no rank waits for another one's step
    for number in range(steps):
        inputs, targets = draw(pipeline.workload, plan.batch, 0, torch.float64, number)
        update.zero_grad()
        if number == 1:  # gradients of a pass without an update count too
            pipeline.step(inputs, targets, update=False)
            accumulate(whole, pipeline.workload, plan, inputs, targets)
        losses.append(pipeline.compute(inputs, targets))
        theirs.append(accumulate(whole, pipeline.workload, plan, inputs, targets))
        update.step()
    ours = [pipeline.shared_loss(each) for each in losses]
    expected = dict(whole.named_parameters(remove_duplicate=False))
    apart = max(float((p - expected[name]).detach().abs().max()) for name, p in pipeline.named_parameters())
    return ours, theirs, greatest(apart)


def replicas() -> tuple[tuple[int, list[int]], list[float]]:
    """Shared and separate state of a stage's replicas."""
    return optimizer_shares(), batch_norm_of_replicas()


def optimizer_shares() -> tuple[int, list[int]]:
    """Size of Adam's state of the unsplit model, and of each replica's share under ZeRO-1, after a step."""
    world = dist.get_world_size()
    workload = tiny_decoder()
    names = layers_of(workload)
    plan = plan_for(workload.module, names, (0, len(names)), FAMILIES["gpipe"].write((world,), 2 * world), 1, "adam")
    pipeline = Pipeline(replace(plan, zero=1), tiny_decoder)
    pipeline.step(*draw(pipeline.workload, plan.batch, 0))
    own = sum(t.numel() for state in pipeline.updates.optimizers[0].state.values() for t in state.values() if t.dim())
    everyone: list[int | None] = [None] * world
    dist.all_gather_object(everyone, own)
    return 2 * sum(p.numel() for p in workload.module.parameters()), [number for number in everyone if number]


def batch_norm_of_replicas() -> list[float]:
    """The running mean of the first batch norm of two replicas and of a replay of each one's own micro-batches."""
    workload = tiny_resnet()
    names = layers_of(workload)
    plan = plan_for(workload.module, names, (0, len(names)), FAMILIES["gpipe"].write((2,), 4))
    pipeline = Pipeline(plan, tiny_resnet, dtype=torch.float64)
    inputs, targets = draw(pipeline.workload, plan.batch, 0, torch.float64)
    pipeline.step(inputs, targets)
    whole = unsplit(pipeline)
    for number, rows in enumerate(inputs.split(plan.micro_batch)):
        if number % 2 == dist.get_rank():
            whole(rows)
    found = [float(m.state_dict()["stem.norm.running_mean"][0]) for m in (pipeline, whole)]
    everyone: list[list[float] | None] = [None, None]
    dist.all_gather_object(everyone, found)
    return [value for pair in everyone if pair for value in pair]


def verification() -> dict[str, Verdict]:
    """Result of ``--verify`` for right runs, and for a loss that is no mean."""
    own = models_of_tests
    builds = (
        own.tiny_stages,
        own.tiny_rounding,
        own.tiny_single,
        own.tiny_sums,
        *(own.tiny_bert,) * own.HAS_TRANSFORMERS,
    )
    found = {}
    for build in builds:
        module, names, held = own.blank_model(build)
        schedule = FAMILIES["1f1b-so"].write((1, 1), 3)
        plan = plan_for(module, names, (0, len(names) // 2, len(names)), schedule, held=held)
        found[build.__name__] = verify(plan, build, 0)
    return found


def evaluation() -> dict[str, tuple[float, float, float]]:
    """By model and placement: the pipeline's loss, the unsplit one's, and the largest difference of all outputs.

    Measured in evaluation mode, after a training step, for every route of outputs: one last rank, replicas of the last
    stage, stages in a V, several tensors between stages, and a captured model that returns a dict.
    """
    cases = [
        (tiny_resnet, PLACED["zb-v"].write(2, 3, 2)),
        (tiny_dropping, FAMILIES["gpipe"].write((1, 1), 4)),
        (tiny_decoder, FAMILIES["gpipe"].write((2,), 3)),
        (models_of_tests.tiny_stages, FAMILIES["1f1b-sno"].write((1, 1), 5)),
    ]
    if models_of_tests.HAS_TRANSFORMERS and not QUICK:  # to import it takes seconds on each rank
        cases.append((models_of_tests.tiny_gpt2, FAMILIES["1f1b-sno"].write((1, 1), 2)))
    return {f"{number} {build.__name__}": _evaluate(build, schedule) for number, (build, schedule) in enumerate(cases)}


def _evaluate(build: Callable[[], Workload], schedule: Schedule) -> tuple[float, float, float]:
    module, names, held = models_of_tests.blank_model(build)
    cuts = models_of_tests.random_cuts(random.Random(1), len(names), schedule.stages)
    plan = plan_for(module, names, cuts, schedule, held=held)
    pipeline = Pipeline(plan, build, dtype=torch.float64)
    inputs, targets = draw(pipeline.workload, plan.batch, 3, torch.float64)
    pipeline.step(inputs, targets)
    whole = materialised(pipeline.fitted, dtype=torch.float64)
    everyone: list[dict[str, torch.Tensor]] = [{}] * dist.get_world_size()
    dist.all_gather_object(everyone, pipeline.state_dict())
    whole.load_state_dict({name: value for state in everyone for name, value in state.items()})
    whole.eval()
    with torch.no_grad():
        expected = call(whole, inputs)
        reference = float(pipeline.workload.loss(expected, targets))
    before = {name: value.clone() for name, value in pipeline.state_dict().items()}
    loss = pipeline.evaluate(inputs, targets)
    found = pipeline.predict(inputs if pipeline.holds_first else None)
    assert (found is not None) == pipeline.holds_last
    modes = {part.training for module in pipeline.modules.values() for part in module.modules()}
    assert modes == {True}, build.__name__
    changed = [name for name, value in pipeline.state_dict().items() if not torch.equal(value, before[name])]
    assert not changed, build.__name__
    apart = 0.0
    if found is not None:
        assert type(found) is type(expected)
        pairs = zip(tensors(found), tensors(expected), strict=True)
        apart = max(float((a - b).abs().max()) / float(b.abs().max()) for a, b in pairs)
    shared = greatest(apart)
    assert pipeline.step(inputs, targets) != pipeline.step(inputs, targets)  # training goes on
    return loss, reference, shared
