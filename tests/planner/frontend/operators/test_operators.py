"""Operators of layers: what is followed through views, what is not, figures, names of weights."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from helpers.captured_models import tiny_gpt2, tiny_llama
from helpers.distributed import vocabulary_workers
from helpers.distributed.models import HAS_TRANSFORMERS, tiny_decoder, tiny_mlp, tiny_resnet, tiny_tied
from helpers.fused_models import tiny_fused
from helpers.layer_operators import LayersOperators, chain, eager, fused, layers_operators, llama_like
from helpers.profile_of import profile_of
from pipeplan.core.operators import Attention, CrossEntropy
from pipeplan.core.weight_names import shard_name, weight_name
from pipeplan.frontend.capture import Stages
from pipeplan.frontend.workload import Workload
from pipeplan.io.model_file import read_model, write_model


@pytest.fixture(scope="module")
def decoder() -> LayersOperators:
    """The decoder of the zoo."""
    return layers_operators(tiny_decoder)


def test_heads_side_by_side_connect(decoder: LayersOperators) -> None:
    """Attention by heads splits the outputs of the matrix ahead, and the inputs of the one behind, into as many."""
    found = decoder.operators("block0")
    assert found["attention"].loops == {"head": 2, "token": 6}
    assert found["attention"].reads == {"query_key_value": ("sample", "token", "head")}
    assert found["attention"].makes == ("sample", "head", "token", "value")
    assert found["query_key_value"].loops == {"in": 16, "out": 48, "token": 6}
    assert found["attention_out"].loops == {"in": 2, "out": 16, "token": 6}
    assert found["attention_out"].reads["attention"][1] == "in"
    assert [(w.name, w.loops) for w in found["narrow"].weights] == [
        ("narrow.weight", ("out", "in")),
        ("narrow.bias", ("out",)),
    ]
    assert found["gelu"].loops == {"out": 32, "token": 6}
    assert found["perceptron_norm"].loops == {"token": 6}


def test_equal_layers_share_a_graph(decoder: LayersOperators) -> None:
    """Three blocks have the operators of the first."""
    assert decoder.found.names == ("embedding", "block0", "block0", "block0", "norm", "head")


def test_figures_are_those_of_one_sample(decoder: LayersOperators) -> None:
    """Bytes do not depend on the number of samples; what autograd saves is kept."""
    for samples in (1, 3):
        assert layers_operators(tiny_decoder, samples).found.graphs["block0"] == decoder.graph("block0")
    found = decoder.operators("block0")
    assert decoder.graph("block0").inputs == {"input": 6 * 16 * 4}
    assert found["widen"].output == 6 * 32 * 4
    assert found["widen"].forward_flops == found["widen"].weight_gradient_flops == 2 * 6 * 16 * 32
    assert not found["attention_out"].kept  # an addition saves nothing
    assert all(found[name].kept for name in ("query_key_value", "attention", "widen", "gelu", "perceptron_norm"))
    head = decoder.operators("head")
    assert list(head) == ["linear", "log softmax", "nll loss forward"]
    assert head["log softmax"].reads == {"linear": ("sample", "token", "out")}


@pytest.mark.parametrize("build", [tiny_decoder, vocabulary_workers.ignoring, vocabulary_workers.weighted])
def test_a_cross_entropy_is_split_along_its_classes(build: Callable[[], Workload]) -> None:
    """A mean or sum over words, also without padding or with weights of classes; what follows it is whole."""
    found = layers_operators(build)
    assert found.graph("head").loss == CrossEntropy(("log softmax", "nll loss forward"), 6 * 4)
    head = found.operators("head")
    assert {name: each.loops for name, each in head.items() if name != "linear" and each.loops} == {
        "log softmax": {"out": 50},
        "nll loss forward": {"out": 50},
    }
    shifted = layers_operators(vocabulary_workers.shifted).graph("head").loss
    assert shifted is not None and shifted.rows == 5 * 4


@pytest.mark.parametrize("name", ["masked", "smoothed", "reused", "dropping", "shaken"])
def test_other_losses_are_whole(name: str) -> None:
    """Losses of single words, smoothed labels, logarithms that another term reads, and what draws random numbers."""
    build: Callable[[], Workload] = getattr(vocabulary_workers, name)
    found = layers_operators(build)
    assert found.graph("head").loss is None
    assert not any(each.loops for name, each in found.operators("head").items() if name != "linear")


def test_grouped_queries_limit_heads() -> None:
    """Two groups of keys allow two parts of four heads; rotated halves are followed."""
    found = layers_operators(llama_like).operators("1")
    assert found["attention"].loops == {"head": 2, "token": 6}
    assert found["attention"].reads["value"] == ("sample", "token", "head")
    assert found["out"].loops["in"] == 2
    assert found["down"].loops == {"in": 32, "out": 16, "token": 6}
    assert found["cat"].loops == {"out": 4, "token": 6}


class Turned(nn.Module):
    """Adds along samples and tokens, behind views that merge or swap them, and positions."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to (batch, length)."""
        merged = x.reshape(-1, x.shape[2]).tanh().reshape(x.shape)
        turned = x.transpose(0, 1).sigmoid().transpose(0, 1)
        placed = merged + turned + torch.arange(6.0, device=x.device)[:, None].exp()
        return nn.functional.softmax(placed, 1).mean(2).exp()


