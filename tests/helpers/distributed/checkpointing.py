"""Workers for the tests of checkpoints, importable by name in other processes."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.distributed as dist

from helpers.distributed.mesh_workers import random_strategies, with_strategies
from helpers.distributed.models import (
    blank_model,
    tiny_decoder,
    tiny_dropping,
    tiny_resnet,
    tiny_shared,
    tiny_t5,
    tiny_tied,
    tiny_unet,
)
from helpers.plans import in_teams, plan_for, with_buckets
from helpers.quick import QUICK, part
from pipeplan.core.errors import InputError
from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Schedule
from pipeplan.frontend.workload import Workload
from pipeplan.schedules import FAMILIES, PLACED
from pipeplan_executor.checkpoint import as_plain
from pipeplan_executor.stages.fully_sharded import local
from pipeplan_executor.stages.source import draw
from pipeplan_executor.train.pipeline import Pipeline

STEPS = 3
"""Number of steps ahead of a checkpoint, and after it."""
MODELS: dict[str, Callable[[], Workload]] = {
    "decoder": tiny_decoder,
    "tied": tiny_tied,
    "dropping": tiny_dropping,
    "resnet": tiny_resnet,
    "shared": tiny_shared,
    "unet": tiny_unet,
    "t5": tiny_t5,
}
RATE = 0.01


@dataclass(frozen=True)
class Layout:
    """Division of a model: replicas of every stage, or a placed family; processes per rank, in teams or not.

    Teams may have as many for each stage. ``mesh``: processes along each axis, if layers run by random words.
    """

    replicas: tuple[int, ...] = ()
    family: str = "1f1b-sno"
    zero: int = 0
    tensor_parallel: int | tuple[int, ...] = 1
    teams: bool = False
    mesh: tuple[int, ...] = ()

    def plan(self, build: Callable[[], Workload], optimizer: str) -> Plan:
        """Plan on all processes, for batches of 8 samples, or 12 on three ranks."""
        module, names, held = blank_model(build)
        size = self.tensor_parallel
        schedule = self._schedule(dist.get_world_size() // (size if isinstance(size, int) else 1))
        cuts = [round(i * len(names) / schedule.stages) for i in range(schedule.stages + 1)]
        plan = plan_for(module, names, cuts, schedule, 2, optimizer, held=held)
        if self.teams:
            tokens = names[:-1] if build is tiny_shared else ()
            plan = in_teams(plan, module, build().shards, size, tokens)
        if self.mesh:
            plan = with_strategies(plan, random_strategies(build, self.mesh, Random(0), samples=2)[0], self.mesh)
        return replace(with_buckets(plan, 2, 3) if self.zero == 1 else plan, zero=self.zero)

    def _schedule(self, world: int) -> Schedule:
        if self.family in PLACED:
            return PLACED[self.family].write(world, 4, 2)
        return FAMILIES[self.family].write(self.replicas, 6 if world == 3 else 4)


LAYOUTS = {
    2: part(
        (
            Layout((1, 1)),
            Layout((2,)),
            Layout((2,), zero=3),
            Layout(family="interleaved"),
            Layout((2,), zero=1),
            Layout((2,), zero=2),
        )
    )[: 2 if QUICK else None],
    3: (Layout((1, 1, 1)), Layout((2, 1), zero=1), Layout((3,), zero=1), Layout((3,), zero=3), Layout((1, 2))),
    4: part(
        (
            Layout((1, 1), tensor_parallel=2, teams=True),
            Layout((1, 1, 2), zero=1),
            Layout((2,), zero=1, tensor_parallel=2, teams=True),
            Layout((2,), zero=3, tensor_parallel=2, teams=True),
            Layout((1, 1), tensor_parallel=2),
            Layout((2,), zero=2, tensor_parallel=2),
            Layout((1, 1, 1), tensor_parallel=(1, 2, 1), teams=True),
            Layout((2,), zero=3, tensor_parallel=2, mesh=(2,)),
            Layout((1,), tensor_parallel=4, mesh=(2, 2)),
            Layout((2,), zero=2, tensor_parallel=2, mesh=(2,)),
        ),
        3,
    ),
}
SHARDED_STAGES = (Layout((2, 1), zero=3), Layout((1, 1, 1)), Layout((1, 2), zero=3), Layout((3,), zero=2))
"""Layouts on three ranks with several stages in shards, each with neighbours of which one has none, or one stage."""


def resumed(folder: str, model: str, optimizer: str, sharded_stages: bool = False) -> dict[str, bool]:
    """Compare, for every layout, an interrupted run with an unbroken one bit by bit."""
    found = {}
    for number, layout in enumerate(_layouts(sharded_stages)):
        place = Path(folder) / str(number)
        plan = layout.plan(MODELS[model], optimizer)
        whole = _pipeline(plan, model)
        losses = _train(whole, 2 * STEPS)
        first = _pipeline(plan, model)
        halves = _train(first, STEPS)
        first.save(place, extra={"epoch": 7})
        second = _pipeline(plan, model, seed=9)
        loaded = second.load(place)
        halves += _train(second, STEPS)
        same = loaded.step == STEPS and loaded.extra == {"epoch": 7} and losses == halves and _equal(whole, second)
        found[f"{layout}"] = _everywhere(same)
    return found


def moved(
    folder: str,
    model: str,
    optimizer: str,
    in_a_ring: bool = False,
    sharded_stages: bool = False,
    among: tuple[Layout, ...] = (),
) -> dict[str, float]:
    """Largest difference between a run that changes its layout and one that does not, for pairs of layouts."""
    layouts = among or _layouts(sharded_stages)
    stay = {}
    for number, layout in enumerate(layouts):
        pipeline = _pipeline(layout.plan(MODELS[model], optimizer), model)
        _train(pipeline, STEPS)
        pipeline.save(Path(folder) / str(number))
        _train(pipeline, STEPS)
        pipeline.save(Path(folder) / f"{number}-on")
        stay[number] = as_plain(Path(folder) / f"{number}-on")
    found = {}
    for number, source in enumerate(layouts):
        for other, target in enumerate(layouts):
            if other == number or (in_a_ring and other != (number + 1) % len(layouts)):
                continue
            pipeline = _pipeline(target.plan(MODELS[model], optimizer), model, seed=9)
            pipeline.load(Path(folder) / str(number))
            _train(pipeline, STEPS)
            where = Path(folder) / f"{number}-{other}"
            pipeline.save(where)
            found[f"{source} to {target}"] = _apart(as_plain(where), stay[number])
    return found


def handed_on(folder: str, model: str, optimizer: str) -> float:
    """Difference of a run through all layouts, once as a plain file, from a pipeline that keeps its layout."""
    layouts = LAYOUTS[dist.get_world_size()]
    stays = _pipeline(layouts[1].plan(MODELS[model], optimizer), model)
    _train(stays, len(layouts))
    stays.save(Path(folder) / "stays")
    for number, layout in enumerate(layouts):
        pipeline = _pipeline(layout.plan(MODELS[model], optimizer), model, seed=9 if number else 0)
        here, file = Path(folder) / str(number), Path(folder) / f"{number}.pt"
        if number:
            before = Path(folder) / str(number - 1)
            pipeline.load(before.with_suffix(".pt") if number % 2 else before)
        _train(pipeline, 1)
        pipeline.save(here)
        if dist.get_rank() == 0:
            torch.save(as_plain(here), file)
        dist.barrier()
    return _apart(as_plain(here), as_plain(Path(folder) / "stays"))


def alone(folder: str, model: str, optimizer: str) -> dict[str, float]:
    """Difference of a plain model that continues, and of a pipeline after it, from a pipeline that keeps its layout."""
    layouts = LAYOUTS[dist.get_world_size()]
    pipeline = _pipeline(layouts[:3][-1].plan(MODELS[model], optimizer), model)
    _train(pipeline, STEPS)
    pipeline.save(folder)
    _train(pipeline, STEPS)
    pipeline.save(Path(folder) / "stays")
    _train(pipeline, STEPS)
    pipeline.save(Path(folder) / "stays-on")
    plain, file = as_plain(folder), Path(folder) / "plain.pt"
    workload = MODELS[model]()
    module = workload.module.double()
    module.load_state_dict(plain["model"])
    update = {"adam": torch.optim.Adam, "momentum": torch.optim.SGD}[optimizer](module.parameters())
    update.load_state_dict(plain["optimizer"])
    schedule = _schedule(update)
    schedule.load_state_dict(plain["scheduler"])
    for step in range(plain["step"], plain["step"] + STEPS):
        inputs, targets = draw(workload, pipeline.plan.batch, 0, torch.float64, step)
        update.zero_grad()
        workload.loss(module(inputs), targets).backward()
        update.step()
        schedule.step()
    expected = as_plain(Path(folder) / "stays")
    apart = {"plain": _apart({"model": module.state_dict(), "optimizer": update.state_dict()}, expected)}
    if dist.get_rank() == 0:
        state = {"model": module.state_dict(), "optimizer": update.state_dict(), "scheduler": schedule.state_dict()}
        torch.save({**state, "step": step + 1}, file)
    dist.barrier()
    for layout in layouts[::2]:
        back = _pipeline(layout.plan(MODELS[model], optimizer), model, seed=9)
        back.load(file)
        _train(back, STEPS)
        back.save(Path(folder) / "back")
        apart[f"back to {layout}"] = _apart(as_plain(Path(folder) / "back"), as_plain(Path(folder) / "stays-on"))
    return apart


def refused(folder: str) -> dict[str, str]:
    """Error messages for checkpoints that are broken, of another model, or of another optimiser."""
    layout = LAYOUTS[dist.get_world_size()][1]
    pipeline = _pipeline(layout.plan(MODELS["decoder"], "adam"), "decoder")
    _train(pipeline, 1)
    good = pipeline.save(Path(folder) / "good")
    said = {}
    for name, harm in HARMS.items():
        bad = Path(folder) / name
        if dist.get_rank() == 0:
            shutil.copytree(good, bad)
            harm(bad)
        dist.barrier()
        said[name] = _said(lambda bad=bad: pipeline.load(bad))
    said["nothing"] = _said(lambda: pipeline.load(Path(folder) / "absent"))
    other = _pipeline(layout.plan(MODELS["resnet"], "adam"), "resnet")
    said["model"] = _said(lambda: other.load(good))
    sgd = _pipeline(layout.plan(MODELS["decoder"], "momentum"), "decoder")
    said["optimizer"] = _said(lambda: sgd.load(good))
    said["weights only"] = _said(lambda: sgd.load(good, weights_only=True))
    said["extra"] = _said(lambda: pipeline.save(Path(folder) / "good", extra={"when": Path("now")}))
    pipeline.step(*draw(pipeline.workload, pipeline.plan.batch, 0, torch.float64), update=False)
    said["gradients"] = _said(lambda: pipeline.save(Path(folder) / "good"))
    said["latest after all that"] = _said(lambda: pipeline.load(Path(folder) / "good"))
    return said


def _largest(folder: Path) -> Path:
    return max(folder.glob("*.distcp"), key=lambda file: file.stat().st_size)


HARMS: dict[str, Callable[[Path], object]] = {
    "no manifest": lambda folder: (folder / "checkpoint.json").unlink(),
    "no tensors": lambda folder: _largest(folder).unlink(),
    "cut short": lambda folder: _largest(folder).write_bytes(_largest(folder).read_bytes()[:1000]),
    "no state": lambda folder: (folder / "state.pt").unlink(),
    "no index": lambda folder: (folder / ".metadata").unlink(),
}


def _said(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except InputError as error:
        return str(error)
    return ""


def _layouts(sharded_stages: bool) -> tuple[Layout, ...]:
    return SHARDED_STAGES if sharded_stages else LAYOUTS[dist.get_world_size()]


def _pipeline(plan: Plan, model: str, seed: int = 0) -> Pipeline:
    return Pipeline(
        plan,
        MODELS[model],
        seed=seed,
        dtype=torch.float64,
        learning_rate=RATE,
        scheduler=_schedule,
        tensor_parallel=None if plan.team > 1 else dist.get_world_size() // len(plan.ranks),
    )


def _schedule(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def _train(pipeline: Pipeline, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        batch = draw(pipeline.workload, pipeline.plan.batch, 0, torch.float64, pipeline.moment.step)
        losses.append(pipeline.step(*batch))
    return losses


def _equal(one: Pipeline, other: Pipeline) -> bool:
    ours, theirs = ({name: local(value) for name, value in each.state_dict().items()} for each in (one, other))
    return ours.keys() == theirs.keys() and all(torch.equal(value, theirs[name]) for name, value in ours.items())


def _everywhere(same: bool) -> bool:
    flag = torch.tensor([same], dtype=torch.int64)
    dist.all_reduce(flag, op=dist.ReduceOp.MIN)
    return bool(flag)


def _apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Largest difference between two plain checkpoints, in weights and optimiser state."""
    pairs = [(value, other["model"][name]) for name, value in one["model"].items()]
    states, others = (plain["optimizer"]["state"] for plain in (one, other))
    assert states.keys() == others.keys()
    pairs += [(states[n][key], others[n][key]) for n in states for key in states[n]]
    return max(float((a - b).abs().max()) for a, b in pairs)
