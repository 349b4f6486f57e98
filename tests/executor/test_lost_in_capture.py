"""Profiles and runs refuse what a captured graph would lose, and recompute layers from the state of their forward."""

import copy
import random
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import count, cycle
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from helpers import stateful_models
from helpers.cut_by_hand import WIDTH
from helpers.gradient_models import CASES, Between, Checkpointed, Layer, counted, hooked, node_hooked
from helpers.plans import plan_for
from helpers.stages import stage_of
from pipeplan.core.errors import InputError, PlanError
from pipeplan.frontend.capture import capture_layers
from pipeplan.frontend.profile import profile
from pipeplan.frontend.workload import Workload
from pipeplan.schedules import FAMILIES
from pipeplan_executor.stages.split import fit

QUICK = {"micro_batches": (2,), "repeats": 1, "warmup": 0}


def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A batch for a trunk."""
    return torch.randn(samples, WIDTH, generator=generator), torch.randn(samples, WIDTH, generator=generator)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", ["a function", "a counter", "numpy's random numbers"])
def test_a_profile_refuses(name: str, device: str) -> None:
    """Whatever the device, before anything is measured."""
    with pytest.raises(InputError, match=CASES[name].refused):
        profile(CASES[name].build(), torch.randn(2, WIDTH), device=device, **QUICK)


@pytest.mark.parametrize("function", [hooked, counted])
def test_a_run_refuses(function: object) -> None:
    """A plan of a module that has been profiled before a hook or a counter came into it."""
    plain = Between(lambda self, x: torch.tanh(x))
    sequence = capture_layers(plain, torch.randn(2, WIDTH), both_modes=False)
    schedule = FAMILIES["gpipe"].write((1, 1), 2)
    plan = plan_for(plain, sequence.names, (0, 1, len(sequence.names)), schedule, held=sequence.parameters)
    fit(plan, Workload(plain, draw, nn.functional.mse_loss), both_modes=False)
    with pytest.raises(InputError, match=r"gradient_models.py, line \d+.*Stages"):
        fit(plan, Workload(Between(function), draw, nn.functional.mse_loss), both_modes=False)


def test_a_run_refuses_hooks_on_parameters() -> None:
    """Also in a chain, whose layers keep their own hooks."""
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    plan = plan_for(module, "01", (0, 1, 2), FAMILIES["gpipe"].write((1, 1), 2))
    module[1].weight.register_hook(lambda gradient: gradient * 0.2)
    with pytest.raises(PlanError, match=r"1.weight has a hook on its gradient \(.*test_lost_in_capture.py, line \d+\)"):
        fit(plan, Workload(module, draw, nn.functional.mse_loss))


def test_gradients_that_differ_are_refused_whatever_the_reason() -> None:
    """A profile compares the graph's gradients with the module's, where nothing else has shown a difference."""
    with (
        patch("pipeplan.frontend.capture.graph.export.nothing_on_gradients", lambda *_: nullcontext()),
        pytest.raises(InputError, match=r"the gradient of first.* differs from the module's own by"),
    ):
        profile(Between(node_hooked), torch.randn(2, WIDTH), **QUICK)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (stateful_models.contrastive, "no mean over samples"),
        (stateful_models.in_batch, "depend on the others of its batch"),
        (stateful_models.masked, "Workload.weight"),
        (stateful_models.masked_and_weighted, ""),
        (stateful_models.normed, ""),
        (stateful_models.counting, ""),
        (stateful_models.masking, ""),
        (stateful_models.hooked, ""),
    ],
)
def test_a_profile_says_which_loss_is_no_mean(build: object, said: str) -> None:
    """And is silent about means over samples, or over what the workload counts, whatever norms and dropout do."""
    told: list[str] = []
    profile(f"helpers.stateful_models:{build.__name__}", on_refusal=told.append, **QUICK)  # type: ignore[attr-defined]
    changes = [reason for reason in told if "train something else" in reason]
    assert len(changes) == bool(said)
    assert not said or said in changes[0]


class Remembers(nn.Module):
    """A layer that counts in a buffer, an attribute, a list and iterators, draws numbers of its own, and reads all."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.calls, self.log, self.numbers = nn.Linear(6, 6), 0, [], random.Random(3)
        self.turns = zip(count(1), cycle((1, 2, 5)), strict=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.count.add_(1)
        self.log.append(self.calls)
        drawn = self.numbers.random() * sum(next(self.turns))
        return torch.tanh(self.mix(x) * self.calls + sum(self.log) + drawn) * self.count.clone()


def test_recomputed_layers_begin_with_the_state_of_their_forward() -> None:
    """Two micro-batches are in flight; the first is recomputed when the state has gone on, and leaves it alone."""
    torch.manual_seed(0)
    layer = Remembers().double()
    whole = copy.deepcopy(layer)
    given = [torch.randn(3, 6, dtype=torch.float64) for _ in range(2)]
    work, module = stage_of({"a": layer}, (given[0].clone().requires_grad_(),), recompute=("a",))
    losses = [whole(x).square().sum() for x in given]
    outputs = [work.forward(number, (x,), None)[0] for number, x in enumerate(given)]
    for number in range(2):
        losses[number].backward()
        work.backward(number, (2 * outputs[number],))
    assert torch.allclose(module.layers[0].mix.weight.grad, whole.mix.weight.grad, rtol=1e-12)
    assert (layer.calls, float(layer.count), layer.log) == (2, 2.0, [1, 2])
    assert layer.numbers.getstate() == whole.numbers.getstate()


def test_recomputed_layers_draw_into_what_they_have_saved() -> None:
    """A slope is drawn after the tensor that holds it is saved; a recomputation that ended there would not have it."""
    layer = nn.Sequential(nn.Linear(6, 6), nn.RReLU()).double()
    whole, given = copy.deepcopy(layer), torch.randn(3, 6, dtype=torch.float64)
    work, module = stage_of({"a": layer}, (given.clone().requires_grad_(),), recompute=("a",))
    torch.manual_seed(1)
    loss = whole(given).square().sum()
    torch.manual_seed(1)
    (output,) = work.forward(0, (given,), None)
    loss.backward()
    work.backward(0, (2 * output,))
    assert torch.allclose(module.layers[0][0].weight.grad, whole[0].weight.grad, rtol=1e-12)


class Penalised(nn.Module):
    """A layer that adds the gradient of something to what it returns."""

    def __init__(self, create_graph: bool) -> None:
        super().__init__()
        self.mix, self.create_graph = nn.Linear(6, 6), create_graph

    def forward(self, x: Tensor) -> Tensor:
        z = x if x.requires_grad else x.detach().requires_grad_()
        (found,) = torch.autograd.grad(torch.tanh(self.mix(z)).sum(), z, create_graph=self.create_graph)
        return torch.tanh(self.mix(x)) + found


@pytest.mark.parametrize("create_graph", [False, True])
def test_gradients_within_a_forward_delay_no_weight_gradients(create_graph: bool) -> None:
    """A split backward adds those of the loss alone."""
    layer = Penalised(create_graph).double()
    whole, given = copy.deepcopy(layer), torch.randn(3, 6, dtype=torch.float64)
    work, module = stage_of({"a": layer}, (given.clone().requires_grad_(),), split={0})
    whole(given.clone().requires_grad_()).square().sum().backward()
    (output,) = work.forward(0, (given,), None)
    work.input_gradient(0, (2 * output,))
    work.weight_gradient(0)
    assert torch.allclose(module.layers[0].mix.weight.grad, whole.mix.weight.grad, rtol=1e-12)


@pytest.mark.parametrize("inside", [partial(Penalised, True), Checkpointed])
def test_layers_with_gradients_of_their_own_are_profiled(inside: Callable[[], nn.Module]) -> None:
    """Gradients within a forward and reentrant checkpoints allow less than others."""
    model = profile(nn.Sequential(nn.Linear(6, 6), inside(), nn.Linear(6, 6)), torch.randn(2, 6), **QUICK)
    assert model.names == ("0", "1", "2")
    assert all(cost.backward >= 0 for cost in model.profiles[0].costs)


def test_a_layer_that_differs_each_time_is_refused() -> None:
    """A closure counts, the calls that find shapes too, and is not set back for a recomputation."""
    calls = [0]

    def counted_outside(self: object, x: Tensor) -> Tensor:
        calls[0] += 1
        return x * calls[0]

    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), Layer(counted_outside), nn.Linear(WIDTH, WIDTH))
    schedule = FAMILIES["gpipe"].write((1, 1), 2)
    with pytest.raises(PlanError, match=r"layer 1 computes something else each time.*test_lost_in_capture.py, line"):
        fit(plan_for(module, "012", (0, 1, 3), schedule), Workload(module, draw, nn.functional.mse_loss))


