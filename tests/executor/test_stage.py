"""One stage without any network: what it computes, and what it holds of a micro-batch."""

import copy

import pytest
import torch
from torch import Tensor, nn

from pipeplan.profile.meter import CpuMeter
from pipeplan.profile.passes import Feed
from pipeplan.profile.saved import saved_bytes
from pipeplan_executor.split import StageModule
from pipeplan_executor.stage import StageWork
from pipeplan_executor.zoo.decoder import Block


def chain(dropout: float = 0.0) -> dict[str, nn.Module]:
    """Two transformer blocks with dropout between linear layers."""
    torch.manual_seed(1)
    layers = {"a": nn.Linear(16, 16), "b": Block(16, 2, 64), "c": nn.Dropout(dropout), "d": Block(16, 2, 64)}
    return layers | {"e": nn.Linear(16, 16)}


def gradients(recompute: tuple[str, ...], dropout: float) -> tuple[Tensor, ...]:
    """Input gradient and parameter gradients of two micro-batches in flight at once."""
    module = StageModule(copy.deepcopy(chain(dropout)), recompute).double()
    work = StageWork(module, wants_gradient=True)
    torch.manual_seed(2)
    inputs = torch.randn(2, 3, 5, 16, dtype=torch.float64)
    outputs = [work.forward(m, inputs[m], None) for m in range(2)]
    found = [work.backward(m, torch.ones_like(output)) for m, output in enumerate(outputs) if output is not None]
    return (*(g for g in found if g is not None), *(p.grad for p in module.parameters() if p.grad is not None))


@pytest.mark.parametrize("recompute", [("b",), ("c",), ("b", "d"), ("a", "b", "c", "d", "e")])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_recomputed_layers_change_no_gradient(recompute: tuple[str, ...], dropout: float) -> None:
    """Recomputation gives the same gradients to the last bit, dropout's mask included."""
    plain, again = gradients((), dropout), gradients(recompute, dropout)
    assert len(plain) == len(again) == 2 + 28
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


@pytest.mark.parametrize("recompute", [(), ("b",), ("d",), ("b", "d"), ("a", "b", "c", "d", "e")])
def test_a_stage_holds_what_the_plan_counts(recompute: tuple[str, ...]) -> None:
    """In flight, a micro-batch takes what layers save, and of recomputed ones the output."""
    layers = chain(0.5)
    inputs = torch.randn(64, 32, 16)
    held, _ = saved_bytes(tuple(layers.values()), Feed(inputs, wants_gradient=True))
    rows = zip(layers, held.saved, held.output, strict=True)
    counted = sum(output if name in recompute else saved for name, saved, output in rows)
    work = StageWork(StageModule(layers, recompute), wants_gradient=True)
    work.backward(0, torch.ones_like(work.forward(0, inputs, None)))  # gradients are there from now on
    with CpuMeter() as meter:
        meter.mark()
        output = work.forward(1, inputs, None)
        del output  # the network has taken it
        meter.mark()
    level, _ = meter.readings()[-1]
    block = inputs.numel() * inputs.element_size()
    assert counted - 1.5 * block <= level <= counted + 0.1 * block


@pytest.mark.parametrize("last", [Block(16, 2, 64), nn.Flatten(), nn.Identity()])
def test_split_backwards_equal_joined_ones(last: nn.Module) -> None:
    """I and W give B's gradients, also where the output is a view or a tensor that the layers saved."""
    found = []
    for split in (frozenset(), frozenset({0})):
        module = StageModule({"a": nn.Linear(16, 16), "t": nn.Tanh(), "z": copy.deepcopy(last)}).double()
        with torch.no_grad():
            for number, parameter in enumerate(module.parameters()):
                parameter.copy_(torch.sin(torch.arange(parameter.numel()) + number).view_as(parameter))
        work = StageWork(module, wants_gradient=True, split=split)
        inputs = torch.cos(torch.arange(2 * 5 * 16, dtype=torch.float64)).view(2, 5, 16)
        output = work.forward(0, inputs, None)
        assert output is not None
        gradient = torch.sin(output)
        if split:
            returned = work.input_gradient(0, gradient)
            work.weight_gradient(0)
        else:
            returned = work.backward(0, gradient)
        found.append([returned, *(p.grad for p in module.parameters())])
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-14) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("wants_gradient", [False, True])
@pytest.mark.parametrize("recompute", [(), ("b", "d"), ("a", "b", "c", "d", "e")])
def test_split_backwards_recompute_once(wants_gradient: bool, recompute: tuple[str, ...]) -> None:
    """I runs a recomputed layer once more and W does not; the gradients are those of a joined backward."""
    calls: list[str] = []
    found = []
    for split in (frozenset(), frozenset({0})):
        layers = chain(0.5)
        module = StageModule(layers, recompute).double()
        for name, layer in layers.items():
            layer.register_forward_pre_hook(lambda *_, name=name: calls.append(name))
        work = StageWork(module, wants_gradient, split=split)
        torch.manual_seed(2)
        output = work.forward(0, torch.randn(2, 5, 16, dtype=torch.float64), None)
        assert output is not None
        calls.clear()
        if split:
            returned = work.input_gradient(0, torch.ones_like(output))
            assert sorted(calls) == sorted(recompute)
            assert layers["e"].weight.grad is None
            work.weight_gradient(0)
        else:
            returned = work.backward(0, torch.ones_like(output))
        assert sorted(calls) == sorted(recompute)
        assert (returned is not None) == wants_gradient
        found.append([*(p.grad for p in module.parameters()), *([returned] * wants_gradient)])
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-14) for a, b in zip(*found, strict=True))
