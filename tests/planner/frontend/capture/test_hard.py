"""Modules that are hard to cut, at every possible place."""

import copy
from collections.abc import Iterator
from itertools import combinations

import pytest
import torch
from torch import nn

from helpers.cut_by_hand import (
    WIDTH,
    CountsInBuffer,
    LowerPrecision,
    ManyOutputs,
    Masked,
    Tied,
    WithoutGradients,
    WritesRow,
    WritesThroughView,
)
from helpers.cut_passes import differences, pass_through, relative
from pipeplan.frontend.batch import Batch, call
from pipeplan.frontend.capture.graph.captured import CapturedModel


def batch(**shapes: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Random tensors by name."""
    return {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}


def cases() -> Iterator[tuple[nn.Module, Batch]]:
    """Each module with a batch for it."""
    for build in (WritesThroughView, WritesRow, CountsInBuffer, WithoutGradients):
        yield build().double(), batch(x=(4, WIDTH))
    yield ManyOutputs().double(), batch(x=(4, WIDTH), scale=(4, 1))
    yield Tied().double(), torch.arange(8).view(4, 2)
    yield Masked().double(), (torch.randn(2, 5, WIDTH, dtype=torch.float64), torch.tensor([[1] * 5, [1, 1, 1, 0, 0]]))


@pytest.mark.parametrize("number", range(7))
def test_every_pair_of_places(number: int) -> None:
    """Outputs, gradients and buffers are the unsplit module's at any one or two cuts, after two passes."""
    torch.manual_seed(0)
    module, inputs = list(cases())[number]
    model = CapturedModel(module, inputs)
    state = copy.deepcopy(module)
    whole = copy.deepcopy(module)
    expected = []
    for _ in range(2):
        expected.append(_loss(call(whole, inputs)))
        expected[-1].backward()
    places = [(place,) for place in model.places] + list(combinations(model.places, 2))[:40]
    assert places
    for cuts in places:
        _reset(module, state)
        sequence = model.cut_at(cuts)
        for reference in expected:
            assert relative(pass_through(sequence, inputs, _loss), reference) <= 1e-12
        assert max(differences(module, whole)) <= 1e-12, (cuts, sequence.names)


def _loss(outputs: object) -> torch.Tensor:
    """Loss that depends on every tensor in the outputs, at any depth of their structure."""
    leaves = torch.utils._pytree.tree_leaves(outputs)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return sum((tensor * (number + 1)).square().sum() for number, tensor in enumerate(tensors))  # type: ignore[return-value]


def _reset(module: nn.Module, state: nn.Module) -> None:
    module.zero_grad()
    with torch.no_grad():
        for ours, theirs in zip(module.buffers(), state.buffers(), strict=True):
            ours.copy_(theirs)


def test_outputs_have_the_structure_of_the_module() -> None:
    """The outputs restored from the last layer equal the module's, in its own structure."""
    module, inputs = ManyOutputs().double(), batch(scale=(4, 1), x=(4, WIDTH))
    model = CapturedModel(module, inputs)
    sequence = model.cut_at(model.places)
    value: object = tuple(inputs.values())
    for layer in sequence.layers:
        value = layer(*value) if isinstance(value, tuple) else layer(value)
    found, expected = sequence.restore(value), module(**inputs)
    assert torch.utils._pytree.tree_structure(found) == torch.utils._pytree.tree_structure(expected)
    torch.testing.assert_close(found, expected)


def test_no_cut_within_memory_that_is_written() -> None:
    """No place to cut lies between a tensor and a write into a part of it."""
    for build in (WritesThroughView, WritesRow):
        model = CapturedModel(build(), torch.randn(4, WIDTH))
        names = {name for place in model.places for name in model.cut_at([place]).names}
        assert not any(name.endswith(("select", "copy_", "mul_", "slice")) for name in names), names


def test_autocast_inside_a_layer_stays() -> None:
    """A part that the module runs in bfloat16 runs in it in the layers too, whatever is cut."""
    torch.manual_seed(0)
    module, inputs = LowerPrecision(), torch.randn(4, WIDTH)
    model = CapturedModel(module, inputs)
    expected = module(inputs)
    for place in model.places:
        first, second = model.cut_at([place]).layers
        given = first(inputs)
        found = second(*given) if isinstance(given, tuple) else second(given)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert not torch.equal(expected, (module.second(module.first(inputs)) * module.second(module.first(inputs))))


def test_writing_into_the_batch_leaves_the_batch_alone() -> None:
    """A module that writes into its input is captured without that write."""

    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(torch.relu_(self.first(x.mul_(2))))

    module, inputs = Writes(), torch.randn(4, WIDTH)
    sequence = (model := CapturedModel(module, inputs)).cut_at(model.module_cuts())
    before = inputs.clone()
    value = inputs
    for layer in sequence.layers:
        value = layer(value)
    torch.testing.assert_close(inputs, before)
    torch.testing.assert_close(value, module(before.clone()))
