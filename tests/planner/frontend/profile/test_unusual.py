"""Modules with sizes that depend on values, and with complex weights."""

import pytest
import torch
from torch import Tensor, nn

import pipeplan
from pipeplan.core.errors import InputError
from pipeplan.core.model import Model


class Routed(nn.Module):
    """A linear map of the rows that are positive in the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        (rows,) = (x.mean(-1) > 0).nonzero(as_tuple=True)
        return x.index_add(0, rows, self.map(x[rows]))


class Complex(nn.Module):
    """A product with complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(self.weight.dtype) @ self.weight).real


def profiled(module: nn.Module, **how: str) -> tuple[Model, list[str]]:
    """A quick profile, and what is told on the way."""
    told: list[str] = []
    model = pipeplan.profile(
        module, torch.randn(4, 8), micro_batches=(4,), repeats=1, warmup=0, on_refusal=told.append, **how
    )
    return model, told


def test_sizes_inside_a_layer_may_depend_on_values() -> None:
    """A chain is measured with values, and it is said that plans of it cannot run."""
    module = nn.Sequential(nn.Linear(8, 8), Routed(), nn.Linear(8, 8))
    model, told = profiled(module)
    assert model.names == ("0", "1", "2")
    assert len(told) == 1
    assert "layer 1 cannot be called without values" in told[0]
    space = model.profiles[0].costs[1].workspace
    assert space > 0
    assert model.layers[1].work.workspace == -(-space // 4)  # estimates use what was measured


def test_without_values_such_sizes_are_refused_in_one_line() -> None:
    """The error names the operation, the module, and what would work."""
    module = nn.Sequential(nn.Linear(8, 8), Routed(), nn.Linear(8, 8))
    reason = r"layer 1 cannot be described without values .*nonzero.*--device cpu"
    with pytest.raises(InputError, match=reason) as caught:
        profiled(module, device="meta")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_complex_weights_are_measured(optimizer: str) -> None:
    """Their update is timed, and each counts as two numbers."""
    model, _ = profiled(nn.Sequential(nn.Linear(8, 8), Complex(), Complex(), Complex()), optimizer=optimizer)
    assert model.dtype == "float32"
    assert [layer.parameters for layer in model.layers] == [288, 512, 512, 512]
    assert model.profiles[0].costs[1].update > 0