class Holding(nn.Module):
    """A part that is scaled by a gain, by some function."""

    def __init__(self, made: Callable[[Any], Any]) -> None:
        super().__init__()
        self.mix, self.gain = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.ones(()))
        self.act = made(self)

    def scaled(self, x: Tensor) -> Tensor:
        """Scale by the gain."""
        return x * self.gain

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.mix(x))


def _patched(part: Any) -> Callable[[Tensor], Tensor]:
    whole = part.mix.forward
    part.mix.forward = lambda x: torch.tanh(whole(x))
    return torch.tanh


def _hooked(part: Any) -> Callable[[Tensor], Tensor]:
    part.mix.register_forward_hook(lambda _module, _given, made: made * part.gain)
    return torch.tanh


def _outside(part: Any) -> Callable[[Tensor], Tensor]:
    gain = part.gain

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = gain  # it is copied with the module

        def forward(self, x: Tensor) -> Tensor:
            return x * gain

    part.inner = Inner()
    return torch.tanh


HOLDING: dict[str, tuple[Callable[[Any], Any], str]] = {
    "an attribute": (lambda part: lambda x: x * part.gain, "1 has a function"),
    "a default": (lambda part: lambda x, gain=part.gain: x * gain, "1 has a function"),
    "a method inside": (lambda part: (lambda whole: lambda x: whole(x))(part.scaled), "1 has a function"),
    "a forward": (_patched, "1.mix has a function"),
    "a variable outside": (_outside, "1.inner has a function"),
    "a hook": (_hooked, "1.mix has a function"),
}


