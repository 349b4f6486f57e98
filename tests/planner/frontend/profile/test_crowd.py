"""Profiles beside background workers."""

import multiprocessing

import pytest
import torch
from torch import nn

from helpers.torch_chains import perceptron
from pipeplan.core.errors import InputError, PipeplanError
from pipeplan.frontend.profile import profile
from pipeplan.frontend.profile.measure import background_workers
from pipeplan.frontend.profile.passes import Feed


def test_siblings_work_apart_and_go() -> None:
    """A background worker runs a pass before the measurement, adds to no gradient here, and ends afterwards."""
    passes = multiprocessing.get_context("fork").Value("i", 0)

    class Counted(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with passes.get_lock():
                passes.value += 1
            return super().forward(x)

    layers = [Counted(4, 4)]
    before = set(multiprocessing.active_children())
    with background_workers(1, layers, Feed((torch.ones(2, 4),), (True,))):
        assert passes.value >= 1
        assert len(set(multiprocessing.active_children()) - before) == 1
    assert set(multiprocessing.active_children()) == before
    assert layers[0].weight.grad is None


def test_a_crowded_profile_says_so() -> None:
    """The provenance records that other workers were busy."""
    module, batch = perceptron()
    model = profile(module, batch, micro_batches=(2,), repeats=1, warmup=0, crowd=2)
    assert "2 workers busy" in model.profiles[0].provenance.source


class _Ending(nn.Linear):
    def forward(self, _: torch.Tensor) -> torch.Tensor:
        raise SystemExit


def test_a_sibling_that_ends_is_not_awaited() -> None:
    """The error says what to do, at once."""
    feed = Feed((torch.ones(2, 4),), (True,))
    with (
        pytest.raises(PipeplanError, match="ended before its first pass"),
        background_workers(1, [_Ending(4, 4)], feed),
    ):
        pytest.fail("it was awaited")
    assert not multiprocessing.active_children()


def test_an_empty_crowd_is_refused() -> None:
    """A crowd of zero is refused, as the measured worker counts."""
    module, batch = perceptron()
    with pytest.raises(InputError, match="this one included"):
        profile(module, batch, crowd=0)
