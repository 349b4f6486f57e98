"""Random numbers of layers depend only on seed, step, micro-batch and layer."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pipeplan.frontend.capture.flow import DetectRandom
from pipeplan_executor.stages.seeds import Moment, derive, seed_layers, seeded


def drawn(model: nn.Module, seed: int = 0, step: int = 0, micro_batch: int = 0) -> Tensor:
    """Apply a layer to ones."""
    with seeded(list(model), seed) as moment:
        moment.step, moment.micro_batch = step, micro_batch
        return model(torch.ones(64))


def test_masks_depend_on_seed_step_micro_batch_and_layer() -> None:
    """Whatever the process drew before, the same moment gives the same mask, and any other one another."""
    model = nn.Sequential(nn.Dropout(0.5))
    first = drawn(model)
    torch.rand(3)
    assert torch.equal(first, drawn(model))
    others = [drawn(model, seed=1), drawn(model, step=1), drawn(model, micro_batch=1)]
    others.append(drawn(nn.Sequential(nn.Identity(), nn.Dropout(0.5))))
    seen = [first, *others]
    assert len({tuple(mask.tolist()) for mask in seen}) == len(seen)


def test_a_layer_draws_the_same_alone() -> None:
    """A layer's numbers do not depend on the layers that run beside it in the process."""
    inner, outer = nn.Dropout(0.5), nn.Dropout(0.3)
    moment = Moment(7)
    (handle,) = seed_layers([(1, inner)], moment)
    alone = inner(torch.ones(64))
    handle.remove()
    with seeded([outer, inner], 7):
        outer(torch.ones(5))
        assert torch.equal(alone, inner(torch.ones(64)))


def test_the_process_keeps_its_own_random_numbers() -> None:
    """A user's stream goes on behind a seeded forward as if it had not been there."""
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    drawn(nn.Sequential(nn.Dropout(0.5)))
    assert torch.equal(torch.rand(4), expected)


def test_evaluation_is_left_alone() -> None:
    """Layers in evaluation mode are not seeded, so whoever evaluates keeps the random numbers that come next."""
    model = nn.Sequential(nn.Dropout(0.5)).eval()
    seed_layers([(0, model[0])], Moment())
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    model(torch.ones(4))
    assert torch.equal(torch.rand(4), expected)


def test_recomputation_repeats_the_mask() -> None:
    """A layer that runs again in the backward draws what it drew, without its random state being kept."""
    layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    x = torch.randn(4, 8)
    grads = []
    for again in (False, True):
        layer.zero_grad()
        with seeded([layer], 2):
            y = checkpoint(layer, x, use_reentrant=False, preserve_rng_state=False) if again else layer(x)
            torch.rand(9)
            y.square().sum().backward()
        grads.append(layer[0].weight.grad.clone())
    assert torch.equal(*grads)


def test_derived_seeds_are_apart() -> None:
    """Paths that differ in one part, or are split up differently, give different seeds that fit into 63 bits."""
    seeds = [derive(0), derive(1), derive(0, "layer", 1, 11), derive(0, "layer", 11, 1), derive(0, "layer", 1, 1)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


class Called(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: object) -> None:
        super().__init__()
        self.forward = function


DRAWING = {
    "dropout": nn.Dropout(0.1),
    "channels": nn.Dropout1d(0.1),
    "alpha": nn.AlphaDropout(0.1),
    "rrelu": nn.RReLU(),
    "attention": nn.MultiheadAttention(8, 2, dropout=0.1),
    "recurrent": nn.LSTM(8, 8, 2, dropout=0.1),
    "called": Called(lambda x, *_: functional.dropout(x, 0.1)),
    "gumbel": Called(lambda x, *_: functional.gumbel_softmax(x)),
    "noise": Called(lambda x, *_: x + torch.randn_like(x)),
    "a coin": Called(lambda x, *_: x * (torch.rand([]) < 0.5)),
}
QUIET = {
    "linear": Called(lambda x, *_: x @ x.mT),
    "off": nn.Dropout(0.5).eval(),
    "none": nn.Dropout(0.0),
    "one layer": nn.LSTM(8, 8, 1),
    "norm": Called(lambda x, *_: functional.layer_norm(x, (8,))),
    "attention": nn.MultiheadAttention(8, 2),
}


@pytest.mark.parametrize("name", DRAWING)
def test_layers_that_draw_are_found(name: str) -> None:
    """Modules and functions that draw are seen without computing anything."""
    assert _draws(DRAWING[name])


@pytest.mark.parametrize("name", QUIET)
def test_layers_that_do_not_draw_are_left_alone(name: str) -> None:
    """Layers that are off, have probability 0, or only compute are not taken for layers that draw."""
    assert not _draws(QUIET[name])


def _draws(layer: nn.Module) -> bool:
    x = torch.ones(3, 5, 8, device="meta")
    with DetectRandom() as draws:
        many = isinstance(layer, nn.MultiheadAttention)
        layer.to("meta")(*([x] * 3 if many else [x]), **({"need_weights": False} if many else {}))
    return draws.seen
