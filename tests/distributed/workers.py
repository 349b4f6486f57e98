"""What ranks run in the tests of this folder: importable by name, as other processes need it."""

import os
import random
import signal
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from pipeplan.plan import Plan
from pipeplan.schedule import Action, Kind, Schedule
from pipeplan.schedules import FAMILIES
from pipeplan.workload import Workload
from pipeplan_executor.pipeline import Pipeline
from pipeplan_executor.split import draw, fit, materialised
from pipeplan_executor.zoo import decoder, mlp, vgg16
from plans import plan_for


def tiny_decoder() -> Workload:
    """Three blocks, a small vocabulary."""
    return decoder(blocks=3, width=16, heads=2, vocabulary=50, length=6, hidden=32)


def tiny_vgg() -> Workload:
    """All 22 layers, a few channels."""
    return vgg16(image=32, classes=7, classifier=12, channels=((4, 4), (4, 4), (6, 6, 6), (6, 6, 6), (8, 8, 8)))


def tiny_mlp() -> Workload:
    """The perceptron of the zoo."""
    return mlp()


WORKLOADS: tuple[Callable[[], Workload], ...] = (tiny_decoder, tiny_vgg, tiny_mlp)


def layers_of(workload: Workload) -> tuple[str, ...]:
    """The chain: these models are sequences."""
    return tuple(name for name, _ in workload.module.named_children())


def random_cuts(generator: random.Random, layers: int, stages: int) -> tuple[int, ...]:
    """Boundaries of so many stages, none empty."""
    return (0, *sorted(generator.sample(range(1, layers), stages - 1)), layers)


def random_schedule(generator: random.Random, stages: int, placement: list[int], micro_batches: int) -> Schedule:
    """Any order that can be played, on any placement; some micro-batches split their backward."""
    orders: list[list[Action]] = [[] for _ in range(max(placement) + 1)]
    split = {m for m in range(micro_batches) if generator.random() < 0.4}
    done: set[tuple[str, int, int]] = set()
    todo = {
        (kind, s, m) for s in range(stages) for m in range(micro_batches) for kind in ("FIW" if m in split else "FB")
    }

    def ready(kind: str, s: int, m: int) -> bool:
        back = "I" if m in split else "B"
        if kind == "F":
            return s == 0 or ("F", s - 1, m) in done
        if kind == "W":
            return ("I", s, m) in done
        return ("F", s, m) in done and (s == stages - 1 or (back, s + 1, m) in done)

    while todo:
        kind, s, m = generator.choice(sorted(item for item in todo if ready(*item)))
        todo.remove((kind, s, m))
        done.add((kind, s, m))
        orders[placement[s]].append(Action(Kind(kind), s, m))
    return Schedule("random", tuple(map(tuple, orders)))


def worst_error(plan: Plan, build: Callable[[], Workload]) -> float:
    """Largest relative difference of loss and gradients to the unsplit model, in float64, over all ranks."""
    pipeline = Pipeline(plan, build, dtype=torch.float64)
    inputs, targets = draw(pipeline.workload, plan.batch, 3, torch.float64)
    loss = pipeline.step(inputs, targets, update=False)
    fitted = fit(plan, build, torch.float64)
    whole = materialised(fitted, fitted.names, dtype=torch.float64)
    reference = fitted.workload.loss(whole(inputs), targets)
    reference.backward()
    expected = dict(whole.named_parameters())
    worst = abs(loss - float(reference.detach())) / abs(float(reference.detach()))
    for name, parameter in pipeline.named_parameters():
        scale = max(float(expected[name].grad.abs().max()), 1e-12)
        worst = max(worst, float((parameter.grad - expected[name].grad).abs().max()) / scale)
    shared = torch.tensor([worst], dtype=torch.float64)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return float(shared)


def families(micro_batches: int) -> dict[str, float]:
    """Every family on every workload at random cuts, one stage a rank: the worst error of each case."""
    torch.set_num_threads(1)
    generator, world = random.Random(5), dist.get_world_size()
    found = {}
    for build in WORKLOADS:
        workload = build()
        names = layers_of(workload)
        for name, family in FAMILIES.items():
            cuts = random_cuts(generator, len(names), world)
            plan = plan_for(workload.module, names, cuts, family.write((1,) * world, micro_batches))
            found[f"{build.__name__} {name} {cuts}"] = worst_error(plan, build)
    return found


def random_orders(cases: int) -> dict[str, float]:
    """Random orders, split backwards and placements with several stages a rank."""
    torch.set_num_threads(1)
    generator, world = random.Random(11), dist.get_world_size()
    found = {}
    for case in range(cases):
        build = WORKLOADS[case % len(WORKLOADS)]
        workload = build()
        names = layers_of(workload)
        stages = generator.randint(world, min(len(names), world + 2))
        placement = list(range(world)) + [generator.randrange(world) for _ in range(stages - world)]
        generator.shuffle(placement)
        schedule = random_schedule(generator, stages, placement, generator.randint(1, 5))
        cuts = random_cuts(generator, len(names), stages)
        plan = plan_for(workload.module, names, cuts, schedule)
        found[f"{case} {build.__name__} {cuts} {placement}"] = worst_error(plan, build)
    return found


def training(steps: int, optimizer: str) -> tuple[list[float], list[float]]:
    """Losses of a few steps, pipelined and unsplit."""
    torch.set_num_threads(1)
    workload = tiny_decoder()
    names, world = layers_of(workload), dist.get_world_size()
    plan = plan_for(workload.module, names, (0, 2, len(names)), FAMILIES["1f1b-sno"].write((1,) * world, 4), 2, optimizer)
    pipeline = Pipeline(plan, tiny_decoder, dtype=torch.float64, learning_rate=0.05)
    fitted = fit(plan, tiny_decoder, torch.float64)
    whole = materialised(fitted, fitted.names, dtype=torch.float64)
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]
    update = kind(whole.parameters(), lr=0.05)
    ours, theirs = [], []
    for number in range(steps):
        inputs, targets = draw(pipeline.workload, plan.batch, 0, torch.float64, number)
        ours.append(pipeline.step(inputs, targets))
        loss = workload.loss(whole(inputs), targets)
        update.zero_grad()
        loss.backward()
        update.step()
        theirs.append(float(loss.detach()))
    return ours, theirs


def misbehaving(how: str, culprit: int) -> None:
    """One rank raises, is killed or stops; the others wait for it."""
    if dist.get_rank() == culprit:
        if how == "raise":
            raise ValueError("the data ran out")
        time.sleep(0.3)
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[how])
    tensor = torch.zeros(1)
    dist.recv(tensor, culprit)
