"""Workers for the tests of ranks with several stages: training compared with the unsplit model's, by plain torch."""

import random
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.distributed import cases, workers
from helpers.distributed.models import blank_model, random_cuts, tiny_decoder, tiny_thrice, tiny_tied
from helpers.distributed.training_models import dropped, gated
from helpers.distributed.training_workers import BODY, USERS, Case, Found, compare, planned, sgd
from helpers.quick import thinned
from pipeplan.core.validate.deadlock import deadlocks
from pipeplan.frontend.workload import Workload
from pipeplan.schedules import PLACED
from pipeplan_executor.optim.flat import Flat
from pipeplan_executor.stages.source import draw
from pipeplan_executor.stages.stage import StageWork
from pipeplan_executor.train.pipeline import Pipeline
from pipeplan_executor.zoo.decoder import SHARDS


def tied_thrice() -> Workload:
    """Five linear layers, of which the first, the third and the last share a matrix."""
    layers = [nn.Linear(8, 8) for _ in range(5)]
    layers[2].weight = layers[4].weight = layers[0].weight

    def drawn(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randn(samples, 8, generator=generator), torch.randint(8, (samples,), generator=generator)

    return Workload(nn.Sequential(*layers), drawn, nn.functional.cross_entropy)


APART = (0, 1, 3, 4, 5)
"""Cuts of these layers with which a V of two devices has two of the three on its first device."""
GATED: dict[str, Any] = {"team_cuts": gated().shards, "cuts": (0, 3, 5), "steps": 3}
"""Of two stages whose layers share a norm, which teams run on tokens that they share out in one of them only."""
CHUNKED = {
    world: thinned(cases, 2)
    for world, cases in {
        2: {
            "copies of all stages": Case(tiny_decoder, (2,), USERS, schedule="interleaved", bucket=1, accumulated=(1,)),
            "copies of three stages, unequal turns": Case(
                tiny_tied, (2,), USERS, zero=1, schedule="looped-bfs", chunks=3, micro_batches=3, bucket=2, gathered=1
            ),
            "one micro-batch each": Case(tiny_tied, (2,), USERS, schedule="interleaved", micro_batches=2, bucket=1),
            "tied over ranks": Case(tiny_tied, (1, 1), USERS, schedule="interleaved", micro_batches=5),
            "tied on a rank, zb-v": Case(tiny_tied, (1, 1), USERS, schedule="zb-v", accumulated=(1,), recompute=True),
            "tied on a rank, dualpipe-v": Case(tiny_tied, (1, 1), USERS, schedule="dualpipe-v", micro_batches=3),
            "tied on a rank and another one": Case(tied_thrice, (1, 1), USERS, schedule="v-half", cuts=APART),
            "tied on a rank, other ties over ranks": Case(
                tiny_thrice, (1, 1), USERS, schedule="v-min", cuts=(0, 2, 3, 4, 6)
            ),
            "tied, both ways": Case(tiny_tied, (1, 1), USERS, zero=1, schedule="chimera", bucket=1, micro_batches=5),
            "dropout": Case(dropped, (2,), {"optimizer": sgd}, zero=1, schedule="zb-v", bucket=1, first=1),
        },
        4: {
            "interleaved, unequal turns": Case(
                tiny_decoder, (2, 2), USERS, schedule="interleaved", micro_batches=7, bucket=1, accumulated=(1,)
            ),
            "three stages each": Case(
                tiny_tied, (2, 2), USERS, zero=1, schedule="interleaved", chunks=3, bucket=1, first=1, recompute=True
            ),
            "tied over ranks": Case(tiny_tied, (2, 2), USERS, zero=1, schedule="looped-bfs", bucket=1, micro_batches=5),
            "tied on ranks, ZeRO-1": Case(
                tiny_tied,
                (2, 2),
                USERS,
                zero=1,
                schedule="zb-v",
                bucket=1,
                gathered=1,
                micro_batches=5,
                accumulated=(0,),
            ),
            "tied on ranks, dualpipe-v": Case(
                tiny_tied, (2, 2), USERS, schedule="dualpipe-v", bucket=2, micro_batches=7
            ),
            "tied on ranks, sums at R": Case(tiny_tied, (2, 2), USERS, schedule="v-half", recompute=True),
            "tied on ranks and others": Case(
                tied_thrice, (2, 2), USERS, zero=1, schedule="v-min", bucket=1, cuts=APART
            ),
            "teams, tokens, tied on a rank": Case(
                tiny_tied, (1, 1), USERS, schedule="zb-v", team_cuts=SHARDS, sequence=BODY, steps=3, accumulated=(1,)
            ),
            "teams, a norm on ranks, whole first": Case(
                gated, (2,), USERS, schedule="interleaved", **GATED, sequence=("embedding", "first"), accumulated=(0,)
            ),
            "teams, a norm on ranks, partial first": Case(
                gated, (2,), USERS, zero=1, schedule="interleaved", **GATED, sequence=("second", "third"), bucket=1
            ),
            "meshes, tied on a rank": Case(tiny_tied, (1, 1), USERS, schedule="dualpipe-v", mesh=(2,), steps=3),
        },
    }.items()
}
"""Cases with several stages on each rank, by number of processes; the last ones of four have two for each rank."""


def chunked() -> Found:
    """Results of all cases of this number of ranks."""
    return {name: compare(case, torch.float64) for name, case in CHUNKED[dist.get_world_size()].items()}


def events_of_turns() -> list[list[str]]:
    """What each rank did in a step of two stages on both ranks, with buckets: its backwards, and what left when."""
    case = Case(tiny_decoder, (2,), schedule="interleaved", micro_batches=3, bucket=2)
    pipeline = Pipeline(planned(case), case.build)
    stage_of = {id(part): stage for stage, own in pipeline.updates.optimizers.items() for part in own.parts}
    found: list[str] = []
    leave, backward = Flat.leave, StageWork.backward

    def leaving(part: Flat, start: int) -> None:
        found.append(f"leave {stage_of[id(part)]} {part.edges.index(start)}")
        leave(part, start)

    def going_back(work: StageWork, *arguments: Any) -> Any:
        found.append(f"backward {work._number}")
        made = backward(work, *arguments)
        found.append("end")
        return made

    with patch.object(Flat, "leave", leaving), patch.object(StageWork, "backward", going_back):
        pipeline.step(*draw(pipeline.workload, pipeline.plan.batch, 0))
    everyone: list[list[str]] = [[]] * dist.get_world_size()
    dist.all_gather_object(everyone, found)
    return everyone


def random_chunked(count: int, seed: int) -> dict[str, tuple[float, float]]:
    """For each of so many random cases the worst error of loss and gradients of a step, and of training.

    Training is four steps, three of them with an update by AdamW; losses, norms and weights are compared. The single
    step has level 0 of ZeRO, since replicas have parts of sums at level 1, and is left out where layers drop.
    """
    generator, found = random.Random(seed), dict[str, tuple[float, float]]()
    for number in range(count):
        case = _random(generator, dist.get_world_size())
        single = cases.Case("", planned(case), case.build)
        once = 0.0 if case.build is dropped else workers.worst_error(single, passes=1)
        ours, theirs, apart = compare(case, torch.float64)
        pairs = zip([*ours.losses, *ours.norms], [*theirs.losses, *theirs.norms], strict=True)
        found[f"{number} {case}"] = once, max(apart, *(abs(a - b) / abs(b) for a, b in pairs))
    return found


def _random(generator: random.Random, world: int) -> Case:
    """Any placed family, copies, cuts and options of a model, where stages of a rank that share weights may do so."""
    builds = tiny_decoder, tiny_tied, tied_thrice, tiny_thrice, dropped
    while True:
        family, build = generator.choice(list(PLACED.values())), generator.choice(builds)
        copies = generator.choice([c for c in range(1, world + 1) if world % c == 0])
        devices, layers = world // copies, len(blank_model(build)[1])
        if family.even and devices % 2:
            continue
        chunks = family.chunks or generator.randint(1, 3)
        stages = len(family.placement(devices, chunks))
        if stages > layers:
            continue
        case = Case(
            build,
            (copies,) * devices,
            USERS,
            zero=generator.randint(0, 1),
            recompute=generator.random() < 0.3,
            split=not family.splits and generator.random() < 0.3,
            accumulated=(1,),
            micro_batches=generator.randint(copies, 2 * world + 2),
            schedule=family.name,
            bucket=generator.randint(0, 3),
            gathered=generator.randint(0, 2),
            steps=4,
            cuts=random_cuts(generator, layers, stages),
            chunks=chunks,
        )
        plan = planned(case)
        if not any(deadlocks(plan.schedule, plan.pipeline.tied)):
            return case
