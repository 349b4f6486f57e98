"""Frozen weights in profiles: their bytes, what is trained beside them, and layers without a backward."""

import torch
from torch import Tensor, nn

from pipeplan.core.model import Model, Tie
from pipeplan.frontend.profile import profile

WIDTH = 16
MATRIX = 4 * WIDTH * WIDTH


class Adapted(nn.Module):
    """A frozen matrix with a trained product of two small ones beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return self.base(x) + self.up(self.down(x))


class Skipping(nn.Module):
    """Two adapted layers and a sum of both, which is captured as a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Adapted(), Adapted()

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        y = self.first(x)
        return y + self.second(torch.tanh(y))


def encoder() -> nn.Sequential:
    """A frozen layer and its activation in front of an adapted layer."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(False), nn.Tanh(), Adapted())


def measured(module: nn.Module, device: str = "cpu") -> Model:
    """The profile of a module for two samples."""
    return profile(module, torch.randn(2, WIDTH), micro_batches=(2,), repeats=1, warmup=0, device=device)


def test_layers_know_what_is_trained_and_what_is_frozen() -> None:
    """In chains and in captured graphs, measured or not: each parameter counts once, as one of both."""
    for module in (encoder(), Skipping(), nn.Sequential(Adapted(), nn.Tanh())):
        trained = 4 * sum(each.numel() for each in module.parameters() if each.requires_grad)
        frozen = 4 * sum(each.numel() for each in module.parameters() if not each.requires_grad)
        for device in ("cpu", "meta"):
            layers = measured(module, device).layers
            assert (sum(layer.parameters for layer in layers), sum(layer.frozen for layer in layers)) == (
                trained,
                frozen,
            )
    assert [layer.frozen for layer in measured(encoder()).layers] == [MATRIX, 0, MATRIX]


def test_layers_with_nothing_trained_before_them_have_no_backward() -> None:
    """Nor have they anything to save or to update; what is read of them counts with the layer that made it."""
    costs = measured(encoder()).profiles[0].costs
    assert [(each.backward, each.input_gradient, each.weight_gradient, each.update) for each in costs[:2]] == [
        (0,) * 4
    ] * 2
    assert costs[2].backward > 0 < costs[2].update
    assert [each.saved for each in costs[:2]] == [0, 2 * 4 * WIDTH]
    works = [layer.work for layer in measured(encoder(), "meta").layers]
    assert [(each.input_gradient_flops, each.weight_gradient_flops) for each in works if each][:2] == [(0, 0)] * 2


def test_frozen_weights_have_no_product_of_their_gradient() -> None:
    """Of a layer behind others that are trained the input gradient alone is counted."""
    chain = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(False))
    work = measured(chain, "meta").layers[1].work
    assert work is not None
    assert (work.input_gradient_flops, work.weight_gradient_flops) == (2 * WIDTH * WIDTH, 0)


def test_shared_frozen_weights_are_a_tie_without_trained_bytes() -> None:
    """They count for the first layer, and are read by the second one."""
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), Adapted(), nn.Linear(WIDTH, WIDTH, bias=False))
    module[2].weight = module[0].weight.requires_grad_(False)
    model = measured(module)
    assert model.ties == (Tie(("0", "2"), frozen=MATRIX),)
    assert [layer.frozen for layer in model.layers] == [MATRIX, MATRIX, 0]
