"""The unsplit model beside which a plan is verified: called with the whole batch only where that changes nothing."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from helpers.plans import plan_for
from pipeplan.frontend.workload import Workload
from pipeplan.schedules import FAMILIES
from pipeplan_executor.stages.source import draw as drawn
from pipeplan_executor.stages.split import fit
from pipeplan_executor.train.reference import Reference

WIDTH = 4


class Counting(nn.Module):
    """Grows with each call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(samples, WIDTH, generator=generator), torch.randn(samples, WIDTH, generator=generator)


def noisy(made: Tensor, wanted: Tensor) -> Tensor:
    return nn.functional.mse_loss(nn.functional.dropout(made, 0.5), wanted)


@pytest.mark.parametrize(
    ("between", "loss", "apart"),
    [
        (nn.Tanh, nn.functional.mse_loss, True),
        (lambda: nn.LayerNorm(WIDTH), nn.functional.mse_loss, True),
        (lambda: nn.BatchNorm1d(WIDTH), nn.functional.mse_loss, False),
        (lambda: nn.BatchNorm1d(WIDTH, track_running_stats=False), nn.functional.mse_loss, False),
        (nn.Dropout, nn.functional.mse_loss, False),
        (Counting, nn.functional.mse_loss, False),
        (nn.Tanh, noisy, False),
    ],
)
def test_a_module_gets_the_whole_batch_only_if_its_samples_are_apart(
    between: Callable[[], nn.Module], loss: Callable[[Tensor, Tensor], Tensor], apart: bool
) -> None:
    """Then loss and gradients are those of its parts."""
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), between(), nn.Linear(WIDTH, WIDTH))
    workload = Workload(module, draw, loss)
    fitted = fit(plan_for(module, "012", (0, 1, 3), FAMILIES["gpipe"].write((1, 1), 2)), workload)
    reference = Reference(fitted, *drawn(workload, 4, 0, torch.float64), seed=0)
    reference.mean(1e-9)
    assert reference.treats_samples_apart == apart
    if apart:
        whole, parts = reference.at_once(), reference.in_parts()
        assert whole[0] == pytest.approx(parts[0], rel=1e-12)
        assert all(torch.allclose(whole[1][name], parts[1][name], rtol=1e-12) for name in whole[1])


def test_no_batch_is_drawn_twice() -> None:
    """Neither at another step nor under a neighbouring seed; the same seed and step give the same one."""
    workload = Workload(nn.Linear(WIDTH, WIDTH), draw, nn.functional.mse_loss)
    batches = [drawn(workload, 2, seed, step=step)[0] for seed in range(4) for step in range(4)]
    assert len({tuple(batch.flatten().tolist()) for batch in batches}) == 16
    assert torch.equal(batches[6], drawn(workload, 2, 1, step=2)[0])
