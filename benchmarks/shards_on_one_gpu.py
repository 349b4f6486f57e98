"""A decoder block as one member of a team runs it, on one GPU or on the CPU, with collectives that do nothing.

Torch's fake process group stands for the other members, so one device is enough. Each row has a forward and a backward:
of the whole block, of a member, and of what a member would take if operators that are split took a part of their time
and all others the same (rooflines of the catalogue share out the time of the whole block). In brackets stands when the
last kernel was launched: where that is as long as the row, Python is what takes the time.
"""

import time
from collections.abc import Callable
from contextlib import nullcontext
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from pipeplan.core.cluster import Link
from pipeplan.core.strategies import LayerStrategies, splits
from pipeplan.costs.sharding.given import GivenSplit, given_strategies, usual_rooflines
from pipeplan.frontend.operators.follow import NamedWeight, program_of
from pipeplan.frontend.operators.program import Program
from pipeplan.frontend.operators.record import record
from pipeplan_executor.calibrate.sharded_block import COUNTED, WEIGHTS
from pipeplan_executor.sharding.mesh.moves import MeshAxes
from pipeplan_executor.sharding.mesh.run import MeshLayer
from pipeplan_executor.zoo.decoder import Block

TEAMS = (2, 4, 8)
SHAPES = ((64, 16), (1024, 4096), (4096, 2048), (4096, 8192), (8192, 8192))
"""Width of a block and tokens of a sequence; the hidden width is four times as large, heads have 128 features or 8."""
ON_CPU = ((64, 16), (512, 256))
COMPUTED = ("forward", "backward")
PASSES, WARM = 20, 5


def main() -> None:
    """Print the table of this machine's device."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}; medians of {PASSES} in ms")
    print(f"{'width, tokens':>13} {'numbers':9}{'members':>8} {'time':>18} {'shared out':>11}{'an operator more':>18}")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=max(TEAMS))
    for width, tokens in SHAPES if device.type == "cuda" else ON_CPU:
        for dtype in (torch.float32, torch.bfloat16)[: 1 + (device.type == "cuda")]:
            show(width, tokens, dtype, device)
    dist.destroy_process_group()


def show(width: int, tokens: int, dtype: torch.dtype, device: torch.device) -> None:
    """Print the rows of one block."""
    block = Block(width, max(width // 128, 8), 4 * width).to(device, dtype)
    x = torch.randn(1, tokens, width, device=device, dtype=dtype, requires_grad=True)
    program = program_of_block(block, x)
    whole, launched = timed(block, x)
    kind = f"{width:6},{tokens:6} {str(dtype).removeprefix('torch.'):9}"
    print(f"{kind}{1:8} {whole:9.2f} ({launched:6.2f})")
    for team in TEAMS:
        strategies = given_strategies(
            program.graph, GivenSplit(WEIGHTS), team, usual_rooflines(program.graph, 1), Link(10**9)
        )
        assert strategies is not None
        took, launched = timed(member(block, program, strategies, team, device), x)
        shared = whole * shared_out(program, strategies, team)
        more = 1e3 * (took - shared) / COUNTED
        print(f"{kind}{team:8} {took:9.2f} ({launched:6.2f}) {shared:11.2f}{more:15.0f} µs")


def program_of_block(block: Block, x: Tensor) -> Program:
    """Return the forward of a block as a program."""
    weights = {name: NamedWeight(name, False) for name, _ in block.named_parameters()}
    return program_of(record(block, (x,), nullcontext, None, ()), weights, 1)


def member(
    block: Block, program: Program, strategies: LayerStrategies, team: int, device: torch.device
) -> Callable[[Tensor], Tensor]:
    """Return the block as the first member of a team runs it, with parts of its parameters."""
    mesh = DeviceMesh(device.type, torch.arange(team), mesh_dim_names=("tensor",), _init_backend=True)
    layer = MeshLayer(program, strategies, MeshAxes(mesh))
    parts = {}
    for name, parameter in block.named_parameters():
        shard = layer.weights[name].shard(layer.axes)
        part = parameter.detach() if shard is None else shard.of(parameter.detach())
        parts[name] = torch.nn.Parameter(part.clone())
    return lambda x: layer(parts, {}, x)[0]


def shared_out(program: Program, strategies: LayerStrategies, team: int) -> float:
    """Return the part of the block's time that is left if split operators share theirs out, by rooflines."""
    rooflines = usual_rooflines(program.graph, 1)
    whole, left = 0, 0.0
    for each in program.graph.operators:
        own = sum(rooflines.least(each, 1, COMPUTED))
        signature = strategies.operators.get(each.name)
        whole, left = whole + own, left + own / (team if signature and splits(signature.strategy) else 1)
    return left / whole


def timed(run: Callable[[Tensor], Tensor], x: Tensor) -> tuple[float, float]:
    """Milliseconds of a forward and a backward, and those after which the last kernel is launched."""
    rows = []
    for _ in range(WARM + PASSES):
        settle()
        began = time.perf_counter()
        run(x).sum().backward()
        launched = time.perf_counter()
        settle()
        rows.append((time.perf_counter() - began, launched - began))
    return tuple(1e3 * median(column) for column in zip(*rows[WARM:], strict=True))


def settle() -> None:
    """Wait for all kernels."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