def test_operators_by_tokens() -> None:
    """All that follow tokens have that loop, products and attention by the plan; images have none."""
    found = layers_operators(llama_like).operators("1")
    assert {name for name, each in found.items() if "token" not in each.loops} == {"pow#2", "mean#2"}  # the loss
    products = {"query", "key", "value", "out", "gate", "up", "down"}
    assert {name for name, each in found.items() if each.by_plan} == products | {"attention"}
    assert {name for name, each in found.items() if each.product} == products
    assert found["attention"].attention == Attention(4 * 6 * 16, 2 * 4 * 6 * 16, 4, causal=True)
    assert all("token" in found[name].makes for name in ("query", "attention", "out", "down"))
    odd = layers_operators(lambda: chain(Turned()), loss=False).operators("1")
    assert {name for name, each in odd.items() if "token" in each.loops} == {"sigmoid", "add#2", "mean", "exp"}
    images = layers_operators(tiny_resnet).found.graphs.values()
    assert not any("token" in (*each.loops, *each.makes) for graph in images for each in graph.operators)


@pytest.mark.skipif(not HAS_TRANSFORMERS, reason="transformers is not installed")
def test_parts_of_blocks_have_several_inputs() -> None:
    """Inputs and outputs of captured layers are in order; pairs connect beside a residual and a mask."""
    gpt2 = layers_operators(tiny_gpt2)
    wide, narrow = (gpt2.graph(f"transformer.h.0.mlp.{name}") for name in ("c_fc", "c_proj"))
    assert (list(wide.inputs), wide.outputs) == (["input"], ("input", "mul#4"))
    assert narrow.inputs == {"input": 12 * 16 * 4, "input#2": 12 * 64 * 4}
    assert narrow.operators[0].reads == {"input#2": ("sample", "token", "in")}
    assert narrow.operators[0].loops == {"in": 64, "out": 16, "token": 12}
    llama = layers_operators(tiny_llama, group=("LlamaMLP",))
    name = next(each for each in llama.sequence.names if each.endswith("self_attn"))
    graph, found = llama.graph(name), llama.operators(name)
    assert "input#2" in graph.without_gradient
    assert graph.outputs[0] == "input#2"
    assert found["attention"].loops == {"head": 2, "token": 12}
    assert found["o_proj"].loops["in"] == 2
    perceptron = llama.operators(name.replace("self_attn", "mlp"))
    assert perceptron["down_proj"].loops == {"in": 32, "out": 16, "token": 12}


def test_attention_as_products_is_followed() -> None:
    """Products of all heads of all samples at once, softmax and dropout are split by heads."""
    found = layers_operators(eager).operators("1")
    assert [found[name].loops for name in ("matmul", "softmax", "dropout", "matmul#2")] == [{"out": 4}] * 4
    assert found["dropout"].kept
    assert found["out"].loops["in"] == 4


