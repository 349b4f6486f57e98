"""Time of operators on a team beyond computation and collectives, by measurement.

Pairs of processes run a small decoder block with split weights, all pairs at once, by the code that runs layers of
plans with teams (`pipeplan_executor.sharding.mesh.run`). Its computation is negligible. What it takes longer than the
whole block, less the sums as they are predicted, is the Python that runs the block call by call, the packing of sums,
and the waiting of each process for the other. It is at least the processor time of the calling thread: where other
programs disturb the measurement of the link, predicted sums are too long.
"""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from pipeplan.core.cluster import Link
from pipeplan.costs.collectives import all_reduce, alone
from pipeplan.costs.sharding.given import GivenSplit, given_strategies, usual_rooflines
from pipeplan.frontend.operators.follow import NamedWeight, program_of
from pipeplan.frontend.operators.program import Program
from pipeplan.frontend.operators.record import record
from pipeplan_executor.runtime.recorder import now
from pipeplan_executor.sharding.mesh.moves import MeshAxes
from pipeplan_executor.sharding.mesh.run import MeshLayer
from pipeplan_executor.zoo.decoder import Block

TEAM = 2
SAMPLES, LENGTH, WIDTH, HEADS, HIDDEN = 1, 16, 64, 4, 256
WEIGHTS = {
    **{"query_key_value.weight": 0, "query_key_value.bias": 0, "attention_out.weight": 1},
    **{"widen.weight": 0, "widen.bias": 0, "narrow.weight": 1},
}
"""Axes along which weights are split."""
SUMS = 4
"""Sums of a forward and a backward: one each for attention and perceptron."""
OPERATORS, WEIGHTED = 10, 6
"""Operators of the block, and those of them with weights."""
COUNTED = 2 * OPERATORS + WEIGHTED
"""Operators of the forward, of the input gradient, and of the weight gradient."""
PASSES = 30
"""Forwards and backwards; the first ten do not count."""


@dataclass(frozen=True)
class Excess:
    """Nanoseconds by which a forward and a backward of the block take longer with shards: in all, and of processor."""

    time: float
    processor: float

    def by_operator(self, link: Link) -> int:
        """Return the nanoseconds by which an operator takes longer."""
        sums = SUMS * alone(all_reduce(TEAM, link), 4 * SAMPLES * LENGTH * WIDTH)
        return max(round(max(self.time - sums, self.processor) / COUNTED), 0)


def excess_of_shards() -> Excess:
    """Measure the block.

    All processes call this; where their number is odd, the last one has no partner and returns zeros.
    """
    pairs = dist.get_world_size() // TEAM
    mesh = DeviceMesh("cpu", torch.arange(pairs * TEAM).reshape(pairs, TEAM), mesh_dim_names=("pairs", "tensor"))
    if dist.get_rank() >= pairs * TEAM:
        return Excess(0.0, 0.0)
    group = mesh["tensor"]
    whole, call = Block(WIDTH, HEADS, HIDDEN), split_block(group)
    x = torch.randn(SAMPLES, LENGTH, WIDTH, requires_grad=True)
    gradient = torch.ones_like(x)

    def split() -> None:
        made: Tensor = call(x)
        made.backward(gradient)

    def plain() -> None:
        made: Tensor = whole(x)
        made.backward(gradient)

    # the differences of neighbouring passes, so that other load affects both alike
    found: list[tuple[int, int]] = []
    for _ in range(PASSES):
        took = []
        for run in (plain, split):
            dist.barrier(group.get_group())
            start, busy = now(), time.thread_time_ns()
            run()
            took.append((now() - start, time.thread_time_ns() - busy))
        found.append((took[1][0] - took[0][0], took[1][1] - took[0][1]))
    wall, processor = zip(*found[PASSES // 3 :], strict=True)
    return Excess(median(wall), median(processor))


def program_of_block() -> Program:
    """Return the forward of the block as a program."""
    block = Block(WIDTH, HEADS, HIDDEN)
    weights = {name: NamedWeight(name, False) for name, _ in block.named_parameters()}
    given = torch.empty(SAMPLES, LENGTH, WIDTH, requires_grad=True)
    return program_of(record(block, (given,), nullcontext, None, ()), weights, SAMPLES)


def split_block(mesh: DeviceMesh) -> Callable[[Tensor], Tensor]:
    """Return the block as this process of a mesh of one axis runs it, with parts of new parameters."""
    program = program_of_block()
    strategies = given_strategies(
        program.graph, GivenSplit(WEIGHTS), TEAM, usual_rooflines(program.graph, SAMPLES), Link(10**9)
    )
    assert strategies is not None, "the block can be split like that"
    layer, parts = MeshLayer(program, strategies, MeshAxes(mesh)), dict[str, nn.Parameter]()
    for name, parameter in Block(WIDTH, HEADS, HIDDEN).named_parameters():
        shard = layer.weights[name].shard(layer.axes)
        parts[name] = nn.Parameter(parameter.detach() if shard is None else shard.of(parameter.detach()))

    def call(x: Tensor) -> Tensor:
        return layer(parts, {}, x)[0]

    return call
