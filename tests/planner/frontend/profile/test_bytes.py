"""Saved bytes and workspace, compared with counts without the profiler's own code."""

from itertools import combinations

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helpers.torch_chains import CHAINS, perceptron
from pipeplan.frontend.profile.meter import CpuMeter
from pipeplan.frontend.profile.passes import Feed, run_pass
from pipeplan.frontend.profile.saved import address, saved_bytes, workspace_bytes

CPU = torch.device("cpu")


class Births(TorchDispatchMode):
    """Recorder of every storage that an operation returns, without keeping it alive."""

    def __init__(self) -> None:
        super().__init__()
        self.born: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self.born[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return result

    def alive(self, besides: tuple[Tensor, ...]) -> int:
        """Bytes of all storages alive, without those of ``besides``."""
        known = {tensor.untyped_storage()._cdata for tensor in besides}
        return sum(size for key, (ref, size) in self.born.items() if key not in known and not ref.expired())


@pytest.mark.parametrize("name", CHAINS)
def test_saved_bytes_are_what_every_stage_holds(name: str) -> None:
    """Bytes alive after a stage's forward are its layers' saved bytes, and its output if unsaved, at every cut."""
    module, batch = CHAINS[name]()
    layers = list(module)
    counted = saved_bytes(layers, Feed((batch,), (False,)))
    with torch.no_grad():
        received = [batch]
        for layer in layers:
            received.append(layer(received[-1].clone()))
    for a, b in combinations(range(len(layers) + 1), 2):
        start = received[a].detach().clone()
        value = start.requires_grad_() if a else start
        if a and getattr(layers[a], "inplace", False):
            continue  # a stage must not begin in place
        with Births() as births:
            for layer in layers[a:b]:
                value = layer(value)
        lasting = tuple(t for layer in layers for t in (*layer.parameters(), *layer.buffers()))
        up_to = saved_bytes(layers[:b], Feed((batch,), (False,)))
        read_later = sum(counted.saved[:b]) > sum(up_to.saved)
        loose = not read_later and address(up_to.outputs[0]) not in up_to.kept
        expected = sum(counted.saved[a:b]) + counted.output[b - 1] * loose
        assert births.alive((start, *lasting)) == expected, (a, b)
        del value


def test_saved_bytes_by_hand() -> None:
    """A ReLU's result is kept, the linear output before it is not; layer norm keeps mean and deviation of each row."""
    module, batch = perceptron()
    counted = saved_bytes(list(module), Feed((batch,), (False,)))
    rows, size = 8, 4
    assert counted.output == tuple(rows * size * width for width in (64, 64, 32, 32, 32, 8))
    assert counted.saved == (0, rows * 64 * size, rows * 32 * size, rows * (32 + 2) * size, rows * 32 * size, 0)
    assert address(batch) in counted.kept
    assert [tuple(output.shape) for output in counted.outputs] == [(8, 8)]
    assert address(counted.outputs[0]) not in counted.kept


class Idle(nn.Module):
    """A layer that squares what it reads, and has a branch that saves a tensor for nothing."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        values.exp().sigmoid()
        return values * values


def test_equal_layers_save_equal_bytes_if_branches_are_idle() -> None:
    """What an idle branch saves counts with its layer, though its address is free for the tensors of later ones."""
    batch = torch.randn(64, 64)
    counted = saved_bytes([nn.Linear(64, 64), *(Idle() for _ in range(4))], Feed((batch,), (False,)))
    assert set(counted.saved[1:-1]) == {3 * 64 * 64 * 4}


def test_loss_keeps_what_it_needs_in_the_last_layer() -> None:
    """Cross entropy keeps its log-probabilities, which the last layer has to hold."""
    module, batch = perceptron()
    targets = torch.zeros(8, dtype=torch.long)
    plain = saved_bytes(list(module), Feed((batch,), (False,)))
    lossy = saved_bytes(list(module), Feed((batch,), (False,), nn.functional.cross_entropy, targets))
    assert lossy.saved[:-1] == plain.saved[:-1]
    assert lossy.saved[-1] - plain.saved[-1] >= 8 * 8 * 4


def test_meter_sees_levels_and_peaks() -> None:
    """Bytes alive at each mark and the peak since the one before, from the allocator."""
    with CpuMeter() as meter:
        kept = torch.empty(1000, dtype=torch.uint8)
        meter.mark()
        gone = torch.empty(5000, dtype=torch.uint8)
        del gone
        meter.mark()
        meter.mark()
        del kept
        meter.mark()
    assert meter.readings() == [(1000, 1000), (1000, 6000), (1000, 1000), (0, 1000)]


def test_workspace_by_hand() -> None:
    """Backward of a linear layer needs the gradients in transit and a fresh weight gradient; ReLU no weights."""
    layers = [nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256, bias=False)]
    feed = Feed((torch.randn(32, 256),), (True,))
    run_pass(layers, feed, lambda _: None, lambda _: None)
    saved = saved_bytes(layers, feed)
    spaces = workspace_bytes(layers, feed, saved.saved, CPU)
    activation, weights = 32 * 256 * 4, 256 * 256 * 4
    assert spaces[2] == 3 * activation + weights  # output (which no layer saves), its gradient, input, weight gradient
    assert spaces[1] == 4 * activation  # last output and its gradient still, the gradient that comes, the one that goes
    assert spaces[0] == 4 * activation + weights + 256 * 4  # the same, and gradients of weights and bias


@pytest.mark.parametrize("name", CHAINS)
def test_workspace_and_saved_bytes_cover_the_peak(name: str) -> None:
    """No moment of a pass over the whole chain needs more than all saved bytes and the largest workspace."""
    module, batch = CHAINS[name]()
    layers = list(module)
    feed = Feed((batch,), (False,))
    run_pass(layers, feed, lambda _: None, lambda _: None)
    saved = saved_bytes(layers, feed)
    spaces = workspace_bytes(layers, feed, saved.saved, CPU)
    with CpuMeter() as meter:
        run_pass(layers, feed, lambda _: None, lambda _: None)
        meter.mark()
    peak = meter.readings()[0][1]
    assert peak <= sum(saved.saved) + max(spaces)
    assert peak >= sum(saved.saved)