def test_queries_before_keys_connect_group_by_group() -> None:
    """Attention splits each group of a fused matrix by heads: queries, keys and values, as many as there are."""
    model = layers_operators(tiny_fused)
    sliced, nested = model.operators("sliced"), model.operators("nested")
    assert sliced["fused"].groups == nested["fused"].groups == {"out": (2, 1, 1)}
    assert sliced["fused"].loops == {"in": 16, "out": 8, "token": 6}
    assert sliced["attention"].loops == {"head": 2, "token": 6}  # heads of keys and values
    assert sliced["attention"].reads == {"fused": ("sample", "token", "head")}
    assert sliced["out"].loops == {"in": 2, "out": 16, "token": 6}
    unbound, selected = model.operators("unbound"), model.operators("selected")
    assert unbound["fused"].groups == selected["self_attn"].groups == {"out": (1, 1, 1)}
    assert unbound["attention"].loops == selected["attention"].loops == {"head": 4, "token": 6}
    assert layers_operators(fused).operators("1")["attention"].loops == {"head": 4, "token": 6}


def test_gates_in_one_matrix_connect() -> None:
    """So do a gate and what it multiplies; the operators behind them have plain loops, and tokens are followed."""
    found = layers_operators(tiny_fused).operators("sliced")
    assert found["gate_up"].groups == {"out": (1, 1)}
    assert found["silu"].loops == found["mul"].loops == {"out": 32, "token": 6}
    assert found["mul"].reads["gate_up"] == ("sample", "token", "out")
    assert not found["silu"].groups and not found["mul"].groups
    assert found["down"].loops["in"] == 32


class Ranges(nn.Module):
    """Reads ranges of what a matrix makes: behind an elementwise operation, of odd lengths, or overlapping."""

    def __init__(self, *ranges: slice) -> None:
        super().__init__()
        self.wide, self.ranges = nn.Linear(16, 48), ranges

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to numbers of each range."""
        y = self.wide(x).tanh()
        return torch.cat([y[..., each].exp() for each in self.ranges], -1)


@pytest.mark.parametrize(
    ("ranges", "groups", "split"),
    [
        ((slice(16), slice(16, 48)), (1, 2), 2),
        ((slice(16, 32),), (1, 1, 1), 1),  # what nothing reads is a group too
        ((slice(0, 32), slice(16, 48)), (1, 1, 1), 2),  # two groups of each overlap
        ((slice(15), slice(15, 48)), (5, 11), 2),
        ((slice(7), slice(7, 48)), (), 0),  # 7 and 41 have no parts in common
        ((slice(0, 48, 2),), (), 0),
    ],
)
def test_ranges_are_groups(ranges: tuple[slice, ...], groups: tuple[int, ...], split: int) -> None:
    """What is read of an axis cuts it into groups, for all that make or read it; unless no team could split these."""
    found = layers_operators(lambda: chain(Ranges(*ranges)), loss=False).operators("1")
    assert found["wide"].groups.get("out", ()) == found["tanh"].groups.get("out", ()) == groups
    readers = [each for name, each in found.items() if name.startswith("exp")]
    assert sum("out" in each.loops for each in readers) == split
    parts = {each.loops["out"] for each in (found["wide"], found["tanh"], *readers) if "out" in each.loops}
    assert all(48 // sum(groups or (1,)) % each == 0 for each in parts)


def test_embeddings_and_ties() -> None:
    """A table is split by words or features; a tied one is shared, and its layers' weights sum to their bytes."""
    found = layers_operators(tiny_tied)
    tokens = found.operators("embedding")["tokens"]
    assert tokens.loops == {"vocabulary": 50, "feature": 16, "token": 6}
    assert tokens.weights[0].shared
    assert found.operators("head")["linear"].weights[0].shared
    assert not found.operators("block0")["widen"].weights[0].shared


