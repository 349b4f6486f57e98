"""One stage without a network: its computations, and its memory per micro-batch."""

import copy
import weakref
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from helpers.stages import stage_of
from pipeplan.core.errors import PlanError
from pipeplan.frontend.profile.meter import CpuMeter
from pipeplan.frontend.profile.passes import Feed
from pipeplan.frontend.profile.saved import saved_bytes
from pipeplan_executor.stages.stage_module import evaluating
from pipeplan_executor.zoo.decoder import Block


def chain(dropout: float = 0.0) -> dict[str, nn.Module]:
    """Two transformer blocks with dropout between linear layers."""
    torch.manual_seed(1)
    layers = {"a": nn.Linear(16, 16), "b": Block(16, 2, 64), "c": nn.Dropout(dropout), "d": Block(16, 2, 64)}
    return layers | {"e": nn.Linear(16, 16)}


def gradients(recompute: tuple[str, ...], dropout: float) -> tuple[Tensor, ...]:
    """Input gradient and parameter gradients of two micro-batches in flight at once."""
    torch.manual_seed(2)
    inputs = torch.randn(2, 3, 5, 16, dtype=torch.float64)
    layers = {name: layer.double() for name, layer in copy.deepcopy(chain(dropout)).items()}
    work, module = stage_of(layers, (inputs[0].requires_grad_(),), recompute=recompute)
    torch.manual_seed(2)
    outputs = [work.forward(m, (inputs[m].detach(),), None) for m in range(2)]
    found = [work.backward(m, (torch.ones_like(output),)) for m, (output,) in enumerate(outputs)]
    return (*(g for (g,) in found), *(p.grad for p in module.parameters() if p.grad is not None))


@pytest.mark.parametrize("recompute", [("b",), ("c",), ("b", "d"), ("a", "b", "c", "d", "e")])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_recomputed_layers_change_no_gradient(recompute: tuple[str, ...], dropout: float) -> None:
    """Recomputation gives the same gradients to the last bit, dropout's mask included."""
    plain, again = gradients((), dropout), gradients(recompute, dropout)
    assert len(plain) == len(again) == 2 + 28
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


@pytest.mark.parametrize("split", [frozenset(), frozenset({0, 1, 2}), frozenset({1})])
def test_every_micro_batch_has_its_own_weight(split: frozenset[int]) -> None:
    """The gradients of a stage with the loss are those of the weighted sum, in whatever order backwards run."""
    weights, inputs = (0.5, 0.125, 0.375), torch.randn(3, 4, 6, dtype=torch.float64)
    layer = nn.Linear(6, 2).double()
    work, module = stage_of({"a": copy.deepcopy(layer)}, (inputs[0],), split=split, loss=_mean_square)
    work.weights = weights
    for number in range(3):
        work.forward(number, (inputs[number],), torch.zeros(()))
    for number in (2, 0, 1):
        if number in split:
            work.input_gradient(number, ())
            work.weight_gradient(number)
        else:
            work.backward(number, ())
    sum(weight * _mean_square(layer(x)) for weight, x in zip(weights, inputs, strict=True)).backward()
    for ours, theirs in zip(module.parameters(), layer.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, rtol=1e-12)


def test_a_forward_that_writes_into_what_an_earlier_backward_needs_is_explained() -> None:
    """With two micro-batches in flight the error says what the forward does and what to plan; with one all is well."""
    inputs = torch.randn(2, 4, 6, requires_grad=True)
    work, _ = stage_of({"a": _Following()}, (inputs[0],))
    ones = (torch.ones(4, 6),)
    work.forward(0, (inputs[0].detach(),), None)
    work.backward(0, ones)
    for number in (1, 2):
        work.forward(number, (inputs[number - 1].detach(),), None)
    with pytest.raises(PlanError, match=r"changes a tensor in place .* plan one stage \(--depths 1\)"):
        work.backward(1, ones)


