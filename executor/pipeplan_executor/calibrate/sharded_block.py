"""Time of operators on a team beyond computation and collectives, by measurement.

Pairs of processes run a small decoder block with shards, all pairs at once, through the layers that plans with teams
run. Its computation is negligible. What it takes longer than the whole block, less the sums as they are predicted, is
DTensor's dispatch, the packing of sums, and the waiting of each process for the other.
"""

from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from pipeplan.core.cluster import Link
from pipeplan.costs.collectives import all_reduce, alone
from pipeplan_executor.runtime.recorder import now
from pipeplan_executor.sharding import TensorParallel
from pipeplan_executor.zoo.decoder import Block

TEAM = 2
SAMPLES, LENGTH, WIDTH, HEADS, HIDDEN = 1, 16, 64, 4, 256
SHARDS = {
    **{"query_key_value.weight": 0, "query_key_value.bias": 0, "attention_out.weight": 1},
    **{"widen.weight": 0, "widen.bias": 0, "narrow.weight": 1},
}
SUMS = 4
"""Sums of a forward and a backward: one each for attention and perceptron."""
OPERATORS, WEIGHTED = 10, 6
"""Operators of the block, and those of them with weights."""
COUNTED = 2 * OPERATORS + WEIGHTED
"""Operators of the forward, of the input gradient, and of the weight gradient."""
PASSES = 30
"""Forwards and backwards; the first ten do not count."""


def shard_overhead(excess: float, link: Link) -> int:
    """Return the nanoseconds by which an operator takes longer, from those of the block."""
    sums = SUMS * alone(all_reduce(TEAM, link), 4 * SAMPLES * LENGTH * WIDTH)
    return max(round((excess - sums) / COUNTED), 0)


def excess_of_shards() -> float:
    """Return the nanoseconds by which a forward and a backward of the block take longer with shards, on every process.

    All processes call this; where their number is odd, the last one has no partner and returns 0.
    """
    from pipeplan_executor.sharding.layers import ShardedLayers  # DTensor takes a second to load
    from pipeplan_executor.sharding.shards import find_shards

    pairs = dist.get_world_size() // TEAM
    mesh = DeviceMesh("cpu", torch.arange(pairs * TEAM).reshape(pairs, TEAM), mesh_dim_names=("pairs", "tensor"))
    if dist.get_rank() >= pairs * TEAM:
        return 0.0
    whole, own = Block(WIDTH, HEADS, HIDDEN), Block(WIDTH, HEADS, HIDDEN)
    group = mesh["tensor"]
    shards = find_shards(whole, SHARDS, TensorParallel(TEAM), group.get_local_rank())
    for name, each in shards.items():
        place, _, local = name.rpartition(".")
        setattr(own.get_submodule(place), local, nn.Parameter(each.of(whole.get_parameter(name).detach())))
    layers = ShardedLayers(group, shards, whole=True)
    call = layers.wrapped(own, {name: name for name, _ in own.named_parameters()})
    x = torch.randn(SAMPLES, LENGTH, WIDTH, requires_grad=True)
    gradient = torch.ones_like(x)

    def split() -> None:
        made: Tensor = call(x)
        with layers.backward():
            made.backward(gradient)

    def plain() -> None:
        made: Tensor = whole(x)
        made.backward(gradient)

    times: dict[bool, list[int]] = {False: [], True: []}
    for number in range(2 * PASSES):
        is_split = number % 2 == 1
        dist.barrier(group.get_group())
        start = now()
        split() if is_split else plain()
        times[is_split].append(now() - start)
    return median(times[True][PASSES // 3 :]) - median(times[False][PASSES // 3 :])
