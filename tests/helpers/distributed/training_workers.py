"""Workers for the tests of training: a pipeline, and the unsplit model trained by plain torch."""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from math import isfinite
from threading import Event
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

from helpers.distributed.everywhere import greatest
from helpers.distributed.exactness import worst_error
from helpers.distributed.mesh_workers import random_strategies, with_strategies
from helpers.distributed.models import blank_model, tiny_decoder, tiny_shared, tiny_thrice, tiny_tied
from helpers.distributed.training_models import (
    dropped,
    dropped_apart,
    forking,
    gated,
    idling,
    padded,
    skipping,
    steep,
    steep_apart,
    uneven,
)
from helpers.plans import in_teams, on_tokens, plan_for, with_buckets, with_priority
from helpers.quick import thinned
from helpers.runnable_schedules import halved
from pipeplan.core.grouped_axis import ShardAxis
from pipeplan.core.plan import Plan
from pipeplan.frontend.batch import Batch
from pipeplan.frontend.capture import capture_layers
from pipeplan.frontend.workload import Workload
from pipeplan.schedules import FAMILIES, PLACED
from pipeplan_executor.optim.flat import Flat
from pipeplan_executor.stages import messages
from pipeplan_executor.stages.fully_sharded import local
from pipeplan_executor.stages.seeds import seeded
from pipeplan_executor.stages.source import draw
from pipeplan_executor.stages.stage import StageWork
from pipeplan_executor.train.pipeline import Pipeline
from pipeplan_executor.train.reference import materialised
from pipeplan_executor.zoo.decoder import SHARDS

STEPS = 4
SEED = 5


@dataclass(frozen=True)
class Case:
    """Training setup: replicas of every stage, and the options of a `Pipeline`."""

    build: Callable[[], Workload]
    replicas: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    zero: int = 0
    recompute: bool = False
    split: bool = False
    optimizer: str = "adam"
    accumulated: tuple[int, ...] = ()
    """Steps that do not update, with half the weight."""
    micro_batches: int = 4
    schedule: str = "1f1b-sno"
    bucket: int = 0
    """Number of layers in each bucket of gradients; 0 for none."""
    front: int = 0
    """Chunks of each layer's gradients, which are summed front layers first; 0 for no such order."""
    gathered: int = 0
    """Number of layers whose parameters are gathered together under ZeRO-1; 0 for all."""
    steps: int = STEPS
    team_cuts: Mapping[str, ShardAxis] | None = None
    """Patterns of the parameters that teams share out; None for a plan without teams."""
    teams: int | tuple[int, ...] = 2
    """Devices of a team, or of that of each stage."""
    sequence: tuple[str, ...] = ()
    """Layers whose output teams split along tokens."""
    context: str = ""
    """How attention runs on these tokens, beside all whole matrices; empty if it does not."""
    mesh: tuple[int, ...] = ()
    """Processes along each axis of the teams' meshes, on which layers run by random words; none without."""
    vocabulary: bool = False
    """Whether teams split the last layer's output along its classes."""
    first: int = 2
    """Number of layers of the first stage, if there are several; those between it and the last one have one layer."""
    cuts: tuple[int, ...] = ()
    """All boundaries, where they are others."""
    chunks: int | None = None
    """Stages of each device, under a family that places stages itself; None for the family's own number."""


@dataclass(frozen=True)
class Seen:
    """Log of a pipeline or of plain training: losses, norms before clipping, loss scales, learning rates; then a loss
    in evaluation.
    """

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    evaluated: list[float] = field(default_factory=list)