class _Following(nn.Module):
    """Multiplies by a buffer that changes in each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("teacher", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        self.teacher.mul_(0.9)
        return x * self.teacher


def _mean_square(outputs: Tensor, *_: object) -> Tensor:
    return outputs.square().mean()


@pytest.mark.parametrize("recompute", [(), ("b",), ("d",), ("b", "d"), ("a", "b", "c", "d", "e")])
def test_a_stage_holds_what_the_plan_counts(recompute: tuple[str, ...]) -> None:
    """In flight, a micro-batch takes what layers save, and of recomputed ones the output."""
    layers = chain(0.5)
    inputs = torch.randn(64, 32, 16)
    held = saved_bytes(tuple(layers.values()), Feed((inputs,), (True,)))
    rows = zip(layers, held.saved, held.output, strict=True)
    counted = sum(output if name in recompute else saved for name, saved, output in rows)
    work, _ = stage_of(layers, (inputs.detach().requires_grad_(),), recompute=recompute)
    work.backward(0, (torch.ones_like(*work.forward(0, (inputs,), None)),))  # gradients are there from now on
    with CpuMeter() as meter:
        meter.mark()
        output = work.forward(1, (inputs,), None)
        del output  # the network has taken it
        meter.mark()
    level, _ = meter.readings()[-1]
    block = inputs.numel() * inputs.element_size()
    assert counted - 1.5 * block <= level <= counted + 0.1 * block


@pytest.mark.parametrize("last", [Block(16, 2, 64), nn.Flatten(), nn.Identity()])
@pytest.mark.parametrize("recompute", [(), ("t",), ("a", "t", "z")])
def test_split_backwards_equal_joined_ones(last: nn.Module, recompute: tuple[str, ...]) -> None:
    """I and W give B's gradients, also where the output is a view or a tensor that the layers saved."""
    found = []
    inputs = torch.cos(torch.arange(2 * 5 * 16, dtype=torch.float64)).view(2, 5, 16).requires_grad_()
    for split in (frozenset(), frozenset({0})):
        layers = {"a": nn.Linear(16, 16), "t": nn.Tanh(), "z": copy.deepcopy(last)}
        for layer in layers.values():
            layer.double()
        work, module = stage_of(layers, (inputs,), split=split, recompute=recompute)
        with torch.no_grad():
            for number, parameter in enumerate(module.parameters()):
                parameter.copy_(torch.sin(torch.arange(parameter.numel()) + number).view_as(parameter))
        (output,) = work.forward(0, (inputs.detach(),), None)
        gradient = torch.sin(output)
        if split:
            returned = work.input_gradient(0, (gradient,))
            work.weight_gradient(0)
        else:
            returned = work.backward(0, (gradient,))
        found.append([*returned, *(p.grad for p in module.parameters())])
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-14) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("wants_gradient", [False, True])
@pytest.mark.parametrize("recompute", [(), ("b", "d"), ("a", "b", "c", "d", "e")])
def test_split_backwards_recompute_once(wants_gradient: bool, recompute: tuple[str, ...]) -> None:
    """I runs a recomputed layer once more and W does not; the gradients are those of a joined backward."""
    calls: list[str] = []
    found = []
    inputs = torch.randn(2, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for split in (frozenset(), frozenset({0})):
        layers = {name: layer.double() for name, layer in chain(0.5).items()}
        given = inputs.clone().requires_grad_(wants_gradient)
        work, module = stage_of(layers, (given,), recompute=recompute, split=split)
        for name, layer in layers.items():
            layer.register_forward_pre_hook(lambda *_, name=name: calls.append(name))
        torch.manual_seed(2)
        (output,) = work.forward(0, (inputs,), None)
        calls.clear()
        if split:
            returned = work.input_gradient(0, (torch.ones_like(output),))
            assert sorted(calls) == sorted(recompute)
            assert layers["e"].weight.grad is None
            work.weight_gradient(0)
        else:
            returned = work.backward(0, (torch.ones_like(output),))
        assert sorted(calls) == sorted(recompute)
        assert len(returned) == wants_gradient
        found.append([*(p.grad for p in module.parameters()), *returned])
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-14) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize(("first", "saves"), [(nn.Softmax(-1), False), (nn.Linear(8, 8), True)])
@pytest.mark.parametrize("split", [frozenset(), frozenset({0})])
def test_an_input_lives_until_its_last_use(first: nn.Module, saves: bool, split: frozenset[int]) -> None:
    """Received tensors are released when the layers have read them, or in the backward if one of them saved them."""
    work, _ = stage_of({"first": first, "then": nn.Tanh()}, (torch.zeros(4, 8, requires_grad=True),), split=split)
    memory = np.ones((4, 8), dtype=np.float32)
    there = weakref.ref(memory)
    arrived = torch.from_numpy(memory)  # keeps the array as long as the tensor's memory is used
    del memory
    (output,) = work.forward(0, (arrived,), None)
    del arrived
    assert (there() is not None) == saves
    if split:
        work.input_gradient(0, (output,))
        work.weight_gradient(0)
    else:
        work.backward(0, (output,))
    assert there() is None


