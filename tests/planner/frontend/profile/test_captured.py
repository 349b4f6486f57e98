"""Profiles of models that are not chains, and of chains as captured graphs."""

import pytest
import torch
from torch import Tensor, nn

from helpers.torch_chains import CHAINS
from pipeplan.core.model import Model
from pipeplan.frontend.capture import Stages
from pipeplan.frontend.profile import profile
from pipeplan.frontend.workload import Workload
from pipeplan_executor.zoo import gnmt, unet

QUICK = {"repeats": 1, "warmup": 0}


def totals(model: Model, size: int) -> tuple[int, ...]:
    """Totals that do not depend on the cuts: parameters, operations of each kind, saved bytes, output."""
    profiled = next(each for each in model.profiles if each.micro_batch == size)
    works = [layer.work for layer in model.layers]
    return (
        sum(layer.parameters for layer in model.layers),
        sum(work.forward_flops for work in works),
        sum(work.input_gradient_flops for work in works),
        sum(work.weight_gradient_flops for work in works),
        sum(cost.saved for cost in profiled.costs),
        profiled.costs[-1].output,
    )


@pytest.mark.parametrize(("name", "values"), [("perceptron", False), ("convolutions", False), ("transformer", True)])
def test_a_captured_chain_has_the_chains_totals(name: str, values: bool) -> None:
    """Cut into other layers, with values or without, a model has the same parameters, operations and bytes."""
    module, batch = CHAINS[name]()
    chain = profile(module, batch, micro_batches=(2, 4), front_end="chain", **QUICK)
    graph = profile(module if values else module.to("meta"), batch, micro_batches=(2, 4), front_end="graph", **QUICK)
    assert graph.names != chain.names
    assert [totals(graph, size) for size in (2, 4)] == [totals(chain, size) for size in (2, 4)]


@pytest.mark.parametrize(
    ("workload", "values"),
    [
        (gnmt(layers=2, width=8, vocabulary=11, source=5, target=4), True),
        (unet(image=16, width=4, depth=1), False),
    ],
    ids=["gnmt", "unet without values"],
)
def test_several_tensors_pass_between_layers(workload: Workload, values: bool) -> None:
    """A model with two inputs, or with skips, is measured at every layer; outputs are all that crosses a cut."""
    whole = 4 * sum(parameter.numel() for parameter in workload.module.parameters())
    model = profile(
        workload.module if values else workload.module.to("meta"),
        lambda size: workload.draw(size, torch.Generator().manual_seed(size)),
        micro_batches=(1, 2),
        loss=workload.loss,
        **QUICK,
    )
    small, large = (each.costs for each in model.profiles)
    assert len(model.layers) > 3
    assert all(a.forward > 0 and b.output == 2 * a.output for a, b in zip(small, large, strict=True))
    assert sum(cost.weight_gradient > 0 for cost in small) > 2
    assert sum(layer.parameters for layer in model.layers) == whole


class Begin(nn.Module):
    """Layer that makes two tensors of one."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return two tensors, the second for the end, and the mask for the middle."""
        return self.up(x).tanh(), x.exp(), mask


class Middle(nn.Module):
    """Layer that changes one tensor, and passes the others on."""

    def __init__(self) -> None:
        super().__init__()
        self.across = nn.Linear(8, 8)

    def forward(self, x: Tensor, skip: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Apply the mask to the first tensor."""
        return self.across(x) * mask, skip, mask


class End(nn.Module):
    """Layer that makes one tensor of two."""

    def forward(self, x: Tensor, skip: Tensor, _: Tensor) -> Tensor:
        """Return the product."""
        return x * skip


@pytest.mark.parametrize("values", [True, False])
def test_bytes_of_relayed_tensors_by_hand(values: bool) -> None:
    """A tensor that passes through counts once, with the layer that made it, also where layers are measured apart."""
    stages = Stages(Begin(), Middle(), Middle(), End())
    x, mask = torch.randn(2, 8), torch.ones(2, 8, dtype=torch.bool)
    model = profile(stages if values else stages.to("meta"), (x, mask), micro_batches=(2,), **QUICK)
    block = 2 * 8 * 4
    costs = model.profiles[0].costs
    assert [cost.output for cost in costs] == [2 * block + 16] * 3 + [block]
    # tanh's result and, for the end, exp's; what the second product multiplies; the end needs the relayed one alone
    assert [cost.saved for cost in costs] == [block + block, block, 0, 0]
