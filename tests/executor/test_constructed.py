"""Values that only constructors give, and models that cannot be built on the meta device."""

import pytest
import torch
from torch import Tensor, nn

from helpers.plans import plan_for
from pipeplan.core.errors import PlanError
from pipeplan.frontend.capture.private import on_meta
from pipeplan.frontend.parameters import held_by, named_tensors
from pipeplan.frontend.workload import Workload
from pipeplan.schedules import FAMILIES
from pipeplan_executor.stages.constructed import Constructed, built
from pipeplan_executor.stages.materialise import values_of
from pipeplan_executor.stages.source import build
from pipeplan_executor.stages.split import build_stage, fit
from pipeplan_executor.train.reference import materialised


class Scaled(nn.Module):
    """A linear map with a random scale and a mask, which only the constructor fills."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4))
        self.scale = nn.Parameter(torch.rand(4))
        self.register_buffer("mask", torch.ones(4, dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.mask * self.inner(x)


class Reading(Scaled):
    """A constructor that reads values of its submodules, and keeps a constant that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(self.inner[0].weight.detach().sum(1) / float(self.inner[0].weight.detach().sum()))
        self.shift = torch.linspace(0, 1, 4)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.shift


def scaled() -> Workload:
    """Three scaled maps."""
    return workload(nn.Sequential(Scaled(), Scaled(), Scaled()))


def reading() -> Workload:
    """Two maps whose constructors read values."""
    return workload(nn.Sequential(Reading(), Reading()))


def workload(module: nn.Module) -> Workload:
    """The module with batches and a loss."""
    return Workload(
        module,
        lambda samples, generator: (torch.randn(samples, 4, generator=generator), torch.zeros(samples, 4)),
        nn.functional.mse_loss,
    )


@pytest.mark.parametrize("source", [scaled, reading])
def test_stages_have_the_values_of_the_whole(source) -> None:
    """Stages alone get the very values of the unsplit model, and other ones for another seed."""
    module = build(source).module
    assert all(tensor.is_meta for _, tensor in named_tensors(module))
    names = tuple(name for name, _ in module.named_children())
    plan = plan_for(module, names, (0, 1, len(names)), FAMILIES["gpipe"].write((1, 1), 2), held=held_by(module, names))
    fitted = fit(plan, source)
    whole = dict(materialised(fitted, seed=3).state_dict())
    assert whole["0.mask"].all()
    for number in range(2):
        for name, value in build_stage(fitted, number, seed=3).state_dict().items():
            assert torch.equal(value, whole[name]), name
    assert not torch.equal(whole["0.scale"], materialised(fitted, seed=4).state_dict()["0.scale"])


def test_submodules_are_emptied_while_the_model_grows() -> None:
    """What can be drawn alone is dropped once it is inside a submodule; the rest stays."""
    module = built(scaled).module
    assert [tensor.is_meta for _, tensor in named_tensors(module[0])] == [False, True, True, False]
    found = Constructed(lambda: scaled().module).values(["2.scale"], 5)
    everything = Constructed(lambda: scaled().module).values(["0.scale", "0.inner.0.weight", "2.scale"], 5)
    assert torch.equal(found["2.scale"], everything["2.scale"])
    assert not everything["0.inner.0.weight"].is_meta


def test_a_module_that_exists_without_values_is_refused() -> None:
    """Nothing can build it again; the error says what to give instead."""
    module = on_meta(scaled().module)
    with pytest.raises(PlanError, match=r"0.scale has no values.*Name the function that builds the model"):
        values_of(module, module, ["0.scale"])
