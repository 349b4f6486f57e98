"""Whole profiles: their contents, and the state of the module afterwards."""

import copy
import weakref
from functools import cache
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import pipeplan
from helpers.quick import rarely
from helpers.torch_chains import CHAINS, convolutions, perceptron, transformer
from pipeplan.core.errors import InputError
from pipeplan.core.model import Model
from pipeplan.frontend.capture import Stages
from pipeplan.frontend.profile import profile

QUICK = {"repeats": 1, "warmup": 0}


def test_the_package_offers_profile_as_a_function() -> None:
    """`pipeplan.profile` stays callable although a package of that name holds it."""
    assert callable(pipeplan.profile)
    assert pipeplan.profile is profile


@cache
def profiled(name: str) -> tuple[nn.Sequential, Tensor, Model]:
    """A chain with its batch and its profile at two sizes, made once."""
    module, batch = CHAINS[name]()
    return module, batch, profile(module, batch, micro_batches=(2, 4), name=name, **QUICK)


@pytest.mark.parametrize("name", CHAINS)
def test_a_profile_is_complete(name: str) -> None:
    """Every layer has costs at every size; parameters, outputs and edges are exact; bytes grow with the size."""
    module, batch, model = profiled(name)
    assert model.names == tuple(path for path, _ in module.named_children())
    assert [layer.inputs for layer in model.layers] == [(), *((n,) for n in model.names[:-1])]
    expected = [4 * sum(p.numel() for p in layer.parameters()) for layer in module]
    assert [layer.parameters for layer in model.layers] == expected
    assert [p.micro_batch for p in model.profiles] == [2, 4]
    assert {p.device for p in model.profiles} == {"cpu-worker"}
    value = batch[:2]
    for n, layer in enumerate(module):
        value = layer(value.clone())
        small, large = (p.costs[n] for p in model.profiles)
        assert small.output == value.numel() * 4
        assert large.output == 2 * small.output
        assert small.saved <= large.saved <= 2 * small.saved
        assert small.forward > 0
        waits = any(isinstance(part, nn.Linear | nn.Conv2d | nn.Embedding) for part in layer.modules())
        assert (small.weight_gradient > 0) == waits
        assert (small.update > 0) == (model.layers[n].parameters > 0)
        assert small.input_gradient >= 0
    origin = model.profiles[0].provenance
    assert origin.how == "measured"
    assert origin.versions["torch"] == torch.__version__
    assert "thread" in origin.source


@pytest.mark.parametrize("apart", [False, True])
def test_a_profile_in_mixed_precision_passes_16_bits(apart: bool) -> None:
    """Results of products take 2 bytes per number; layers measured one by one give the same as all at once."""
    module = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8))
    if apart:
        module.to("meta")
    model = profile(module, torch.randn(4, 16), micro_batches=(4,), precision="bf16", **QUICK)
    (found,) = model.profiles
    assert [cost.output for cost in found.costs] == [4 * 32 * 2, 4 * 32 * 2, 4 * 8 * 2]
    assert [layer.work.output for layer in model.layers] == [32 * 2, 32 * 2, 8 * 2]
    assert all(cost.weight_gradient > 0 for cost in (found.costs[0], found.costs[2]))
    assert model.dtype == "float32"
    assert found.provenance.source.endswith(", bf16")


def test_operations_are_counted() -> None:
    """A profiled layer has its operations, so that other devices can be estimated."""
    module, batch = perceptron()
    work = [layer.work for layer in profile(module, batch, micro_batches=(2,), **QUICK).layers]
    assert work[2].forward_flops == work[2].input_gradient_flops == work[2].weight_gradient_flops == 2 * 64 * 32
    assert (work[0].input_gradient_flops, work[0].weight_gradient_flops) == (0, 2 * 16 * 64)
    assert work[1].forward_flops == 0
    assert work[1].saved == work[1].output == 64 * 4


def test_operations_of_a_transformer_block() -> None:
    """Attention counts (two products forward, five backward, as it computes its scores again); weights count once."""
    width, length = 16, 12
    module, batch = transformer()
    block = profile(module, batch, micro_batches=(2,), **QUICK).layers[1].work
    weights, scores = 2 * length * 12 * width**2, 4 * length * length * width
    assert block.forward_flops == weights + scores
    assert block.input_gradient_flops == weights + 5 * scores // 2
    assert block.weight_gradient_flops == weights


def test_operations_of_a_recurrent_layer() -> None:
    """An LSTM multiplies its inputs and its states by four gates' weights, and goes back by twice as much."""
    layers, length, width = 2, 5, 8
    stages = Stages(nn.LSTM(width, width, layers, batch_first=True), First())
    lstm = profile(stages, torch.randn(4, length, width), micro_batches=(2,), **QUICK).layers[0].work
    assert lstm.forward_flops == layers * 2 * length * 2 * 4 * width * width
    assert lstm.input_gradient_flops + lstm.weight_gradient_flops == 2 * lstm.forward_flops


