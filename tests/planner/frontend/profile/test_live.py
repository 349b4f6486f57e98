"""Workspace that a pass on tensors without values finds."""

from collections.abc import Callable, Sequence
from itertools import accumulate

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import pipeplan
from pipeplan.core.cluster import DeviceKind
from pipeplan.costs.layers import layer_costs
from pipeplan.frontend.batch import tensors
from pipeplan.frontend.profile.meter import CpuMeter
from pipeplan.frontend.profile.passes import Feed, run_pass

KIND = DeviceKind("chip", peak={"float32": 10**12}, bandwidth=10**11)
WORDS = 4000


def language() -> tuple[Sequence[nn.Module], Tensor, Tensor, Callable]:
    """A head of many words, whose loss holds most of the memory."""
    text = torch.randint(WORDS, (2, 65))
    layers = [nn.Embedding(WORDS, 32), nn.Linear(32, 32), nn.Linear(32, WORDS, bias=False)]
    return layers, text[:, :-1], text[:, 1:], lambda made, t: functional.cross_entropy(made.flatten(0, 1), t.flatten())


def attention() -> tuple[Sequence[nn.Module], Tensor, Tensor, Callable]:
    """Encoder layers, whose activations are most of the memory."""
    layers = [nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0) for _ in range(3)]
    return layers, torch.randn(4, 64, 32), torch.randn(4, 64, 32), functional.mse_loss


def wide() -> tuple[Sequence[nn.Module], Tensor, Tensor, Callable]:
    """Large weights and few samples: gradients of weights are most of the workspace."""
    layers = [nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 512), nn.ReLU(), nn.Linear(512, 64)]
    return layers, torch.randn(4, 64), torch.randn(4, 64), functional.mse_loss


MODELS = [language, attention, wide]


@pytest.mark.parametrize("build", MODELS)
def test_estimated_memory_is_that_of_a_pass(build: Callable) -> None:
    """Saved bytes and workspace of a model that was not measured are within a tenth of a pass's peak."""
    layers, inputs, targets, loss = build()
    draw = lambda samples: (inputs[:samples], targets[:samples])  # noqa: E731
    model = pipeplan.profile(nn.Sequential(*layers), draw, loss=loss, micro_batches=(1,), device="meta")
    costs = layer_costs(model, KIND, len(inputs))
    held = accumulate(cost.saved for cost in costs)  # as the backward of each layer begins
    told = max(saved + cost.workspace for saved, cost in zip(held, costs, strict=True))
    feed = Feed(tensors(inputs), (False,), loss, targets)
    run_pass(layers, feed, lambda _: None, lambda _: None)  # gradients exist from now on
    with CpuMeter() as meter:
        run_pass(layers, feed, lambda _: None, lambda _: None)
        meter.mark()
    assert told == pytest.approx(meter.readings()[0][1], rel=0.1)


def test_gradients_of_weights_do_not_grow_with_samples() -> None:
    """The same layer has the same fixed workspace from one sample and from four, and as much for each."""
    layers, inputs, targets, loss = wide()
    found = [
        pipeplan.profile(
            nn.Sequential(*layers), lambda n: (inputs[:n], targets[:n]), loss=loss, micro_batches=(size,), device="meta"
        )
        for size in (1, 4)
    ]
    for one, four in zip(*(model.layers for model in found), strict=True):
        assert one.work.workspace_fixed == four.work.workspace_fixed
        assert one.work.workspace == pytest.approx(four.work.workspace, abs=16)  # a few single numbers
    assert found[0].layers[2].work.workspace_fixed == 4 * 2048 * 512 + 4 * 512


def test_the_gradient_of_logits_counts() -> None:
    """Beyond the log-softmax that is saved there are its gradient and that of the logits."""
    layers, inputs, targets, loss = language()
    draw = lambda samples: (inputs[:samples], targets[:samples])  # noqa: E731
    model = pipeplan.profile(nn.Sequential(*layers), draw, loss=loss, micro_batches=(2,), device="meta")
    logits = 4 * 64 * WORDS
    assert 1.99 * logits <= model.layers[-1].work.workspace <= 2.1 * logits


@pytest.mark.parametrize("build", MODELS)
def test_a_measured_model_has_the_same_workspace(build: Callable) -> None:
    """Estimates of a measured model on other kinds of device are those of the model that was not measured."""
    layers, inputs, targets, loss = build()
    draw = lambda samples: (inputs[:samples].clone(), targets[:samples].clone())  # noqa: E731
    how = {"loss": loss, "micro_batches": (1,), "repeats": 1, "warmup": 0}
    measured = pipeplan.profile(nn.Sequential(*layers), draw, **how)
    assert layer_costs(measured, KIND, 8) == layer_costs(
        pipeplan.profile(nn.Sequential(*layers), draw, device="meta", **how), KIND, 8
    )
    assert any(layer.work.workspace for layer in measured.layers)