class Odd(nn.Module):
    """Uses a matrix twice, another not at all, one for nothing, and an operation without a rule; writes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.never, self.last = nn.Linear(16, 16), nn.Linear(16, 3), nn.Linear(16, 16)
        self.aside = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        x = torch.cumsum(self.twice(self.twice(x)), 1)
        self.aside(x).sum()
        return torch.relu_(self.last(x))


class Reading(nn.Module):
    """Depends on values."""

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        return x if float(x.detach().sum()) > 0 else -x


def test_transposed_convolutions_in_groups_make_their_own_channels() -> None:
    """The axes of its weight are those of what it reads, and of one group; the bias has those of what it makes."""

    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randn(samples, 3, 8, 8, generator=generator), torch.zeros(samples)

    layers = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ConvTranspose2d(8, 12, 2, stride=2, groups=2))
    found = layers_operators(lambda: Workload(layers, draw, lambda made, _: made.square().mean()), loss=False)
    (own,) = found.graph("1").operators
    assert own.loops == {}
    assert [weight.loops[0] for weight in own.weights] == [own.reads["input"][1], own.makes[1]]
    assert own.makes[1] != own.reads["input"][1]


def test_what_has_no_rule_is_whole() -> None:
    """Operations without a rule, and matrices used twice, are in no loop; unused parameters are listed."""
    found = layers_operators(lambda: chain(Odd()), loss=False).operators("1")
    assert found["cumsum"].loops == found["twice"].loops == found["twice#2"].loops == {}
    assert found["twice#2"].weights == ()
    assert [w.name for w in found["unused"].weights] == ["never.weight", "never.bias"]
    listed = sorted(weight.name for each in found.values() for weight in each.weights)
    assert listed == sorted(name for name, _ in Odd().named_parameters())
    assert found["relu"].loops == {"out": 16}
    assert list(found)[-1] == "relu"


def test_data_dependent_layers_have_none() -> None:
    """A layer that reads values has no operators; the one behind it has."""
    workload = chain()
    stages = Stages(nn.Linear(16, 16), Reading(), nn.Linear(16, 4))
    found = layers_operators(lambda: replace(workload, module=stages)).found
    assert found.names == ("0", "", "2")


def test_profiles_hold_operators(tmp_path: Path) -> None:
    """A profile has them, with the operations that torch counts; its file reads back alike."""
    for workload in (tiny_decoder(), tiny_mlp(), tiny_resnet(), tiny_fused()):
        _check_profile(workload, tmp_path)


def _check_profile(workload: Workload, folder: Path) -> None:
    model = profile_of(workload)
    assert all(layer.operators for layer in model.layers)
    known = dict(workload.module.named_parameters(remove_duplicate=False))
    for layer in model.layers:
        graph = model.operators[layer.operators].operators
        assert layer.work is not None
        assert sum(each.forward_flops for each in graph) == layer.work.forward_flops
        assert sum(each.weight_gradient_flops for each in graph) == layer.work.weight_gradient_flops
        for weight in (weight for each in graph for weight in each.weights):
            assert known[shard_name(layer.name, weight.name)].numel() * 4 == weight.size
    path = folder / "model.yaml"
    write_model(model, path)
    assert read_model(path) == model
    assert read_model(path).fingerprint == model.fingerprint


@pytest.mark.parametrize(
    ("layer", "weight", "full"),
    [
        ("block0", "widen.weight", "block0.widen.weight"),
        ("transformer.h.3.attn", ".ln_1.weight", "transformer.h.3.ln_1.weight"),
        ("model.wte..wpe", "weight", "model.wte.weight"),
        ("model.wte..wpe", ".wpe.weight", "model.wpe.weight"),
        ("norm#2", "weight", "norm.weight"),
        ("h.0:softmax", "scale", "h.0.scale"),
        ("softmax", ".scale", "scale"),
        ("lm_head", ".wte.weight", "wte.weight"),
    ],
)
def test_names_of_shards(layer: str, weight: str, full: str) -> None:
    """A weight's name is relative to its layer's first module."""
    assert weight_name(layer, full) == weight
    assert shard_name(layer, weight) == full


class Masked(nn.Module):
    """Attention under a mask that the layer makes."""

    def __init__(self, ahead: int) -> None:
        super().__init__()
        self.ahead = ahead

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        places = torch.arange(x.shape[1], device=x.device)
        seen = (places <= places[:, None] + self.ahead) & x.new_ones((), dtype=torch.bool)
        y = x.unsqueeze(1)
        return nn.functional.scaled_dot_product_attention(y, y, y, attn_mask=seen).squeeze(1)


def test_masks_that_hide_later_tokens_are_known() -> None:
    """They are made of numbers alone, and looked at; that of an input is not known."""
    found = layers_operators(lambda: chain(Masked(0), Masked(1)))
    back, ahead = (found.operators(name)["attention"].attention for name in ("1", "2"))
    assert back is not None and ahead is not None
    assert (back.causal, back.masked, ahead.masked) == (False, True, False)