@pytest.mark.parametrize("name", HOLDING)
@pytest.mark.parametrize("front_end", ["auto", "graph"])
def test_functions_that_hold_a_module_are_refused(name: str, front_end: Any) -> None:
    """Stages are copies, in which such a function would go on with the original's weights."""
    made, said = HOLDING[name]
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), Holding(made), nn.Linear(WIDTH, WIDTH))
    with pytest.raises(InputError, match=rf"{said} \(.*test_lost_in_capture.py, line \d+\).*by a closure"):
        capture_layers(module, torch.randn(2, WIDTH), front_end=front_end)


@pytest.mark.parametrize(
    "made",
    [
        lambda part: part.scaled,
        lambda part: partial(Holding.scaled, part),
        lambda part: part.mix.compile(backend="eager") or torch.tanh,
        lambda _: lambda x: torch.tanh(x),
    ],
)
def test_functions_that_are_copied_with_the_module_are_kept(made: Callable[[Any], Any]) -> None:
    """Methods, functions that hold it by `functools.partial`, and what torch.compile puts into a module."""
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), Holding(made), nn.Linear(WIDTH, WIDTH))
    assert capture_layers(module, torch.randn(2, WIDTH), front_end="chain").names == ("0", "1", "2")


TABLES: dict[str, Tensor] = {}


def table_of(_: object, x: Tensor) -> Tensor:
    """Multiply by a table that is made once, and kept outside."""
    if "table" not in TABLES:
        TABLES["table"] = torch.arange(WIDTH, dtype=x.dtype, device=x.device)
    return x * TABLES["table"]


def generated() -> nn.Module:
    """A part that holds a generator."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), Holding(lambda _: (torch.tanh for _ in count())))


def sloped() -> nn.Module:
    """A part that takes gradients by torch.func."""
    slope = torch.func.vmap(torch.func.grad(lambda v: torch.logsumexp(v, 0)))
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), Holding(lambda _: slope), nn.Linear(WIDTH, WIDTH))


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (generated, "cannot be copied .*generator"),
        (sloped, "torch.func takes gradients in a forward.*create_graph"),
        (lambda: Between(table_of), "neither a parameter nor a buffer"),
    ],
)
def test_what_torch_cannot_do_is_told_in_other_words(build: Callable[[], nn.Module], said: str) -> None:
    """An error of torch would name neither the cause nor what works instead."""
    with pytest.raises(InputError, match=said):
        profile(build(), torch.randn(2, WIDTH), **QUICK)
