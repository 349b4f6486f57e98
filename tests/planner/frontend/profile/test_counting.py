"""Operations that are counted from their shapes, and those that nobody can count."""

import pytest
import torch
from torch import Tensor, nn

import pipeplan
from pipeplan.core.model import Model
from pipeplan.frontend.profile.counting import is_cheap
from pipeplan.io.model_file import model_data, model_from_data

WIDTH, TOKENS, GROUPS = 16, 8, 4


class Experts(nn.Module):
    """Experts of which each takes an equal share of the rows."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(GROUPS, WIDTH, WIDTH, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        ends = torch.arange(1, GROUPS + 1, device=x.device, dtype=torch.int32) * (rows.shape[0] // GROUPS)
        return x + torch._grouped_mm(rows, self.weight, offs=ends).view_as(x)


class Vectors(nn.Module):
    """A product of a matrix and a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.mv(x.flatten(0, 1), self.weight).view(*x.shape[:-1], 1)


class Bilinear(nn.Module):
    """A bilinear form of the input with itself."""

    def __init__(self) -> None:
        super().__init__()
        self.form = nn.Bilinear(WIDTH, WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.form(x, x)


@torch.library.custom_op("pipeplan_tests::product", mutates_args=())
def product(x: Tensor, weight: Tensor) -> Tensor:
    """A product that torch sees as one operation."""
    return x @ weight


product.register_fake(lambda x, weight: x.new_empty(*x.shape[:-1], weight.shape[-1]))
product.register_autograd(
    lambda ctx, gradient: (gradient, gradient.flatten(0, -2).sum(0)[None].repeat(WIDTH, 1)),
    setup_context=lambda ctx, inputs, output: None,
)


class Foreign(nn.Module):
    """A product by an operation of another library."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight)


def described(part: nn.Module, device: str = "meta") -> tuple[Model, list[str]]:
    """A model with the part between linear layers of its dtype, and what is told on the way."""
    dtype = next(part.parameters()).dtype
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH, dtype=dtype), part, nn.Linear(WIDTH, WIDTH, dtype=dtype))
    told: list[str] = []
    batch = torch.randn(2, TOKENS, WIDTH, dtype=dtype)
    how = {"micro_batches": (2,), "repeats": 1, "warmup": 0, "device": device}
    return pipeplan.profile(module, batch, on_refusal=told.append, **how), told


@pytest.mark.parametrize(
    ("part", "device", "products"),
    [
        (Experts(torch.bfloat16), "meta", (2 * TOKENS * WIDTH**2,) * 3),
        (Bilinear(), "cpu", None),
        (Vectors(), "meta", (2 * TOKENS * WIDTH, 0, 2 * TOKENS * WIDTH)),
    ],
)
def test_products_are_counted_from_their_shapes(part: nn.Module, device: str, products) -> None:
    """Grouped products count a row times its matrix, whatever the group; gradients as many each."""
    model, told = described(part, device)
    work = model.layers[1].work
    if products is None:
        assert work.forward_flops >= 2 * TOKENS * WIDTH**3
        assert work.weight_gradient_flops >= 2 * TOKENS * WIDTH**3
    else:
        assert (work.forward_flops, work.input_gradient_flops, work.weight_gradient_flops) == products
    assert not told
    assert not model.uncounted


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_operations_of_unknown_cost_are_named(device: str) -> None:
    """The layer and its operation are told, written into the model, and named in proofs and throughput."""
    model, told = described(Foreign(), device)
    assert model.uncounted == {"1": ("pipeplan_tests::product",)}
    assert len(told) == 1
    assert "pipeplan_tests::product in layer 1" in told[0]
    read = model_from_data(model_data(model), "here")
    assert read.uncounted == model.uncounted
    result = pipeplan.solve(read, "4-v100-pcie", batch=8, extrapolate=True)
    assert "leave out operations of layer 1" in str(result)
    assert "too short: times of layer 1" in str(result)
    assert result.throughput.at_least
    assert "≥" in str(result.throughput)


def test_torch_s_own_operations_are_cheap_or_known() -> None:
    """Normalisation, lookups and sums are cheap; factorisations are not."""
    aten = torch.ops.aten
    norms = aten.native_layer_norm, aten.cudnn_batch_norm, aten._weight_norm_interface, aten.linalg_vector_norm
    for cheap in (*norms, aten.embedding, aten.sum):
        assert is_cheap(cheap), cheap
    for other in (aten.linalg_qr, aten._linalg_svd, aten._sparse_mm, aten.mkldnn_linear):
        assert not is_cheap(other), other
