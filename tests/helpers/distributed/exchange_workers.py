"""What the members of a team are predicted to send each other, and what they send, for each way to split a model."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.distributed.models import blank_model
from helpers.instances import equal_devices
from helpers.plans import plan_for, with_teams
from pipeplan.core.cluster import Link
from pipeplan.core.plan import Plan
from pipeplan.costs.teams.exchanges import BACKWARD, FORWARD, STEP, exchanges
from pipeplan.costs.teams.signatures import Exchange
from pipeplan.costs.teams.splits import Teams
from pipeplan.frontend.profile import profile
from pipeplan.frontend.workload import Workload
from pipeplan.schedules import FAMILIES
from pipeplan.search.build_plan import shared_out
from pipeplan_executor.stages.source import draw
from pipeplan_executor.train.pipeline import Pipeline

MEMBERS, SAMPLES, MICRO_BATCHES = 2, 2, 2
OPERATIONS = {
    "all_reduce": Exchange.SUM,
    "allreduce_": Exchange.SUM,
    "all_gather_into_tensor": Exchange.GATHER,
    "reduce_scatter_tensor": Exchange.SCATTER,
}

Sums = Counter[tuple[str, int]]
"""How often tensors of so many bytes are gathered, and reduce-scattered; an all-reduce is one of each."""


class Block(NamedTuple):
    """What is predicted of one layer: how often each kind of collective sends tensors of so many bytes."""

    layer: str
    ends: tuple[bool, bool]
    forward: dict[tuple[Exchange, int], int]
    backward: dict[tuple[Exchange, int], int]


class Case(NamedTuple):
    """A plan, and what is sent in the forward and in the backward of a micro-batch, and once per step; and by layer."""

    plan: Plan
    sent: tuple[Sums, Sums, Sums]
    blocks: tuple[Block, ...] = ()


def cases(
    build: Callable[[], Workload], most: int = 1000, group: tuple[str, ...] = (), whole: str = ""
) -> tuple[Case, ...]:
    """The ways to split a profiled model that are worth searching, at most so many with and without split tokens.

    ``group``: modules that are captured whole. ``whole``: ways that split parameters of such a name are left out.
    """
    workload, generator = build(), torch.Generator().manual_seed(0)
    model = profile(
        workload.module,
        lambda size: workload.draw(size, generator),
        micro_batches=(SAMPLES,),
        repeats=1,
        warmup=0,
        loss=workload.loss,
        group=group,
    )
    cluster = equal_devices(MEMBERS, link=Link(10**9, 1))
    kind = replace(next(iter(cluster.kinds.values())), timed_as=model.profiles[0].device)
    cluster = replace(cluster, kinds=dict.fromkeys(cluster.kinds, kind))
    teams = Teams(model, cluster, MEMBERS, (SAMPLES,), "sgd", False)
    module, layers, held = blank_model(build, group)
    schedule = FAMILIES["gpipe"].write((1,), MICRO_BATCHES)
    base = with_teams(plan_for(module, layers, (0, len(layers)), schedule, SAMPLES, held=held), MEMBERS)
    base = replace(base, fingerprint=model.fingerprint)
    found: dict[bool, list[Case]] = {False: [], True: []}
    for split in teams.splits():
        sent: dict[str, Sums] = {when: Counter() for when in (FORWARD, BACKWARD, STEP)}
        blocks = []
        for i, layer in enumerate(model.layers):
            if layer.operators:
                problem = teams.problem(i, kind, SAMPLES, split.sequence)
                own = exchanges(problem, tuple(split.of(layer.operators).items()))
                for each in own:
                    sent[each.when] += halves(each.kind, each.size)
                both = (Counter((e.kind, e.size) for e in own if e.when == when) for when in (FORWARD, BACKWARD))
                blocks.append(Block(layer.name, tuple(problem.ends), *map(dict, both)))
        plan = shared_out(base, model, split)
        if whole and any(whole in name for name, _ in plan.shards):
            continue
        found[bool(split.sequence)].append(Case(plan, tuple(sent.values()), tuple(blocks)))
    return tuple(case for own in found.values() for case in own[:most])


def halves(kind: Exchange, size: int) -> Sums:
    """What a collective sends; on a CPU an all-to-all is a gather, as gloo has none."""
    both = {Exchange.SUM: (Exchange.SCATTER, Exchange.GATHER), Exchange.TURN: (Exchange.GATHER,)}
    return Counter((own.value, size) for own in both.get(kind, (kind,)))


class Seen(TorchDispatchMode):
    """Counts collectives as torch's `CommDebugMode` does, and their bytes: of layers, and of the end of a step."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: Sums = Counter()
        self.at_the_end: Sums = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.partition(".")[0]
        if "c10d" in func.namespace and name in OPERATIONS:
            tensor = args[0] if isinstance(args[0], Tensor) else args[0][0]
            parts = MEMBERS if OPERATIONS[name] is Exchange.GATHER else 1
            own = self.sent if "functional" in func.namespace else self.at_the_end
            own.update(halves(OPERATIONS[name], tensor.nbytes * parts))
        return func(*args, **(kwargs or {}))


def seen(build: Callable[[], Workload], plans: Sequence[Plan]) -> list[tuple[Sums, Sums, Sums]]:
    """What a member sends with each plan: in a forward, in a backward, and at the end of a step."""
    return [_seen(build, plan) for plan in plans]


def _seen(build: Callable[[], Workload], plan: Plan) -> tuple[Sums, Sums, Sums]:
    pipeline = Pipeline(plan, build)
    batch = draw(pipeline.workload, plan.batch, 3)
    with Seen() as forward:
        pipeline.evaluate(*batch)
    with Seen() as both:
        pipeline.compute(*batch, update=False)
    gathered = dict(pipeline.modules[0].sharded_layers.dispatch.gathered)
    assert not gathered, gathered
    return forward.sent, both.sent - forward.sent, both.at_the_end


def times(sums: Sums, count: int) -> Sums:
    """As often in all micro-batches."""
    return Counter({each: count * own for each, own in sums.items()})


def together(sums: Mapping[tuple[str, int], int]) -> dict[str, int]:
    """Bytes by kind: sums of a step are made in one collective."""
    found: Counter[str] = Counter()
    for (kind, size), count in sums.items():
        found[kind] += size * count
    return dict(found)


def compared(build: Callable[[], Workload], case: Case, sent: Iterable[Sums]) -> dict[str, Any]:
    """What is sent and was not predicted, and the reverse; empty if they agree."""
    forward, backward, step = case.sent
    expected = (times(forward, MICRO_BATCHES), times(backward, MICRO_BATCHES), step)
    wrong: dict[str, Any] = {}
    for when, own, there in zip((FORWARD, BACKWARD), sent, expected, strict=False):
        if own != there:
            wrong[when] = {"more": dict(own - there), "less": dict(there - own)}
    found = tuple(sent)[2]
    if together(found) != together(step):
        wrong[STEP] = {"sent": together(found), "predicted": together(step)}
    return wrong