@pytest.mark.parametrize("fails", [False, True])
def test_each_part_is_in_its_own_mode_behind_an_evaluation(fails: bool) -> None:
    """Also one whose mode the user has set, like frozen statistics, and if the evaluation ends in an error."""
    parts = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4).eval(), nn.Sequential(nn.Dropout(), nn.Dropout().eval()))
    before = [part.training for part in parts.modules()]
    with suppress(ValueError), evaluating([parts]):
        assert not any(part.training for part in parts.modules())
        if fails:
            raise ValueError
    assert [part.training for part in parts.modules()] == before


def test_the_last_stage_keeps_no_outputs() -> None:
    """Between forward and backward the last stage holds what its layers and the loss saved, and not their output."""
    outputs: list[weakref.ref[Tensor]] = []

    def loss(output: Tensor, _: Tensor) -> Tensor:
        outputs.append(weakref.ref(output))
        return (output * 2.0).sum()  # neither factor's tensor is needed for the backward

    work, _ = stage_of({"a": nn.Linear(4, 4)}, (torch.zeros(3, 4, requires_grad=True),), loss=loss)
    for number in range(3):
        assert work.forward(number, (torch.randn(3, 4),), torch.zeros(())) == ()
    assert [each() for each in outputs] == [None] * 3
    (returned,) = work.backward(1, ())
    assert returned.shape == (3, 4)


def test_nothing_is_left_of_a_step_that_broke_off() -> None:
    """Between I and W a stage holds delayed weight gradients; cleared, it holds nothing, and the next step is exact."""
    inputs = torch.randn(64, 32, 16)
    work, module = stage_of(chain(), (inputs.detach().requires_grad_(),), split={0, 1, 2})
    ones = (torch.ones_like(inputs),)

    def step() -> list[Tensor]:
        module.zero_grad(set_to_none=False)
        work.forward(0, (inputs,), None)
        work.input_gradient(0, ones)
        work.weight_gradient(0)
        return [parameter.grad.clone() for parameter in module.parameters()]

    step()
    expected = step()
    with CpuMeter() as meter:
        meter.mark()
        work.forward(0, (inputs,), None)
        work.forward(1, (inputs,), None)
        work.input_gradient(0, ones)
        meter.mark()
        handle = module.register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            work.forward(2, (inputs,), None)
        handle.remove()
        work.clear()
        meter.mark()
    levels = [level for level, _ in meter.readings()]
    assert levels[1] > 10 * inputs.numel() * inputs.element_size()
    assert levels[2] == 0
    assert all(torch.equal(a, b) for a, b in zip(step(), expected, strict=True))
