"""Plans from boundaries and an action list, for models whose costs do not matter."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import lcm

import torch

from pipeplan.core.cluster import Overlap
from pipeplan.core.grouped_axis import ShardAxis
from pipeplan.core.pipeline import Bucket, Pipeline, Stage, Transfer, exposed
from pipeplan.core.plan import Context, MemoryParts, Plan, PlanStage
from pipeplan.core.priority import Priority, Send
from pipeplan.core.schedule import Schedule
from pipeplan.core.shared_weights import tied_stages, with_reductions
from pipeplan.costs.chain import UNLIMITED
from pipeplan.frontend.parameters import Held, held_by
from pipeplan_executor.sharding import TensorParallel
from pipeplan_executor.sharding.shards import find_shards
from pipeplan_executor.stages.split import describe


def plan_for(
    module: torch.nn.Module,
    names: Sequence[str],
    boundaries: Sequence[int],
    schedule: Schedule,
    micro_batch: int = 2,
    optimizer: str = "sgd",
    recompute: Sequence[str] = (),
    held: Held | None = None,
) -> Plan:
    """Plan that runs ``names`` cut at ``boundaries``, one rank per list of the schedule; its times are made up.

    A stage whose actions are in several lists is replicated. ``recompute`` names layers of any stage. ``held`` gives
    parameters of layers that are not submodules. If stages share weights, missing reductions are added to the lists.
    """
    ranks = len(schedule.orders)
    spans = [tuple(names[a:b]) for a, b in pairwise(boundaries)]
    described = describe("test", module, names, held_by(module, names) if held is None else held)
    tied = tied_stages((tie.layers for tie in described.trained_ties), spans, schedule.homes)
    schedule = with_reductions(schedule, tied)
    homes = schedule.homes
    ways = tuple((Transfer(),) * lcm(len(a), len(b)) for a, b in pairwise(homes))
    return Plan(
        model="test",
        fingerprint=described.fingerprint,
        cluster="test",
        device_kinds=("cpu-worker",) * ranks,
        micro_batch=micro_batch,
        micro_batches=schedule.micro_batches,
        optimizer=optimizer,
        stages=tuple(
            PlanStage(
                layers=layers,
                devices=homes[s],
                forward=1,
                backward=1,
                in_flight=schedule.micro_batches,
                memory=MemoryParts(),
                recompute=tuple(name for name in layers if name in set(recompute)),
            )
            for s, layers in enumerate(spans)
        ),
        schedule=schedule,
        ranks=tuple(range(ranks)),
        step_time=1,
        bound=1,
        pipeline=Pipeline(
            stages=tuple(Stage(1, 1) for _ in spans),
            placement=homes,
            transfers=ways,
            returns=ways,
            overlap=Overlap.COPY,
            runtime=(0,) * ranks,
            limits=(UNLIMITED,) * ranks,
            tied=tied,
        ),
    )


def in_teams(
    plan: Plan,
    module: torch.nn.Module,
    shards: Mapping[str, ShardAxis] | None,
    team: int | Sequence[int] = 2,
    sequence: Sequence[str] = (),
    vocabulary: bool = False,
) -> Plan:
    """The plan with teams of devices that share out the parameters which these patterns match.

    ``team``: their size, or that of each stage. ``sequence`` names layers whose output they split along tokens.
    ``vocabulary``: the loss gets logits split along their classes.
    """
    planned = with_teams(plan, team)
    found = find_shards(module, shards, TensorParallel(planned.team)) if shards else {}
    alone = [name for stage in planned.stages if stage.team == 1 for name in stage.layers]
    axes = tuple((n, shard.along) for n, shard in found.items() if not any(n.startswith(f"{own}.") for own in alone))
    last = planned.stages[-1].layers[-1] if vocabulary else None
    return replace(planned, shards=axes, sequence=tuple(sequence), vocabulary=last)


def on_tokens(plan: Plan, module: torch.nn.Module, by: str) -> Plan:
    """The plan with all whole matrices of linear maps multiplied with parts of the tokens, where these are split.

    ``by``: how the first attention of each layer runs on them, ``'keys'`` or ``'heads'``.
    """
    layers = [name for stage in plan.stages for name in stage.layers]
    split = [name for before, name in pairwise(["", *layers]) if {before, name} & {*plan.sequence}]
    words = {name for name, part in module.named_modules() if isinstance(part, torch.nn.Embedding)}
    products = tuple(
        name
        for name, parameter in module.named_parameters()
        if parameter.dim() == 2 and name not in dict(plan.shards) and name.rpartition(".")[0] not in words
        and any(name.startswith(f"{layer}.") for layer in split)
    )  # fmt: skip
    return replace(plan, context=Context(products, tuple((name, 0, by) for name in split)))


def with_teams(plan: Plan, team: int | Sequence[int]) -> Plan:
    """The plan whose stages have teams of so many devices, all alike or each its own."""
    teams = [team] * len(plan.stages) if isinstance(team, int) else team
    return replace(plan, stages=tuple(replace(each, team=own) for each, own in zip(plan.stages, teams, strict=True)))


def with_buckets(plan: Plan, layers: int, gathered: int = 0) -> Plan:
    """The plan with buckets of so many layers (0: none) on every replicated stage, not the best ones.

    ``layers`` are those whose gradients are summed together, ``gathered`` those whose parameters are gathered together.
    """

    def of(stage: PlanStage, size: int) -> tuple[Bucket, ...]:
        count = len(stage.layers)
        return tuple(Bucket(min(size, count - i), 0, 1) for i in range(0, count, size)) if size else ()

    def changed(number: int, priced: Stage, stage: PlanStage) -> Stage:
        if stage.replicas == 1:
            return priced
        buckets, gathers = of(stage, layers), of(stage, gathered)
        if gathers and any(number in group for group in plan.pipeline.tied):
            gathers += (Bucket(0, 0, 1),)
        reduce = exposed(buckets) if buckets else priced.reduce
        return replace(priced, buckets=buckets, reduce=reduce, gather_buckets=gathers)

    stages = tuple(map(changed, range(len(plan.stages)), plan.pipeline.stages, plan.stages))
    return replace(plan, pipeline=replace(plan.pipeline, stages=stages))


def with_priority(plan: Plan, chunks: int, lost: float = 0.0) -> Plan:
    """The plan with all layers of replicated stages summed front first, in so many chunks each; its times are made up.

    One half of each layer's chunks leaves back layers first, the other behind them front layers first. ``lost``: the
    share of each layer's gradients that may be lost.
    """

    def of(stage: PlanStage) -> Priority:
        if stage.replicas == 1:
            return Priority(0)
        half = chunks // 2
        early = [Send(name, chunks - half, 0, 0, 0) for name in reversed(stage.layers)]
        late = [Send(name, half, 0, 0, 0) for name in stage.layers if half]
        return Priority(1, (*early, *late), tuple((name, lost) for name in stage.layers if lost))

    own = tuple(map(of, plan.stages))
    stages = tuple(replace(stage, buckets=(), reduce=0) for stage in plan.pipeline.stages)
    return replace(plan, priority=own, period=plan.step_time, pipeline=replace(plan.pipeline, stages=stages))
