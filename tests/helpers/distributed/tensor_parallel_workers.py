"""Workers for the tests of tensor parallelism, in groups of two processes."""

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import lcm
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor.debug import CommDebugMode

from helpers.distributed import models as models_of_tests
from helpers.distributed.cases import random_case
from helpers.distributed.exactness import worst_error
from helpers.distributed.models import blank_model, tiny_decoder
from helpers.distributed.training_models import dropped_apart, skipping
from helpers.fused_models import tiny_fused
from helpers.plans import in_teams, plan_for
from helpers.runnable_schedules import halved
from pipeplan.core.errors import PlanError
from pipeplan.core.grouped_axis import GroupedAxis, ShardAxis, group_ranges
from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Schedule
from pipeplan.frontend.batch import call
from pipeplan.frontend.workload import Workload
from pipeplan.schedules import FAMILIES
from pipeplan_executor.sharding import TensorParallel
from pipeplan_executor.sharding.declared import declared
from pipeplan_executor.sharding.shards import find_shards
from pipeplan_executor.stages.fully_sharded import check_sharded_plan, local
from pipeplan_executor.stages.source import draw
from pipeplan_executor.stages.split import fit
from pipeplan_executor.train import runner
from pipeplan_executor.train.pipeline import Pipeline
from pipeplan_executor.train.reference import materialised
from pipeplan_executor.train.report import RunReport
from pipeplan_executor.zoo.decoder import SHARDS

TEAM = 2
GROUPS = ((1, 1), (1, 1, 1), (2, 1, 1))
"""Groups of axes that are drawn."""
CONVERTED = {"*.mlp.c_fc.weight": 1, "*.mlp.c_fc.bias": 0, "*.c_proj.weight": 0}
"""Shards of GPT-2, whose matrices are transposed."""
FUSED = {"*.c_attn.weight": GroupedAxis(1, (1, 1, 1)), "*.c_attn.bias": GroupedAxis(0, (1, 1, 1))}
"""Those of its queries, keys and values in one matrix."""
LLAMAS = {f"*.{name}_proj.weight": 0 for name in ("q", "k", "v", "gate", "up")} | {
    f"*.{name}_proj.weight": 1 for name in ("o", "down")
}


SENT: dict[str, dict[str, int]] = {
    "pairs": SHARDS,
    "columns without rows": {"*.widen.*": 0},
    "head": {"head.weight": 0},
    "vocabulary": {"embedding.tokens.weight": 0},
    "stream": {"embedding.*": 1},
}
"""Cuts of one block of the decoder whose collectives are counted."""
TOKENS = ("embedding", "block0")
"""Layers of one block whose outputs are split along tokens."""
NAMED: dict[str, tuple[Callable[[], Workload], dict[str, ShardAxis] | None]] = {
    "decoder": (tiny_decoder, None),
    "dropped": (dropped_apart, None),
    "skipping": (skipping, {"first.*": 0, "second.weight": 1}),
    "llama": (models_of_tests.tiny_llama, LLAMAS),
    "fused": (tiny_fused, None),
    "gpt2": (models_of_tests.tiny_gpt2, CONVERTED | FUSED),
    "gpt2 gathered": (models_of_tests.tiny_gpt2, CONVERTED | {"*.c_attn.weight": 1}),
}


