"""Constant tables, which are made once and never sent, and the choice of the smallest tensors to send."""

import copy
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.captured_models import tiny_bert, tiny_llama
from helpers.cut_by_hand import WIDTH, Masked, Rated
from pipeplan.frontend.batch import tensors
from pipeplan.frontend.capture import LayerSequence, capture_layers
from pipeplan.frontend.capture.graph.captured import CapturedModel
from pipeplan.frontend.capture.graph.sorts import size_of


class Makes(TorchDispatchMode):
    """Counter of tensors that are made without inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += func._schema.name in ("aten::full", "aten::arange")
        return func(*args, **(kwargs or {}))


def masked() -> tuple[LayerSequence, tuple[torch.Tensor, torch.Tensor]]:
    """Layers that all read one mask, and a batch for them."""
    inputs = (torch.randn(2, 5, WIDTH), torch.tensor([[1] * 5, [1, 1, 1, 0, 0]]))
    return capture_layers(Masked(), inputs), inputs


def run(sequence: LayerSequence, inputs: tuple[torch.Tensor, ...]) -> tuple[list[int], int]:
    """Bytes passed on by each layer except the last, and the number of tensors made without inputs."""
    sent = []
    with Makes() as made:
        for layer in sequence.layers:
            out = layer(*inputs)
            inputs = out if isinstance(out, tuple) else (out,)
            sent.append(sum(tensor.numel() * tensor.element_size() for tensor in inputs))
    return sent[:-1], made.count


def test_layers_share_what_they_make_once() -> None:
    """The mask is made by the first layer that needs it, in the first pass only; x and a byte per position are sent."""
    sequence, inputs = masked()
    size = inputs[0].numel() * 4
    first, again = run(sequence, inputs), run(sequence, inputs)
    assert (first[0][:2], first[1]) == ([size + inputs[1].numel()] * 2, 1)
    assert again == (first[0], 0)


def test_tables_follow_buffers_that_are_written_into() -> None:
    """Values loaded into a buffer later, or another buffer in its place, change the tables made from it."""
    module, inputs = Rated(), torch.randn(3, WIDTH)
    sequence = capture_layers(module, inputs, front_end="graph")

    def through() -> torch.Tensor:
        value = inputs
        for layer in sequence.layers:
            value = layer(value)
        return value

    torch.testing.assert_close(through(), module(inputs))
    module.rate.fill_(2.0)
    torch.testing.assert_close(through(), module(inputs))
    other = torch.zeros(WIDTH)
    module.rate = other
    for layer, names in zip(sequence.layers, sequence.parameters, strict=True):
        for local in [local for local, name in names.items() if name == "rate"]:
            path, _, last = local.rpartition(".")
            setattr(layer.get_submodule(path), last, other)
    torch.testing.assert_close(through(), module(inputs))


def test_copies_that_are_made_together_share() -> None:
    """Layers that are copied together make the mask once."""
    sequence, inputs = masked()
    layers = copy.deepcopy(sequence.layers)
    assert run(replace(sequence, layers=layers), inputs)[1] == 1


def test_nothing_without_values_is_kept() -> None:
    """A pass on meta or fake tensors keeps no table for a later pass."""
    sequence, inputs = masked()
    expected = run(masked()[0], inputs)
    blank = tuple(copy.deepcopy(layer, {id(layer._cache): layer._cache}).to("meta") for layer in sequence.layers)
    run(replace(sequence, layers=blank), tuple(tensor.to("meta") for tensor in inputs))
    layer = sequence.layers[0]
    with FakeTensorMode() as mode:
        made = layer._cache.tables(layer._tables, layer.constants, mode.from_tensor(inputs[0]))
    assert all(type(table) is not torch.Tensor for table in made)
    assert run(sequence, inputs) == expected


@pytest.mark.parametrize("build", [tiny_bert, tiny_llama])
def test_bytes_of_every_cut_are_those_of_the_tensors(build: object) -> None:
    """At every place the bytes by which a cut is chosen are the bytes of the tensors that the layers pass on."""
    pytest.importorskip("transformers")
    workload = build(layers=1)  # type: ignore[operator]
    inputs = workload.draw(2, torch.Generator())[0]
    model = CapturedModel(workload.module, inputs, both_modes=False)
    sequence = model.cut_at(model.places)
    sent, _ = run(sequence, tensors(inputs))
    assert sent == [sum(size_of(node) or 0 for node in model._crossings.at(place)) for place in model.places]
    hidden = 2 * 12 * 16 * 4
    assert min(sent) <= hidden + inputs["attention_mask"].numel() * 8
