"""What members of teams send for plans that say by shards and tokens what is split, and the prices of these."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.distributed.exactness import worst_error
from helpers.distributed.models import blank_model
from helpers.mesh_exchanges import BACKWARD, FORWARD, mesh_exchanges
from helpers.plans import in_teams, on_tokens, plan_for
from pipeplan.core.grouped_axis import ShardAxis
from pipeplan.core.plan import Plan
from pipeplan.costs.sharding.exchanges import Exchange
from pipeplan.costs.sharding.given import usual_rooflines
from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan.frontend.workload import Workload
from pipeplan.schedules import FAMILIES
from pipeplan_executor.sharding.mesh.layers import MeshLayers
from pipeplan_executor.stages.source import draw
from pipeplan_executor.train.pipeline import Pipeline

SAMPLES, MICRO_BATCHES = 2, 2
OPERATIONS = {
    "all_reduce": Exchange.SUM,
    "all_gather_into_tensor": Exchange.GATHER,
    "reduce_scatter_tensor": Exchange.SCATTER,
    "all_to_all_single": Exchange.TURN,
    "send": Exchange.SHIFT,
}
OF_PARTS = Exchange.GATHER, Exchange.TURN, Exchange.SHIFT
"""Collectives that are called with a member's part."""

Sums = Counter[tuple[str, int]]
"""How often tensors of so many bytes are gathered, and reduce-scattered; an all-reduce is one of each."""


class Sent(NamedTuple):
    """What is sent in the forwards and in the backwards of a step, and at its end: bytes by kind."""

    forward: Sums
    backward: Sums
    step: Mapping[str, int]


def plan_of(
    build: Callable[[], Workload],
    shards: Mapping[str, ShardAxis],
    sequence: Callable[[Sequence[str]], Sequence[str]] = lambda _: (),
    context: str = "",
    group: tuple[str, ...] = (),
) -> Plan:
    """A plan of one stage for a team of all processes that a test starts, by patterns.

    ``sequence``: which of the layers have outputs in parts of the tokens; ``context``: how attention runs on these.
    """
    module, layers, held = blank_model(build, group)
    base = plan_for(module, layers, (0, len(layers)), FAMILIES["gpipe"].write((1,), MICRO_BATCHES), SAMPLES, held=held)
    plan = in_teams(base, module, shards, 2, sequence(layers))
    return on_tokens(plan, module, context) if context else plan


def halves(kind: Exchange, size: int) -> Sums:
    """What a collective sends."""
    both = {Exchange.SUM: (Exchange.SCATTER, Exchange.GATHER)}
    return Counter((own.value, size) for own in both.get(kind, (kind,)))


class Seen(TorchDispatchMode):
    """Counts collectives of layers, and their bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: Sums = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.partition(".")[0]
        in_layers = "c10d_functional" in func.namespace or OPERATIONS.get(name) is Exchange.SHIFT
        if in_layers and name in OPERATIONS:
            tensor = args[0] if isinstance(args[0], Tensor) else args[0][0]
            parts = dist.get_world_size() if OPERATIONS[name] in OF_PARTS else 1
            self.sent.update(halves(OPERATIONS[name], tensor.nbytes * parts))
        return func(*args, **(kwargs or {}))


def exact(build: Callable[[], Workload], plans: Sequence[Plan]) -> list[tuple[float, Sent, Sent]]:
    """The worst error of each plan, what a member sends with it, and what its strategies are priced with."""
    return [(worst_error(plan, build, 2), *_seen(build, plan)) for plan in plans]


def _seen(build: Callable[[], Workload], plan: Plan) -> tuple[Sent, Sent]:
    pipeline = Pipeline(plan, build)
    batch = draw(pipeline.workload, plan.batch, 3)
    with Seen() as forward:
        pipeline.evaluate(*batch)
    with Seen() as both:
        pipeline.compute(*batch, update=False)
    priced = _priced(pipeline)
    behind = both.sent - forward.sent
    at_the_end = behind - priced.backward
    return Sent(forward.sent, behind - at_the_end, _bytes(at_the_end)), priced


def _priced(pipeline: Pipeline) -> Sent:
    layers, sent, summed = pipeline.modules[0].sharded_layers, {FORWARD: Sums(), BACKWARD: Sums()}, {}
    assert isinstance(layers, MeshLayers)
    for name, strategies in pipeline.fitted.plan.strategies:
        if name in layers._programs:
            run = layers._layer(name, True)
            rooflines = usual_rooflines(run.program.graph, SAMPLES)
            strategies = run.strategies
            problem = MeshProblem(rooflines, run.axes.priced, strategies.input, strategies.output, only=strategies)
            for each in mesh_exchanges(problem, strategies):
                sent[each.when] += halves(each.kind, each.size)
            summed |= {(name, weight.name): 4 * prod(weight.shape) for weight in run.weights.values() if weight.summed}
    step = _bytes(halves(Exchange.SUM, sum(summed.values()))) if summed else {}
    return Sent(_times(sent[FORWARD]), _times(sent[BACKWARD]), step)


def _times(sums: Sums) -> Sums:
    """As often in all micro-batches."""
    return Counter({each: MICRO_BATCHES * count for each, count in sums.items()})


def _bytes(sums: Sums) -> dict[str, int]:
    """Bytes by kind: sums of a step are made in one collective."""
    found: Counter[str] = Counter()
    for (kind, size), count in sums.items():
        found[kind] += size * count
    return dict(found)