def named(*cases: tuple[str, tuple[str, ...]]) -> dict[str, float]:
    """The worst error of models with Megatron's sharding: joined or split backwards, or recomputed.

    Models that declare no shards run under plans with teams.
    """
    found = {}
    for name, ways in cases:
        build, shards = NAMED[name]
        module, layers, held = blank_model(build)
        schedule = FAMILIES["1f1b-sno"].write((1,) * (dist.get_world_size() // TEAM), 3)
        edges = (0, *range(2, 1 + schedule.stages), len(layers))
        for way in ways:
            lists = halved(schedule) if way == "split" else schedule
            plan = plan_for(module, layers, edges, lists, recompute=layers if way == "again" else (), held=held)
            groups = TEAM if shards is None else None
            found[f"{name} {way}"] = worst_error(
                plan if shards is None else in_teams(plan, module, shards), build, 3, tensor_parallel=groups
            )
    return found


def random_groups(count: int, seed: int) -> dict[str, float]:
    """The worst error of random plans of all models, with random parameters cut along random axes.

    Every second plan has teams, some of which split tokens, or leave logits as they are for the loss, whatever it is;
    the others are given groups. Those that can be are at levels 2 and 3 of ZeRO.
    """
    generator, levels, ranks = random.Random(seed), random.Random(seed), dist.get_world_size() // TEAM
    found, models = {}, (tiny_fused, *models_of_tests.EVERY)
    for number in range(count):
        build = models[number % len(models)]
        case = random_case(generator, ranks, build)
        module = blank_model(build)[0]
        shards = random_shards(generator, module)
        planned, loss = number % 2 == 0, number % 4 == 0
        sequence = random_sequence(generator, case.plan, build) if planned else ()
        plan = in_teams(case.plan, module, shards, sequence=sequence, vocabulary=loss) if planned else case.plan
        plan = _at_level(plan, build, levels.choice((0, 2, 3)))
        found[f"{number} {case.name} {shards} {sequence} level {plan.zero}"] = worst_error(
            plan,
            build,
            3,
            tensor_parallel=None if planned else TensorParallel(TEAM, shards),
        )
    return found


def _at_level(plan: Plan, build: Callable[[], Workload], level: int) -> Plan:
    """The plan at a level of ZeRO; as it is if its stages cannot share out gradients or parameters."""
    found = replace(plan, zero=level)
    try:
        check_sharded_plan(found)
        if found.sharded:
            fit(found, build)
    except PlanError:
        return plan
    return found


def unlike_groups(count: int, seed: int) -> dict[str, float]:
    """The worst error of random plans whose stages have teams of unlike sizes, some with tokens split among them."""
    generator, world = random.Random(seed), dist.get_world_size()
    found: dict[str, float] = {}
    while len(found) < count:
        build = generator.choice([tiny_decoder, dropped_apart, *models_of_tests.WORKLOADS])
        case = random_case(generator, generator.randint(2, world - 1), build)
        ways = [teams for teams in _teams(case.plan, world) if len(set(teams)) > 1]
        if not ways:
            continue
        teams = generator.choice(ways)
        parts = lcm(*teams)
        shards = random_shards(generator, blank_model(build)[0], parts)
        sequence = random_sequence(generator, case.plan, build, parts)
        module, loss = blank_model(build)[0], teams[-1] > 1 and generator.random() < 0.5
        plan = in_teams(case.plan, module, shards, teams, sequence, loss) if shards else case.plan
        if plan.shards or plan.sequence:
            found[f"{case.name} {teams} {shards} {sequence}"] = worst_error(plan, build, 3)
    return found


def _teams(plan: Plan, world: int) -> list[tuple[int, ...]]:
    """Sizes of teams for each stage with which a plan takes all processes; of stages that share a rank, equal ones."""
    homes = plan.schedule.homes
    found = []
    for teams in product(range(1, world), repeat=len(homes)):
        sizes: dict[int, set[int]] = {}
        for ranks, team in zip(homes, teams, strict=True):
            for rank in ranks:
                sizes.setdefault(rank, set()).add(team)
        alike = all(len(own) == 1 for own in sizes.values())
        tied = all(len({teams[stage] for stage in group}) == 1 for group in plan.pipeline.tied)
        if alike and tied and sum(min(own) for own in sizes.values()) == world:
            found.append(teams)
    return found


def random_shards(generator: random.Random, module: nn.Module, parts: int = TEAM) -> dict[str, ShardAxis]:
    """Random even axes of random parameters, at least one, some group by group; recurrent layers are left out."""
    ways: dict[str, list[ShardAxis]] = {}
    for name, parameter in module.named_parameters():
        if not isinstance(module.get_submodule(name.rpartition(".")[0]), nn.RNNBase):
            even = [axis for axis, length in enumerate(parameter.shape) if length % parts == 0]
            rows = ((axis, groups) for axis in even for groups in GROUPS)
            fits = (row for row in rows if group_ranges(parameter.shape[row[0]], row[1], parts, 0))
            ways[name] = [*even * 2, *(GroupedAxis(*row) for row in fits)]
    share = generator.choice((0.2, 0.6, 1.0))
    chosen = {name: generator.choice(axes) for name, axes in ways.items() if axes and generator.random() < share}
    return chosen or {name: axes[0] for name, axes in ways.items() if axes}


def random_sequence(
    generator: random.Random, plan: Plan, build: Callable[[], Workload], parts: int = TEAM
) -> tuple[str, ...]:
    """Some or none of the layers whose outputs can be split along tokens."""
    fitted, share = fit(plan, build), generator.choice((0.0, 0.5, 1.0))
    made = zip(fitted.names[:-1], fitted.flow.tensors[1:-1], strict=True)
    ways = [name for name, (first, *more) in made if not more and first.dim() > 2 and first.shape[1] % parts == 0]
    return tuple(name for name in ways if generator.random() < share)


def outputs() -> tuple[float, float, float]:
    """Loss, unsplit loss and largest difference of all outputs, in evaluation mode."""
    plan = _plan(tiny_decoder)
    pipeline = Pipeline(plan, tiny_decoder, dtype=torch.float64, tensor_parallel=TEAM)
    inputs, targets = draw(pipeline.workload, plan.batch, 3, torch.float64)
    whole = materialised(pipeline.fitted, dtype=torch.float64).eval()
    with torch.no_grad():
        expected = call(whole, inputs)
    found = pipeline.predict(inputs)
    apart = 0.0 if found is None else float((found - expected).abs().max())
    return pipeline.evaluate(inputs, targets), float(pipeline.workload.loss(expected, targets)), apart


Counts: TypeAlias = dict[str, int]


def collectives() -> dict[str, tuple[Counts, Counts]]:
    """Collectives that a rank with one block issues per micro-batch, for each of `SENT`.

    Forward only, and with backward.
    """
    found = {name: _collectives(cuts) for name, cuts in SENT.items()}
    return {**found, "tokens": _collectives(SHARDS, TOKENS), "tokens, split": _collectives(SHARDS, TOKENS, split=True)}


def _collectives(cuts: dict[str, int], sequence: tuple[str, ...] = (), split: bool = False) -> tuple[Counts, Counts]:
    plan = in_teams(_plan(one_block, each=1), blank_model(one_block)[0], cuts, sequence=sequence)
    plan = replace(plan, schedule=halved(plan.schedule)) if split else plan
    pipeline = Pipeline(plan, one_block)
    batch = draw(pipeline.workload, plan.batch, 3)
    with CommDebugMode() as forward:
        pipeline.predict(batch[0])
    with CommDebugMode() as both:
        pipeline.compute(*batch, update=False)
    return _counts(forward), _counts(both)


def _counts(seen: CommDebugMode) -> Counts:
    """Collectives, by kind."""
    counts = {str(operation): count for operation, count in seen.get_comm_counts().items()}
    return {key.rpartition(".")[2]: count for key, count in counts.items() if "functional" in key}


def saved() -> tuple[int, int]:
    """Bytes that the forward of one block saves besides parameters: with whole tensors, and with split tokens."""
    found = []
    for sequence in ((), TOKENS):
        plan = in_teams(_plan(one_block), blank_model(one_block)[0], SHARDS, sequence=sequence)
        pipeline = Pipeline(plan, one_block)
        inputs, _ = draw(pipeline.workload, plan.micro_batch, 3)
        own = {parameter.untyped_storage().data_ptr() for parameter in pipeline.parameters()}
        seen: dict[int, int] = {}

        def pack(tensor: torch.Tensor, own: set[int] = own, seen: dict[int, int] = seen) -> torch.Tensor:
            memory = tensor.untyped_storage()
            if memory.data_ptr() not in own:
                seen[memory.data_ptr()] = memory.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            kept = pipeline.modules[0](inputs)
        found.append(sum(seen.values()))
        del kept
    return found[0], found[1]


def waiting() -> tuple[dict[str, bool], dict[str, bool]]:
    """Sharded parameters with gradients after I, and after W."""
    plan = _plan(one_block)
    plan = replace(plan, schedule=halved(plan.schedule))
    pipeline = Pipeline(plan, one_block, tensor_parallel=TEAM)
    inputs, targets = draw(pipeline.workload, plan.micro_batch, 3)
    (stage,) = pipeline._stages.values()
    number = next(action.micro_batch for action in plan.schedule.orders[pipeline.tensor_group.rank])
    stage.weights = [1.0] * plan.micro_batches
    stage.forward(number, (inputs,), targets)

    def there() -> dict[str, bool]:
        return {name: bool(p.grad.any()) for name, p in pipeline.named_parameters() if name in pipeline.shards}

    stage.input_gradient(number, ())
    behind = there()
    stage.weight_gradient(number)
    return behind, there()


def freed() -> dict[int, tuple[int, int]]:
    """At each level of ZeRO the bytes of a member's whole shards, and of the weights that are there behind a forward.

    Two replicas of a team; the bytes are those of all storages of this process's parameters.
    """
    found = {}
    for level in (1, 2, 3):
        plan = replace(in_teams(_plan(one_block), blank_model(one_block)[0], SHARDS, sequence=TOKENS), zero=level)
        pipeline = Pipeline(plan, one_block)
        inputs, targets = draw(pipeline.workload, plan.micro_batch, 3)
        (stage,) = pipeline._stages.values()
        stage.forward(0, (inputs,), targets)
        shards = find_shards(pipeline.workload.module, SHARDS, TensorParallel(TEAM))
        named = pipeline.fitted.blank.named_parameters()
        whole = sum(each.nbytes // (TEAM if name in shards else 1) for name, each in named)
        found[level] = whole, sum(local(each).nbytes for each in pipeline.parameters())
    return found


def _plan(build: Callable[[], Workload], each: int = 3) -> Plan:
    """One stage, replicated on all tensor-parallel groups, with this number of micro-batches each."""
    module, names, held = blank_model(build)
    ranks = dist.get_world_size() // TEAM
    return plan_for(module, names, (0, len(names)), FAMILIES["gpipe"].write((ranks,), each * ranks), held=held)


def one_block() -> Workload:
    """The decoder of the zoo, of one block."""
    return models_of_tests.decoder(blocks=1, width=16, heads=2, vocabulary=50, length=6, hidden=32)


def tokens() -> dict[str, float]:
    """The worst error of plans that split tokens, of one sample and of two, with a table of words split by rows."""
    found = {}
    module, layers, held = blank_model(tiny_decoder)
    ranks, cuts = dist.get_world_size() // TEAM, {**SHARDS, "embedding.tokens.weight": 0}
    for samples, way in ((1, "joined"), (1, "split"), (2, "again")):
        schedule = FAMILIES["1f1b-sno"].write((1,) * ranks, 3)
        edges = (0, *range(2, 1 + schedule.stages), len(layers))
        lists = halved(schedule) if way == "split" else schedule
        plan = plan_for(module, layers, edges, lists, samples, recompute=layers if way == "again" else (), held=held)
        plan = in_teams(plan, module, cuts, sequence=layers[:-1])
        found[f"{samples} {way}"] = worst_error(plan, tiny_decoder, 3)
    return found


def report() -> tuple[RunReport, Schedule]:
    """Report of a run of a plan with teams, and its schedule."""
    plan = in_teams(_plan(one_block), blank_model(one_block)[0], one_block().shards)
    options = runner._Options(
        steps=1,
        warmup=0,
        verify=True,
        seed=0,
        weights=None,
        learning_rate=0.1,
        saving=None,
        precision=None,
        progress=False,
        tensor_parallel=declared(plan),
        prefill=False,
    )
    return runner._rank(plan, one_block, options), plan.schedule
