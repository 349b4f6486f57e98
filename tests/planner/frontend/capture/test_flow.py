"""Trace of layers by a run without values."""

from itertools import count, cycle

import torch
from torch import Tensor, nn

from pipeplan.frontend.capture import Stages
from pipeplan.frontend.capture.flow import trace
from pipeplan.frontend.capture.front_ends import capture_layers


class Mixed(nn.Module):
    """Batch norm, a relayed integer tensor, a mask, an in-place operation on one input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.BatchNorm1d(4), nn.Linear(4, 4)

    def forward(self, x: Tensor, words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.mix(self.norm(x)), words, words > 2


class Ending(nn.Module):
    """Writes into what it gets."""

    def forward(self, x: Tensor, words: Tensor, mask: Tensor) -> Tensor:
        return x.mul_(mask.unsqueeze(-1)) + words.unsqueeze(-1)


def flow_of(*layers: nn.Module, inputs: tuple[Tensor, ...]):
    """The flow through the user's own layers."""
    module = Stages(*layers).to("meta")
    return trace(capture_layers(module, inputs), inputs)


def test_shapes_types_and_gradients_are_told() -> None:
    """Every tensor between layers is there with its shape and type, and with whether a gradient comes back."""
    flow = flow_of(Mixed(), Ending(), inputs=(torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64)))
    told = [[(tuple(t.shape), t.dtype, t.requires_grad) for t in tensors] for tensors in flow.tensors]
    floats, words = ((3, 4), torch.float32, True), ((3,), torch.int64, False)
    assert told == [[((3, 4), torch.float32, False), words], [floats, words, ((3,), torch.bool, False)], [floats]]
    assert flow.bare


def test_what_is_written_into_is_told() -> None:
    """Inputs that this or a later layer overwrites, and all buffers of a submodule that changes one."""
    inputs = (torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64))
    flow = flow_of(Mixed(), Passing(), Ending(), inputs=inputs)
    assert flow.writes == ((False, False), (False, False, False), (True, False, False))
    assert flow.overwritten == ((False, False), (True, False, False), (True, False, False))
    buffers = frozenset({"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"})
    assert flow.changed == (buffers, frozenset(), frozenset())


class Passing(nn.Module):
    """Gives on what it gets."""

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tensors


def test_frozen_layers_ask_for_no_gradient() -> None:
    """Nothing travels back to layers of which nothing is learnt."""
    first, second = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4)
    flow = flow_of(first, nn.ReLU(), second, inputs=(torch.zeros(2, 4),))
    assert [tensors[0].requires_grad for tensors in flow.tensors] == [False, False, False, True]


def test_layers_that_draw_are_told() -> None:
    """Dropout draws; without a probability, or switched off, it does not."""
    layers = [nn.Linear(4, 4), nn.Dropout(0.5), nn.Dropout(0.0), nn.Dropout(0.5).eval()]
    assert flow_of(*layers, inputs=(torch.zeros(2, 4),)).draws == (False, True, False, False)


class GoesOn(nn.Module):
    """A layer that goes on in what it keeps: an iterator, or a tensor that it replaces."""

    def __init__(self, kept: object) -> None:
        super().__init__()
        self.mix, self.kept = nn.Linear(4, 4), kept

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.kept, Tensor):
            self.kept = self.kept + 1
            return self.mix(x) * self.kept
        return self.mix(x) * next(self.kept)


def test_layers_that_go_on_in_what_they_keep_are_told() -> None:
    """Iterators, those inside others too, and tensors that are no buffers."""
    kept = (cycle((1, 2, 2)), zip_added(), torch.zeros(()))
    assert flow_of(*map(GoesOn, kept), inputs=(torch.randn(2, 4),)).counts == (True, True, True)


def zip_added() -> object:
    """The sums of two iterators."""
    return map(sum, zip(count(1), cycle((5, 6)), strict=False))
