"""Pipeline of torch's own runtime for an exported order, importable by name for other processes."""

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from helpers.distributed.everywhere import greatest

WIDTH, SAMPLES = 6, 2


def worst_errors(orders: Mapping[str, tuple[str, int, int]]) -> dict[str, float]:
    """Largest relative difference of a gradient to the unsplit model's, over all ranks.

    ``orders``: by name, a schedule file, its number of stages, and of micro-batches.
    """
    return {name: _worst(Path(file), stages, count) for name, (file, stages, count) in orders.items()}


def _worst(file: Path, stages: int, count: int) -> float:
    whole, inputs, targets = _task(stages, count)
    homes = _homes(file)
    own = [_stage(whole, number, stages) for number in range(stages) if homes[number] == dist.get_rank()]
    runtime = _PipelineScheduleRuntime(own, count, loss_fn=nn.functional.mse_loss, scale_grads=False)
    for stage in own:
        stage.stage_index_to_group_rank = homes
    runtime._load_csv(str(file))
    first, last = homes[0] == dist.get_rank(), homes[stages - 1] == dist.get_rank()
    losses: list[Tensor] = []
    runtime.step(*[inputs] if first else [], **{"target": targets, "losses": losses} if last else {})
    reference, *_ = _task(stages, count)
    for x, y in zip(inputs.split(SAMPLES), targets.split(SAMPLES), strict=True):
        nn.functional.mse_loss(reference(x), y).backward()
    found = [
        float((mine.grad - theirs.grad).abs().max() / theirs.grad.abs().max())
        for stage in own
        for mine, theirs in zip(stage.submod.parameters(), reference[stage.stage_index].parameters(), strict=True)
    ]
    return greatest(max(found))


def _task(stages: int, count: int) -> tuple[nn.Sequential, Tensor, Tensor]:
    torch.manual_seed(0)
    whole = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(stages))).double()
    inputs, targets = (torch.randn(count * SAMPLES, WIDTH, dtype=torch.float64) for _ in range(2))
    return whole, inputs, targets


def _homes(file: Path) -> dict[int, int]:
    """The rank of every stage."""
    rows = file.read_text().splitlines()
    return {int(cell.split("F")[0]): rank for rank, row in enumerate(rows) for cell in row.split(",") if "F" in cell}


def _stage(whole: nn.Sequential, number: int, stages: int) -> PipelineStage:
    like = torch.zeros(SAMPLES, WIDTH, dtype=torch.float64)
    return PipelineStage(
        whole[number],
        number,
        stages,
        torch.device("cpu"),
        input_args=(like.requires_grad_(number > 0),),
        output_args=(like.clone().requires_grad_(),),
    )
