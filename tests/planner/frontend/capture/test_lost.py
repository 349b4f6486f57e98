"""What a graph of a forward cannot hold is refused before anything is measured; all else is right."""

import copy
import random

import pytest
import torch
from torch import Tensor, nn

from helpers.cut_by_hand import WIDTH
from helpers.cut_passes import differences, pass_through, relative
from helpers.gradient_models import CASES, Case
from pipeplan.core.errors import InputError, PlanError
from pipeplan.frontend.batch import call
from pipeplan.frontend.capture import capture_layers
from pipeplan.frontend.capture.draws import RepeatedDraws
from pipeplan.frontend.runnable import check_plain


def loss_of(outputs: Tensor | tuple[Tensor]) -> Tensor:
    """A loss whose gradients are no zeros."""
    outputs = outputs[0] if isinstance(outputs, tuple) else outputs
    return (outputs * torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype).view_as(outputs)).sin().mean()


@pytest.mark.parametrize("name", CASES)
def test_right_or_refused(name: str) -> None:
    """Loss, gradients and buffers of two passes are the module's own, or the reason is told; nothing is lost."""
    case: Case = CASES[name]
    torch.manual_seed(0)
    module, inputs = case.build().double(), torch.randn(4, WIDTH, dtype=torch.float64)
    if case.refused:
        with pytest.raises((InputError, PlanError), match=case.refused):
            check_plain(module)
            capture_layers(module, inputs)
        return
    check_plain(module)
    torch.manual_seed(0)
    whole = case.build().double()
    sequence = capture_layers(module, inputs)
    assert len(sequence.names) > 1
    for _ in range(2):
        with RepeatedDraws():
            expected = loss_of(call(whole, inputs))
            expected.backward()
            assert relative(pass_through(sequence, inputs, loss_of), expected) <= 1e-12
        assert max(differences(module, whole)) <= 1e-12


@pytest.mark.parametrize("name", ["a chain of which a part has no gradient", "a chain of which a part has 16 bits"])
def test_contexts_between_layers_are_no_chain(name: str) -> None:
    """A chain would lose them; a graph keeps them."""
    module, inputs = CASES[name].build(), torch.randn(4, WIDTH)
    with pytest.raises(InputError, match="'1' is called in a context of its own"):
        capture_layers(module, inputs, front_end="chain")
    sequence = capture_layers(module, inputs)
    found = pass_through(sequence, inputs, loss_of)
    expected = loss_of(copy.deepcopy(module)(inputs))
    assert relative(found, expected) <= 1e-6


def test_an_import_leaves_no_trace() -> None:
    """Watching a forward changes neither torch nor the random numbers of Python, nor the module."""
    before, own = random.getstate(), dict(vars(torch.Tensor))
    module = CASES["a function"].build()
    with pytest.raises(InputError):
        capture_layers(module, torch.randn(4, WIDTH))
    assert random.getstate() == before
    assert dict(vars(torch.Tensor)) == own
    assert "__init__" not in vars(torch.autograd.function.BackwardCFunction)


def test_draws_repeat_in_any_order_and_layout() -> None:
    """Dropout keeps everything, and noise is the same for a tensor and its transpose, at each call."""
    x = torch.randn(3, 5)
    with RepeatedDraws():
        before = torch.get_rng_state()
        assert torch.equal(nn.functional.dropout(x, 0.3), x)
        assert torch.equal(torch.randn_like(x), torch.randn_like(x.t().contiguous().t()))
        assert torch.equal(x.t().clone().normal_(), x.t().contiguous().clone().normal_())
        assert torch.equal(torch.get_rng_state(), before)