class First(nn.Module):
    """Layer that returns the first of its inputs."""

    def forward(self, x: Tensor, *_: object) -> Tensor:
        """Return the first input unchanged."""
        return x


def test_the_module_is_left_as_it_was() -> None:
    """Weights, gradients, running statistics, modes, random numbers and threads are what they were."""
    module, batch = convolutions()
    module(batch).sum().backward()
    module[6].eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    gradients = [parameter.grad for parameter in module.parameters()]
    values = [gradient.clone() for gradient in gradients]
    images = batch.clone()
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    profile(module, batch, micro_batches=(1, 2), optimizer="adam", threads=2, **QUICK)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    for parameter, gradient, value in zip(module.parameters(), gradients, values, strict=True):
        assert parameter.grad is gradient
        assert torch.equal(gradient, value)
    assert torch.equal(batch, images)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    assert not module[6].training
    assert not any(part._forward_hooks for part in module.modules())


class Watched(nn.Linear):
    """Linear layer that counts the layers of its class with values at the same time."""

    alive: ClassVar[weakref.WeakSet] = weakref.WeakSet()
    most: ClassVar[int] = 0

    def reset_parameters(self) -> None:
        if self.weight.is_meta:
            return
        super().reset_parameters()
        Watched.alive.add(self.weight)
        Watched.most = max(Watched.most, sum(1 for weight in Watched.alive if not weight.is_meta))


def test_a_model_without_values_never_exists_whole() -> None:
    """On the meta device each layer gets its values alone, and loses them before the next one comes."""
    with torch.device("meta"):
        module = nn.Sequential(*(Watched(32, 32) for _ in range(5)))
    originals = list(module.parameters())
    Watched.alive.clear()
    Watched.most = 0
    model = profile(module, torch.randn(4, 32), micro_batches=(1, 4), **QUICK)
    assert Watched.most == 1
    assert len(Watched.alive) == 0
    assert all(now is then for now, then in zip(module.parameters(), originals, strict=True))
    assert len(model.layers) == 5


@pytest.mark.parametrize("name", ["perceptron", rarely("convolutions"), rarely("transformer")])
def test_layer_by_layer_gives_the_same_bytes(name: str) -> None:
    """A module without values has the layers, parameters, outputs and total saved bytes of one with values."""
    module, batch, whole = profiled(name)
    single = profile(copy.deepcopy(module).to("meta"), batch, micro_batches=(2,), **QUICK)
    assert single.fingerprint == whole.fingerprint
    a, b = whole.profiles[0].costs, single.profiles[0].costs
    assert [cost.output for cost in a] == [cost.output for cost in b]
    assert sum(cost.saved for cost in a) == sum(cost.saved for cost in b)


def test_inputs_can_be_drawn_with_targets() -> None:
    """A function that draws pairs feeds the loss, and its time is in the last layer."""
    module, _ = perceptron()
    asked = []

    def draw(samples: int) -> tuple[Tensor, Tensor]:
        asked.append(samples)
        return torch.randn(samples, 16), torch.zeros(samples, dtype=torch.long)

    model = profile(module, draw, micro_batches=(3,), loss=nn.functional.cross_entropy, **QUICK)
    assert asked == [3, 6]  # the second for its loss, beside that of two micro-batches
    assert any("loss" in note for note in model.notes)


def test_examples_are_cut_and_repeated() -> None:
    """A batch of another size is fitted to every micro-batch size, targets with it."""
    module, batch = perceptron()
    targets = torch.arange(8)
    shapes = []

    def loss(outputs: Tensor, wanted: Tensor) -> Tensor:
        shapes.append((len(outputs), wanted.tolist()))
        return outputs.sum()

    profile(module, (batch,), micro_batches=(2, 10), loss=loss, targets=targets, **QUICK)
    assert (2, [0, 1]) in shapes
    assert (10, [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]) in shapes


def test_progress_is_told() -> None:
    """Each round of each size gives one line."""
    module, batch = perceptron()
    lines: list[str] = []
    profile(module, batch, micro_batches=(1, 2), repeats=2, warmup=1, on_progress=lines.append)
    assert len(lines) == 6
    assert lines[-1].startswith("6/6")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"micro_batches": ()}, "micro_batches"),
        ({"micro_batches": (0,)}, "micro_batches"),
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"optimizer": "lamb"}, "choose from sgd, momentum, adam"),
        ({"device": "tpu"}, "choose from cpu, cuda, meta"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict, message: str) -> None:
    """The error suggests a correct argument."""
    module, batch = perceptron()
    with pytest.raises(InputError, match=message):
        profile(module, batch, **arguments)


def test_a_draw_of_the_wrong_size_is_refused() -> None:
    """The first axis has to count samples."""
    module, _ = perceptron()
    with pytest.raises(InputError, match=r"example_inputs\(1\) returned shape \(7, 16\)"):
        profile(module, lambda _: torch.randn(7, 16), **QUICK)