def decayed(named: Sequence[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """AdamW that leaves norms, biases and embeddings without weight decay, by name and by shape."""
    parts: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in named:
        parts[parameter.dim() > 1 and "embedding" not in name].append(parameter)
    groups = [{"params": parts[True], "weight_decay": 0.3}, {"params": parts[False], "weight_decay": 0.0, "lr": 0.02}]
    return torch.optim.AdamW(groups, lr=0.01)


def sgd(named: Sequence[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum."""
    return torch.optim.SGD(named, lr=0.05, momentum=0.9, nesterov=True)


def falling(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """Schedule with a learning rate that falls with every update."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 1 / (1 + update))


USERS = {"optimizer": decayed, "scheduler": falling, "clip": 0.05}


ON_THREE = (
    "own optimiser, replicas",
    "own optimiser, ZeRO-1",
    "tied, replicas, ZeRO-1",
    "dropout, replicas",
    "padding",
    "ZeRO-2, uneven",
    "ZeRO-3",
)
"""Cases for three ranks, besides two."""


def cases(world: int) -> dict[str, Case]:
    """Cases for this number of ranks."""
    line, halves, alike = (1,) * world, (world - 1, 1), (world,)
    every = {
        "own optimiser": Case(tiny_decoder, line, USERS),
        "own optimiser, replicas": Case(tiny_decoder, halves, USERS, accumulated=(1,)),
        "own optimiser, ZeRO-1": Case(
            tiny_decoder, alike, USERS, zero=1, accumulated=(0, 2, 5), bucket=2, gathered=3, steps=10
        ),
        "clipped, not scheduled": Case(tiny_decoder, halves, {"optimizer": sgd, "clip": 0.01}, zero=1),
        "tied": Case(tiny_tied, line, USERS),
        "tied, replicas, ZeRO-1": Case(
            tiny_tied, (1, world - 1), USERS, zero=1, accumulated=(1,), bucket=3, gathered=2, steps=10
        ),
        "planned, scheduled": Case(
            tiny_tied, halves[::-1], {"scheduler": falling, "learning_rate": 0.05}, optimizer="momentum"
        ),
        "dropout": Case(dropped, line, {"optimizer": sgd}),
        "dropout, recomputed": Case(dropped, line, {"optimizer": sgd, "clip": 0.1}, recompute=True),
        "dropout, split": Case(dropped, line, {"optimizer": sgd}, split=True),
        "dropout, replicas": Case(dropped, halves, {"optimizer": sgd}, zero=1, recompute=True, accumulated=(0,)),
        "dropout, alike": Case(dropped, alike, {"optimizer": sgd}),
        "padding": Case(padded, line, {"optimizer": sgd}),
        "padding, replicas": Case(padded, halves, {"optimizer": sgd, "clip": 0.1}),
        "padding, last stage replicated": Case(padded, halves[::-1], {"optimizer": sgd}, zero=1),
        "ZeRO-2": Case(dropped, alike, {"optimizer": sgd, "clip": 0.1}, zero=2, recompute=True, accumulated=(0,)),
        "ZeRO-2, uneven": Case(uneven, alike, USERS, zero=2, micro_batches=6),
        "ZeRO-3": Case(tiny_tied, alike, USERS, zero=3, recompute=True, accumulated=(0, 2), micro_batches=6),
        "ZeRO-3, several in flight": Case(uneven, alike, {"optimizer": sgd}, zero=3, schedule="gpipe"),
        "ZeRO-3, padding": Case(padded, alike, {"optimizer": sgd, "clip": 0.1}, zero=3),
    }
    chosen = thinned(every if world == 2 else {name: every[name] for name in ON_THREE}, 3)
    return chosen | {"clipped, whole copies": Case(tiny_decoder, alike, {"optimizer": sgd, "clip": 0.01}, steps=3)}


LOW = thinned(
    {
        "bf16": Case(tiny_decoder, (1, 1), {"optimizer": sgd, "clip": 0.5, "precision": "bf16"}),
        "bf16 dropout": Case(dropped, (1, 1), {"optimizer": decayed, "precision": "bf16"}, recompute=True),
        "bf16, split": Case(tiny_decoder, (1, 1), {"optimizer": sgd, "precision": "bf16"}, split=True),
        "bf16, graph": Case(forking, (1, 1), {"optimizer": sgd, "precision": "bf16"}),
        "bf16, replicas": Case(tiny_tied, (2,), {"optimizer": sgd, "precision": "bf16"}, zero=1),
        "fp16": Case(steep, (1, 1), {"optimizer": sgd, "scheduler": falling, "precision": "fp16"}, accumulated=(2,)),
        "fp16, clipped": Case(
            steep, (1, 1), {"optimizer": sgd, "scheduler": falling, "clip": 1.0, "precision": "fp16"}
        ),
        "fp16, ZeRO-1": Case(steep, (2,), {"optimizer": sgd, "clip": 1.0, "precision": "fp16"}, zero=1),
        "bf16, ZeRO-2": Case(dropped, (2,), {"optimizer": decayed, "precision": "bf16"}, zero=2, recompute=True),
        "fp16, ZeRO-3": Case(steep, (2,), {"optimizer": sgd, "clip": 1.0, "precision": "fp16"}, zero=3),
    }
)
"""Cases in mixed precision, on two ranks."""


BODY = ("embedding", "block0", "block1", "block2")
"""Layers of the decoder that pass tensors of tokens."""
ODD = {"embedding.*": 1, "block0.widen.weight": 1, "block1.narrow.*": 0, "block2.attention_out.bias": 0, "*norm*": 0}
TEAMS = {
    "tensor-parallel, ZeRO-1, recomputed": Case(tiny_shared, (2,), USERS, zero=1, recompute=True, accumulated=(1,)),
    "tensor-parallel, dropout": Case(dropped_apart, (1, 1), {"optimizer": sgd, "clip": 0.1}, split=True),
    "teams": Case(tiny_decoder, (1, 1), USERS, team_cuts=SHARDS, steps=3),
    "teams, tokens": Case(
        tiny_decoder, (1, 1), USERS, team_cuts=SHARDS, sequence=BODY, steps=4, accumulated=(1,), split=True
    ),
    "teams, tokens, tied, ZeRO-1": Case(
        tiny_tied, (2,), USERS, zero=1, team_cuts=SHARDS, sequence=BODY, steps=4, accumulated=(1,), bucket=1
    ),
    "teams, split loss, tied, ZeRO-1": Case(
        tiny_tied,
        (2,),
        USERS,
        zero=1,
        team_cuts={**SHARDS, "embedding.tokens.weight": 0},
        sequence=BODY,
        vocabulary=True,
        steps=4,
        accumulated=(1,),
        bucket=1,
    ),
    "teams, tokens, tied over stages": Case(
        tiny_tied, (1, 1), USERS, team_cuts=SHARDS, sequence=BODY, steps=3, micro_batches=3, recompute=True
    ),
    "unlike teams, one alone": Case(
        tiny_decoder, (1, 2), USERS, zero=1, team_cuts=SHARDS, teams=(2, 1), steps=4, accumulated=(1,), split=True
    ),
    "unlike teams, tokens, recomputed": Case(
        tiny_decoder, (1, 1, 1), USERS, team_cuts=SHARDS, teams=(1, 2, 1), sequence=BODY, steps=3, recompute=True
    ),
    "unlike teams, tokens, ZeRO-1": Case(
        tiny_decoder, (2, 1), USERS, zero=1, team_cuts=SHARDS, teams=(1, 2), sequence=BODY, steps=4, bucket=1
    ),
    "unlike teams, tokens, dropout": Case(
        dropped_apart,
        (1, 1, 1),
        {"optimizer": sgd, "clip": 0.1},
        team_cuts=dropped_apart().shards,
        teams=(2, 1, 1),
        sequence=("embedding", "first", "noisy", "drop", "second"),
        steps=3,
    ),
    "teams, tokens, dropout, idle": Case(
        dropped_apart,
        (2,),
        {"optimizer": sgd, "clip": 0.1},
        team_cuts=dropped_apart().shards,
        sequence=("embedding", "first", "noisy", "drop", "second"),
        steps=3,
        micro_batches=1,
        bucket=2,
    ),
    "teams, tokens, gated": Case(
        gated, (1, 1), USERS, team_cuts=gated().shards, sequence=("embedding", "first"), steps=3, split=True
    ),
    "teams, tokens, gated, whole first": Case(
        gated, (2,), USERS, team_cuts=gated().shards, sequence=("embedding", "first"), steps=3, accumulated=(0,)
    ),
    "teams, tokens, gated, partial first": Case(
        gated, (2,), USERS, team_cuts=gated().shards, sequence=("second", "third"), steps=3, accumulated=(0,)
    ),
    "teams, odd cuts, replicas": Case(tiny_decoder, (2,), {"optimizer": sgd}, team_cuts=ODD, steps=3),
    "teams, captured": Case(forking, (1, 1), {"optimizer": sgd}, team_cuts={"words.*": 1, "first.*": 0}, steps=3),
}
"""Cases with two processes per rank, on four processes."""
TEAMS_SHARDED = {
    "teams, ZeRO-2": Case(
        tiny_tied, (2,), USERS, zero=2, team_cuts=SHARDS, sequence=BODY, steps=4, accumulated=(1,), recompute=True
    ),
    "teams, ZeRO-3, split loss": Case(
        tiny_tied,
        (2,),
        USERS,
        zero=3,
        team_cuts={**SHARDS, "embedding.tokens.weight": 0},
        sequence=BODY,
        vocabulary=True,
        steps=4,
        accumulated=(0, 1),
        recompute=True,
        schedule="gpipe",
    ),
    "teams, ZeRO-3, whole tokens, odd cuts": Case(tiny_decoder, (2,), USERS, zero=3, team_cuts=ODD, steps=3),
    "teams, ZeRO-2, whole tokens, captured": Case(
        forking, (2,), {"optimizer": sgd}, zero=2, team_cuts={"words.*": 1, "first.*": 0}, steps=3
    ),
    "teams, ZeRO-3, dropout": Case(
        dropped_apart,
        (2,),
        {"optimizer": sgd, "clip": 0.1},
        zero=3,
        team_cuts=dropped_apart().shards,
        sequence=("embedding", "first", "noisy", "drop", "second"),
        steps=3,
        recompute=True,
    ),
    "teams, ZeRO-3, gated, whole first": Case(
        gated, (2,), USERS, zero=3, team_cuts=gated().shards, sequence=("embedding", "first"), steps=3, accumulated=(0,)
    ),
    "teams, ZeRO-2, gated, partial first": Case(
        gated, (2,), USERS, zero=2, team_cuts=gated().shards, sequence=("second", "third"), steps=3, accumulated=(0,)
    ),
    "tensor-parallel, ZeRO-3, recomputed": Case(tiny_shared, (2,), USERS, zero=3, recompute=True, accumulated=(1,)),
    "unlike teams, tokens, ZeRO-3": Case(
        tiny_decoder, (2, 1), USERS, zero=3, team_cuts=SHARDS, teams=(1, 2), sequence=BODY, steps=4, recompute=True
    ),
}
"""Such cases at levels 2 and 3 of ZeRO."""
NOISY = ("embedding", "first", "noisy", "drop", "second")
TEAMS_CONTEXT = {
    "teams, context, split backward": Case(
        tiny_decoder, (1, 1), USERS, team_cuts={}, sequence=BODY, context="keys", steps=4, accumulated=(1,), split=True
    ),
    "teams, context, by heads, tied, ZeRO-1": Case(
        tiny_tied,
        (2,),
        USERS,
        zero=1,
        team_cuts={},
        sequence=BODY,
        context="heads",
        steps=4,
        accumulated=(1,),
        bucket=1,
    ),
    "teams, context, ZeRO-3, recomputed": Case(
        tiny_decoder, (2,), USERS, zero=3, team_cuts={}, sequence=BODY, context="keys", steps=3, recompute=True
    ),
    "teams, context, dropout": Case(
        dropped_apart, (1, 1), {"optimizer": sgd, "clip": 0.1}, team_cuts={}, sequence=NOISY, context="keys", steps=3
    ),
    "teams, context, beside columns and rows": Case(
        tiny_decoder,
        (2,),
        USERS,
        team_cuts={name: axis for name, axis in SHARDS.items() if "widen" in name or "narrow" in name},
        sequence=BODY,
        context="heads",
        steps=3,
    ),
    "teams, context, by ring, split backward": Case(
        tiny_decoder, (1, 1), USERS, team_cuts={}, sequence=BODY, context="ring", steps=3, split=True
    ),
    "teams, context, by ring, ZeRO-3, recomputed": Case(
        tiny_decoder, (2,), USERS, zero=3, team_cuts={}, sequence=BODY, context="ring", steps=3, recompute=True
    ),
    "unlike teams, context": Case(
        tiny_decoder, (1, 2), USERS, team_cuts={}, teams=(2, 1), sequence=BODY, context="keys", steps=3
    ),
}
"""Such cases with products and attention on parts of the tokens."""
MESHES = {
    "meshes, ZeRO-1": Case(tiny_tied, (2,), USERS, zero=1, mesh=(2,), steps=4, accumulated=(1,), bucket=1),
    "meshes, ZeRO-2, recomputed": Case(tiny_tied, (2,), USERS, zero=2, mesh=(2,), accumulated=(1,), recompute=True),
    "meshes, ZeRO-3": Case(tiny_decoder, (2,), USERS, zero=3, mesh=(2,), accumulated=(0, 1), schedule="gpipe"),
    "meshes, ZeRO-3, shared norm": Case(gated, (2,), USERS, zero=3, mesh=(2,), steps=3, recompute=True),
    "meshes, ZeRO-3, dropout": Case(
        dropped_apart, (2,), {"optimizer": sgd, "clip": 0.1}, zero=3, mesh=(2,), steps=3, recompute=True
    ),
    "meshes of two axes": Case(tiny_decoder, (1,), USERS, mesh=(2, 2), steps=3, accumulated=(1,)),
}
"""Cases on meshes, on four processes."""
TEAMS_LOW = {
    "teams, tokens, bf16": Case(
        gated,
        (1, 1),
        {"optimizer": sgd, "precision": "bf16"},
        team_cuts=gated().shards,
        sequence=("embedding", "first", "second"),
        steps=3,
    ),
    "teams, split loss, bf16": Case(
        tiny_decoder,
        (1, 1),
        {"optimizer": sgd, "precision": "bf16"},
        team_cuts={**SHARDS, "head.weight": 0},
        vocabulary=True,
        steps=3,
        split=True,
    ),
    "teams, tokens, bf16, ZeRO-3": Case(
        gated,
        (2,),
        {"optimizer": sgd, "precision": "bf16"},
        zero=3,
        team_cuts=gated().shards,
        sequence=("embedding", "first", "second"),
        steps=3,
    ),
    "teams, context, bf16": Case(
        tiny_decoder,
        (1, 1),
        {"optimizer": sgd, "precision": "bf16"},
        team_cuts={},
        sequence=BODY,
        context="keys",
        steps=3,
    ),
    "teams, context, by ring, bf16": Case(
        tiny_decoder,
        (1, 1),
        {"optimizer": sgd, "precision": "bf16"},
        team_cuts={},
        sequence=BODY,
        context="ring",
        steps=3,
    ),
    "tensor-parallel, fp16, ZeRO-2": Case(
        steep_apart, (2,), {"optimizer": sgd, "scheduler": falling, "precision": "fp16"}, zero=2
    ),
    "tensor-parallel, bf16": Case(tiny_shared, (1, 1), {"optimizer": sgd, "precision": "bf16"}, split=True),
    "tensor-parallel, fp16": Case(steep_apart, (1, 1), {"optimizer": sgd, "scheduler": falling, "precision": "fp16"}),
    "meshes, fp16, clipped, ZeRO-1": Case(
        steep, (2,), {"optimizer": sgd, "clip": 1.0, "precision": "fp16"}, zero=1, mesh=(2,), recompute=True
    ),
    "meshes of two axes, fp16": Case(
        steep, (1,), {"optimizer": sgd, "scheduler": falling, "precision": "fp16"}, mesh=(2, 2), split=True
    ),
}


BUCKETED = {
    2: thinned(
        {
            "joined, clipped": Case(tiny_decoder, (2,), USERS, accumulated=(1,), bucket=2),
            "split": Case(tiny_decoder, (2,), USERS, split=True, bucket=1),
            "ZeRO-1, recomputed": Case(
                tiny_decoder, (2,), USERS, zero=1, recompute=True, accumulated=(0, 2), bucket=1, gathered=2
            ),
            "ZeRO-1, split": Case(dropped, (2,), {"optimizer": sgd}, zero=1, split=True, recompute=True, bucket=2),
            "unequal turns": Case(dropped, (2,), {"optimizer": sgd}, micro_batches=3, bucket=1),
            "one micro-batch": Case(tiny_decoder, (2,), {"optimizer": sgd}, zero=1, micro_batches=2, bucket=1),
            "one idle replica": Case(tiny_decoder, (2,), USERS, zero=1, micro_batches=1, bucket=2, gathered=1),
            "unused": Case(idling, (2,), {"optimizer": sgd}, bucket=1),
            "tied on one stage": Case(tiny_tied, (2,), USERS, bucket=1),
            "tied on one stage, split": Case(tiny_tied, (2,), {"optimizer": sgd}, split=True, bucket=1),
            "captured": Case(forking, (2,), {"optimizer": sgd}, bucket=1),
        }
    ),
    4: thinned(
        {
            "two stages": Case(tiny_decoder, (2, 2), USERS, bucket=1),
            "two stages, split, ZeRO-1": Case(tiny_decoder, (2, 2), USERS, zero=1, split=True, bucket=2),
            "two stages, unequal turns": Case(tiny_decoder, (2, 2), USERS, recompute=True, micro_batches=3, bucket=1),
            "tied over stages": Case(tiny_tied, (2, 2), USERS, bucket=1),
            "tied over stages, ZeRO-1, split": Case(tiny_tied, (1, 3), USERS, zero=1, split=True, bucket=2, gathered=1),
            "tensor-parallel": Case(tiny_shared, (2,), USERS, recompute=True, bucket=1),
            "tensor-parallel, split, ZeRO-1": Case(
                dropped_apart, (2,), USERS, zero=1, split=True, bucket=1, gathered=2
            ),
        }
    ),
}
"""Cases with buckets, by number of processes; the last ones of four have two processes per rank."""
BUCKETED_LOW = {
    "bf16, split": Case(tiny_tied, (2,), {"optimizer": sgd, "precision": "bf16"}, split=True, bucket=1),
    "fp16, ZeRO-1": Case(steep, (2,), {"optimizer": sgd, "clip": 1.0, "precision": "fp16"}, zero=1, bucket=1),
}
"""Cases with buckets in mixed precision, on two ranks."""


SHARDED_STAGES = {
    3: {
        "ZeRO-2, narrower": Case(dropped, (2, 1), {"optimizer": sgd, "clip": 0.1}, zero=2, accumulated=(0,)),
        "ZeRO-3, wider, recomputed": Case(uneven, (1, 2), USERS, zero=3, recompute=True, micro_batches=6),
        "ZeRO-3, tied on one stage": Case(tiny_thrice, (2, 1), USERS, zero=3, schedule="gpipe", first=4),
    },
    4: {
        "ZeRO-2": Case(uneven, (2, 2), USERS, zero=2, schedule="gpipe", recompute=True),
        "ZeRO-3": Case(padded, (2, 2), {"optimizer": sgd, "clip": 0.1}, zero=3, accumulated=(1,)),
        "ZeRO-3, dropout, one wide": Case(dropped, (3, 1), {"optimizer": sgd}, zero=3, micro_batches=6),
        "ZeRO-3, without parameters": Case(padded, (1, 2, 1), USERS, zero=3, schedule="1f1b-so"),
    },
}
"""Cases at levels 2 and 3 of ZeRO with several stages, by number of ranks."""
SHARDED_STAGES_LOW = {
    "bf16, ZeRO-2": Case(dropped, (1, 3), {"optimizer": decayed, "precision": "bf16"}, zero=2, micro_batches=3),
    "fp16, ZeRO-3": Case(steep, (2, 2), {"optimizer": sgd, "clip": 1.0, "precision": "fp16"}, zero=3),
}
"""Such cases in mixed precision, on four ranks."""


def sharded_stages() -> "Found":
    """Results of all cases of several sharded stages of this number of ranks."""
    found = {name: compare(case, torch.float64) for name, case in SHARDED_STAGES[dist.get_world_size()].items()}
    low = SHARDED_STAGES_LOW if dist.get_world_size() == 4 else {}
    return {**found, **{name: compare(case, torch.float32) for name, case in low.items()}}


def sharded_outputs() -> tuple[float, float, list[float]]:
    """Worst error of verification, difference of outputs to level 0, and share of its stage's numbers on each rank.

    Two stages of one and two replicas, at level 3.
    """
    case = Case(dropped, (1, 2), recompute=True, micro_batches=8)
    error = worst_error(replace(planned(case), zero=3), case.build, SEED)
    outputs, numbers = [], []
    for zero in (3, 0):
        pipeline = Pipeline(replace(planned(case), zero=zero), case.build, seed=SEED, dtype=torch.float64)
        outputs.append(pipeline.predict(draw(pipeline.workload, pipeline.plan.batch, SEED, torch.float64)[0]))
        numbers.append(sum(local(parameter).numel() for parameter in pipeline.parameters()))
    everyone: list[float] = [0.0] * dist.get_world_size()
    dist.all_gather_object(everyone, numbers[0] / numbers[1])
    ours, theirs = outputs
    return error, greatest(0.0 if ours is None else float((ours - theirs).abs().max())), everyone


def bucketed() -> "Found":
    """Results of all cases with buckets of this number of processes."""
    found = {name: compare(case, torch.float64) for name, case in BUCKETED[dist.get_world_size()].items()}
    low = BUCKETED_LOW if dist.get_world_size() == 2 else {}
    return {**found, **{name: compare(case, torch.float32) for name, case in low.items()}}


def events_of_a_step() -> list[list[str]]:
    """What each rank did in a step with buckets: begins and ends of actions, and the first numbers that left.

    One stage of two replicas, which run two and one micro-batches.
    """
    found: list[str] = []
    leave, reduce, backward = Flat.leave, Flat.reduce, StageWork.backward

    def leaving(part: Flat, start: int) -> None:
        found.append(f"leave {part.edges.index(start)}")
        leave(part, start)

    def reducing(part: Flat) -> None:
        found.append("reduce")
        reduce(part)

    def going_back(stage: StageWork, *arguments: Any) -> Any:
        found.append("backward")
        made = backward(stage, *arguments)
        found.append("end")
        return made

    pipeline = Pipeline(with_buckets(planned(Case(steep, (2,), micro_batches=3)), 1), steep)
    with (
        patch.object(Flat, "leave", leaving),
        patch.object(Flat, "reduce", reducing),
        patch.object(StageWork, "backward", going_back),
    ):
        pipeline.step(*draw(pipeline.workload, pipeline.plan.batch, SEED))
    everyone: list[list[str]] = [[]] * dist.get_world_size()
    dist.all_gather_object(everyone, found)
    return everyone


def read_alone() -> tuple[list[list[int]], float]:
    """First layers of the parameters that each rank awaited behind a step, and the worst error of those read alone.

    No gather begins until the first step has ended on both ranks. Only rank 0 reads parameters behind the last one, and
    compares them with those of replicas that share out nothing.
    """
    case = Case(tiny_decoder, (2,), {"optimizer": sgd}, zero=1, bucket=2, gathered=3)
    plan = replace(planned(case), zero=1)
    may_begin, gather = Event(), messages.gather_from_owners

    def waiting(*arguments: Any) -> None:
        may_begin.wait()
        gather(*arguments)

    states, awaited = [], []
    for level in (1, 0):
        pipeline = Pipeline(replace(plan, zero=level), case.build, seed=SEED, dtype=torch.float64, **case.options)
        with patch.object(messages, "gather_from_owners", waiting):
            for number in range(2):
                pipeline.step(*draw(pipeline.workload, plan.batch, SEED, torch.float64, number))
                awaited = awaited or [*pipeline.modules[0].arriving]
                dist.barrier()
                may_begin.set()
        states.append(pipeline.state_dict() if dist.get_rank() == 0 else {})
    everyone: list[list[int]] = [[]] * dist.get_world_size()
    dist.all_gather_object(everyone, awaited)
    alone, alike = states
    return everyone, max((float((alone[name] - value).abs().max()) for name, value in alike.items()), default=0.0)


Found = dict[str, tuple[Seen, Seen, float]]
"""For each case the records of the pipeline and of plain training, and the difference of their weights."""


def everything() -> tuple[Found, dict[str, float]]:
    """Results of all cases of this number of ranks, and of verification."""
    found = {name: compare(case, torch.float64) for name, case in cases(dist.get_world_size()).items()}
    if dist.get_world_size() > 2:
        return found, {}
    return {**found, **{name: compare(case, torch.float32) for name, case in LOW.items()}}, verified()


def tensor_parallel_runs(*names: str) -> Found:
    """Cases with two processes per rank, and plain training."""
    every = {**TEAMS, **TEAMS_SHARDED, **TEAMS_CONTEXT, **MESHES, **TEAMS_LOW}
    return {name: compare(every[name], torch.float32 if name in TEAMS_LOW else torch.float64) for name in names}


def verified() -> dict[str, float]:
    """Worst error of verification for models with dropout, as chain and as graph, or with weighted losses."""
    found = {}
    alike = (dist.get_world_size(),)
    for build, zero in ((dropped, 0), (skipping, 0), (padded, 0), (uneven, 3)):
        module, names, held = blank_model(build)
        schedule = FAMILIES["1f1b-sno"].write(alike if zero else (1,) * dist.get_world_size(), 4)
        cuts = (0, *range(2, 1 + schedule.stages), len(names))
        plan = plan_for(module, names, cuts, schedule, recompute=names[1::2], held=held)
        found[build.__name__] = worst_error(replace(plan, zero=zero), build, SEED)
    return found


def compare(case: Case, dtype: torch.dtype) -> tuple[Seen, Seen, float]:
    """Train the pipeline and the plain model, and return both records and the difference of weights."""
    workload, plan = case.build(), planned(case)
    group_size = dist.get_world_size() // len(plan.ranks)
    options = case.options if plan.team > 1 else {**case.options, "tensor_parallel": group_size}
    pipeline = Pipeline(replace(plan, zero=case.zero), case.build, seed=SEED, dtype=dtype, **options)
    whole = materialised(pipeline.fitted, seed=SEED, dtype=dtype)
    plain = Plain(whole, workload, case.options, layers_in(whole, draw(workload, 2, SEED, dtype)[0]))
    ours, theirs = Seen(), Seen()
    for number in range(case.steps):
        inputs, targets = draw(workload, plan.batch, SEED, dtype, number)
        update = number not in case.accumulated
        weight = 1.0 if update else 0.5
        ours.losses.append(pipeline.step(inputs, targets, update=update, weight=weight))
        theirs.losses.append(plain.step(number, inputs.split(2), targets.split(2), theirs, update, weight))
        if update and pipeline.updates.norm is not None:
            ours.norms.append(float(pipeline.updates.norm))
        if pipeline.updates.scale is not None:
            ours.scales.append(pipeline.updates.scale.scaler.get_scale())
        ours.rates.append(_rate(pipeline))
    ours.evaluated.append(pipeline.evaluate(inputs, targets))
    theirs.evaluated.append(plain.evaluate(inputs, targets))
    return ours, theirs, apart(pipeline, whole)


def apart(pipeline: Pipeline, whole: nn.Module) -> float:
    """The largest difference of a weight of any rank to the unsplit model's."""
    expected = dict(whole.named_parameters(remove_duplicate=False))
    wanted = {name: pipeline.shards[name].of(p) if name in pipeline.shards else p for name, p in expected.items()}
    pairs = [(local(p), wanted[name]) for name, p in pipeline.named_parameters()]
    found = [float((own - other).detach().abs().max()) for own, other in pairs if own.numel()]
    return greatest(max(found, default=0.0))


def layers_in(whole: nn.Module, inputs: Batch) -> Sequence[nn.Module]:
    """Layers of a model, in order."""
    return list(whole) if isinstance(whole, nn.Sequential) else capture_layers(whole, inputs).layers


def planned(case: Case) -> Plan:
    module, names, held = blank_model(case.build)
    if case.schedule in PLACED:
        placed = PLACED[case.schedule]
        schedule = placed.write(len(case.replicas), case.micro_batches, case.chunks, case.replicas[0])
    else:
        schedule = FAMILIES[case.schedule].write(case.replicas, case.micro_batches)
    plan = plan_for(
        module,
        names,
        case.cuts or (0, *range(case.first, case.first + schedule.stages - 1), len(names)),
        halved(schedule) if case.split else schedule,
        optimizer=case.optimizer,
        recompute=names if case.recompute else (),
        held=held,
    )
    if case.team_cuts is not None:
        plan = in_teams(plan, module, case.team_cuts, case.teams, case.sequence, case.vocabulary)
        plan = on_tokens(plan, module, case.context) if case.context else plan
    if case.mesh:
        words, *_ = random_strategies(case.build, case.mesh, random.Random(SEED), samples=plan.micro_batch)
        plan = with_strategies(plan, words, case.mesh)
    if case.front:
        return with_priority(plan, case.front)
    return with_buckets(plan, case.bucket, case.gathered)


def _rate(pipeline: Pipeline) -> float:
    """The one learning rate of the first group of all ranks' optimisers."""
    optimizers = (stage.optimizer for stage in pipeline.updates.optimizers.values())
    own = {optimizer.param_groups[0]["lr"] for optimizer in optimizers if optimizer is not None}
    everyone: list[set[float]] = [set()] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    (rate,) = set().union(*everyone)
    return rate


class Plain:
    """The unsplit model in a plain training loop with torch's own tools."""

    def __init__(
        self, whole: nn.Module, workload: Workload, options: dict[str, Any], layers: Sequence[nn.Module]
    ) -> None:
        self.whole, self.workload, self.layers = whole, workload, layers
        build = options.get("optimizer", lambda named: torch.optim.SGD(named, lr=0.05, momentum=0.9))
        self.optimizer = build(list(whole.named_parameters()))
        self.scheduler = options["scheduler"](self.optimizer) if "scheduler" in options else None
        self.clip = options.get("clip")
        self.precision = options.get("precision")
        self.scaler = torch.amp.GradScaler("cpu", enabled=self.precision == "fp16")

    def step(
        self,
        number: int,
        inputs: Sequence[torch.Tensor],
        targets: Sequence[torch.Tensor],
        seen: Seen,
        update: bool,
        weight: float,
    ) -> float:
        """Train on one batch, and return its loss."""
        weigh = self.workload.weight or len
        total, mean = sum(map(weigh, targets)), 0.0
        with seeded(self.layers, SEED) as moment:
            for m, (some, wanted) in enumerate(zip(inputs, targets, strict=True)):
                moment.step, moment.micro_batch = number, m
                if not weigh(wanted):
                    continue
                with self._cast():
                    loss = self.workload.loss(self.whole(some), wanted)
                part = loss * (weigh(wanted) / total)
                self.scaler.scale(part * weight).backward()
                mean += float(part.detach())
        if update:
            self._update(seen)
        if self.scaler.is_enabled():
            seen.scales.append(self.scaler.get_scale())
        seen.rates.append(self.optimizer.param_groups[0]["lr"])
        return mean

    def evaluate(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        """The loss of a batch at once, without dropout."""
        self.whole.eval()
        with torch.no_grad(), self._cast():
            return float(self.workload.loss(self.whole(inputs), targets))

    def _update(self, seen: Seen) -> None:
        before = self.scaler.get_scale()
        self.scaler.unscale_(self.optimizer)
        if self.clip is not None:
            norm = float(nn.utils.clip_grad_norm_(self.whole.parameters(), self.clip))
            seen.norms.extend([norm] if isfinite(norm) else [])
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.scheduler is not None and self.scaler.get_scale() >= before:
            self.scheduler.step()
        self.optimizer.zero_grad()

    def _cast(self) -> Any:
        formats = {"bf16": torch.bfloat16, "fp16": torch.float16}
        return torch.autocast("cpu", formats[self.precision]) if self.precision else nullcontext()
