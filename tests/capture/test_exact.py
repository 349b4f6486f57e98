"""A model that is cut computes what the unsplit model computes."""

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from captured_models import OURS, TRANSFORMERS, tiny_bert, tiny_gpt2, tiny_llama, tiny_t5
from pipeplan.batch import call, mapped, tensors
from pipeplan.capture import Row
from pipeplan.capture.graph.captured import CapturedModel
from pipeplan.workload import Workload

CUT_SETS = 20


@pytest.fixture(params=[*OURS, *TRANSFORMERS], ids=lambda build: build.__name__)
def workload(request: pytest.FixtureRequest) -> Workload:
    """Every model, in float64."""
    if request.param in TRANSFORMERS:
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    return in_float64(request.param())


def in_float64(workload: Workload) -> Workload:
    """The workload with its module in float64."""
    workload.module.double()
    return workload


def test_loss_gradients_and_buffers_at_twenty_random_cut_sets(workload: Workload) -> None:
    """Loss, all gradients and all buffers equal the unsplit model's to 1e-10 in float64, wherever the graph is cut."""
    assert worst_of_cut_sets(workload, CUT_SETS) <= 1e-10


def worst_of_cut_sets(workload: Workload, count: int, samples: int = 2) -> float:
    """Largest relative difference over random cut sets and the cuts that a planner gets."""
    module = workload.module
    inputs, targets = draw(workload, samples)
    model = CapturedModel(module, inputs, both_modes=False)
    state = copy.deepcopy(module.state_dict())
    whole = copy.deepcopy(module)
    reference = workload.loss(call(whole, inputs), targets)
    reference.backward()
    generator = random.Random(0)
    worst = 0.0
    for number in range(count):
        places = model.places
        some = sorted(generator.sample(places, min(len(places), generator.randint(1, 7))))
        module.load_state_dict(state)
        module.zero_grad()
        row = model.row(some if number else model.module_cuts())
        loss = pass_through(row, inputs, lambda outputs: workload.loss(outputs, targets))
        worst = max(worst, relative(loss, reference), *differences(module, whole))
    return worst


def draw(workload: Workload, samples: int) -> tuple[Any, Any]:
    """A batch whose floating-point parts are float64."""
    inputs, targets = workload.draw(samples, torch.Generator().manual_seed(3))
    return mapped(inputs, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor), targets


def pass_through(row: Row, inputs: Any, loss_of: Callable[[Any], Tensor]) -> Tensor:
    """Forward and backward of each layer on its own, as on ranks of their own: tensors are sent, not shared."""
    given = tensors(inputs)
    tape: list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]] = []
    for layer in row.layers:
        leaves = sent(given)
        made = layer(*leaves)
        given = made if isinstance(made, tuple) else (made,)
        tape.append((leaves, given))
    leaves = sent(given)
    loss = loss_of(row.restore(leaves))
    loss.backward()
    gradients = [leaf.grad for leaf in leaves]
    for leaves, made in reversed(tape):
        pairs = [(a, b) for a, b in zip(made, gradients, strict=True) if a.requires_grad and b is not None]
        torch.autograd.backward([a for a, _ in pairs], [b for _, b in pairs])
        gradients = [leaf.grad for leaf in leaves]
    return loss.detach()


def sent(values: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """What arrives on another rank: contiguous copies, each the start of a graph."""
    return tuple(
        value.detach().clone(memory_format=torch.contiguous_format).requires_grad_(value.requires_grad)
        for value in values
    )


def differences(module: nn.Module, whole: nn.Module) -> Iterator[float]:
    """Relative difference of every gradient and every buffer; a gradient that is not there is zero."""
    for (name, ours), (_, theirs) in zip(module.named_parameters(), whole.named_parameters(), strict=True):
        found = torch.zeros_like(ours) if ours.grad is None else ours.grad
        expected = torch.zeros_like(theirs) if theirs.grad is None else theirs.grad
        assert found.shape == expected.shape, name
        yield relative(found, expected)
    for (_, ours), (_, theirs) in zip(module.named_buffers(), whole.named_buffers(), strict=True):
        yield relative(ours, theirs)


def relative(found: Tensor, expected: Tensor) -> float:
    """Largest difference beside the largest number expected (at least 1e-12, for gradients that are zero)."""
    if found.numel() == 0:
        return 0.0
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).abs().max()) / max(float(expected.abs().max()), 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "layers"), [(tiny_gpt2, 24), (tiny_bert, 24), (tiny_llama, 16), (tiny_t5, 12)], ids=lambda v: str(v)
)
def test_real_depths(build: Callable[[int], Workload], layers: int) -> None:
    """The same for as many layers as GPT-2 medium, BERT-large, Llama 1B and T5-base have."""
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    assert worst_of_cut_sets(in_float64(build(layers)), CUT_SETS) <= 1e-10
