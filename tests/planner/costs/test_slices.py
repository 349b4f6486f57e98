"""Prices of token slices: attention of slice k has (2 k + 1) / S² of the sequence, all else 1 / S."""

from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest

from helpers.sliced_models import sliced_chain, token_operators, unit_cluster
from pipeplan import load_cluster, load_model
from pipeplan.core.cluster import Cluster, DeviceKind, Link
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job
from pipeplan.core.layers import Layer, LayerCost, Work
from pipeplan.core.model import Model, Provenance, SliceProfile
from pipeplan.core.operators import TOKEN, Operator, OperatorGraph, Weight
from pipeplan.core.schedule import Kind
from pipeplan.costs.assembly import assemble
from pipeplan.costs.pricing import Prices
from pipeplan.costs.slices import _cost, sliced
from pipeplan.search.space.space import Space


def test_attention_grows_and_nothing_else_does() -> None:
    """A block's slices take together what S micro-batches of 1 / S take, each later one more by the same step."""
    model, cluster = load_model("llama3-8b"), load_cluster("64-h100")
    kind, block = cluster.devices[0].kind, model.operators["block"]
    for count in (2, 8):
        prices = Prices(sliced(model, count), cluster, Job(1, slices=(count,)))
        table = prices.table(kind, 1)
        chain = prices.chain(((cluster.devices[0],),), 1)
        own = assemble(chain, cluster, (0, len(model.layers))).stages[0]
        steps = {own.duration(Kind.FORWARD, k + 1) - own.duration(Kind.FORWARD, k) for k in range(count - 1)}
        assert len(steps) == 1 and own.total(Kind.FORWARD) == int(table.forward.sum())
        share = Fraction(block.operators[4].forward_flops, sum(each.forward_flops for each in block.operators))
        mean = table.forward[1] / count
        assert table.forward[1] - count * table.first_forward[1] == pytest.approx(
            float((count - 1) * share * mean), abs=count**2
        )
        assert table.first_forward[0] * count == table.forward[0]  # the embedding has no attention


def test_a_slice_keeps_what_a_sample_of_a_shorter_sequence_keeps() -> None:
    """Bytes of a slice are those of 1 / S sample, with room for the gradients of its keys and values."""
    model, cluster = load_model("gpt2-xl"), load_cluster("8-v100-nvlink")
    kind, layer = cluster.devices[0].kind, model.layers[1]
    assert layer.work is not None
    table = Prices(sliced(model, 4), cluster, Job(2, slices=(4,))).table(kind, 2)
    keys = 2 * 2 * 2 * 1024 * 1600 // 4  # two samples, keys and values, two bytes
    assert table.saved[1] == 2 * layer.work.saved // 4 + 2 * keys  # gradients in 32 bits
    assert table.output[1] == 2 * layer.work.output // 4 + 3 * keys  # a recomputed layer keeps its keys
    assert table.boundary[1] == 2 * layer.work.output // 4


def test_below_the_smallest_profile_the_fixed_part_stays() -> None:
    """Half of a sample takes what the line through one and two samples says; one size alone is in proportion."""
    one, two = LayerCost(30, 60, 30, 30, 8, 4, 2, 9), LayerCost(50, 100, 50, 50, 16, 8, 4, 9)
    half = _cost({1: one, 2: two}, Fraction(1, 2))
    assert (half.forward, half.backward, half.saved, half.update) == (20, 40, 4, 9)
    assert _cost({1: one}, Fraction(1, 2)).forward == 15
    falling = LayerCost(20, 20, 10, 10, 8, 4, 2, 9)
    assert _cost({1: one, 2: falling}, Fraction(1, 2)).forward == 30  # at most what one takes


def test_the_model_says_why_it_does_not_run_in_slices() -> None:
    """Layers of unknown operators, attention that looks ahead, poolings and odd numbers are refused by name."""
    cases = {
        "vgg-16": "operators of layer 'features.0' are not known",
        "bert-large": "'attention' (attention) of layer 'block.0' looks ahead",
    }
    for name, why in cases.items():
        with pytest.raises(InputError) as caught:
            sliced(load_model(name), 2)
        assert why.split("layer")[-1] in str(caught.value) or "not known" in str(caught.value)
    pooled = Operator("pool", "mean", {}, {"up": (TOKEN, "feature")}, ("feature",), 4)
    graph = OperatorGraph((*token_operators(1).operators, pooled), {"input": 48})
    work = Work(1, 1, 1, 4, 4)
    with pytest.raises(InputError, match=r"'pool' .mean. of layer 'head' is not known to compute each token by itself"):
        sliced(Model("pools", (Layer("head", 0, work=work, operators="g"),), operators={"g": graph}), 2)
    places = Weight("places", (TOKEN, "feature"), 96)  # a table of positions, which no team splits
    added = Operator("places", "add", {}, {"up": (TOKEN, "feature")}, (TOKEN, "feature"), 4, weights=(places,))
    graph = OperatorGraph((*token_operators(1).operators, added), {"input": 48})
    layer = Layer("first", graph.parameters, work=work, operators="g")
    assert sliced(Model("placed", (layer,), operators={"g": graph}), 2).slicing is not None
    with pytest.raises(InputError, match="nearest numbers that do are 4 and 6"):
        sliced(sliced_chain(Random(0), 2), 5)


def test_contradictions_are_refused() -> None:
    """Slices with any order, levels 2 and 3 of ZeRO, the bottleneck or divided layers name both sides."""
    for options, words in (
        ({"schedules": ("any",)}, "not schedules 'any'"),
        ({"zero": (3,)}, "levels 0 and 1 of ZeRO"),
        ({"objective": "bottleneck"}, "shorten steps"),
        ({"intra_layer": True}, "whole layers"),
    ):
        with pytest.raises(InputError, match=words):
            Job(4, slices=(1, 4), **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="1f1b-slices or terapipe"):
        Space(sliced(sliced_chain(Random(0), 2), 4), unit_cluster(2), Job(1, slices=(4,), schedules=("gpipe",)))


def measured_chain(lengths: tuple[int, ...], sizes: tuple[int, ...] = (1, 2)) -> Model:
    """A chain with slices of these lengths, of which the last takes longer than the first."""
    model, random = sliced_chain(Random("measured"), 3), Random(f"slices of {lengths}")

    def cost(least: int) -> LayerCost:
        forward, backward, *rest = (random.randint(least, least + 99) for _ in range(7))
        return LayerCost(forward, backward, *rest)

    rows = [
        SliceProfile("unit", size, own, *(tuple(cost(least) for _ in range(3)) for least in (1000, 1100)), ORIGIN)
        for own in lengths
        for size in sizes
    ]
    return replace(model, slice_profiles=tuple(rows))


ORIGIN = Provenance("measured", "drawn")


def test_measured_slices_take_what_was_measured() -> None:
    """The first and the last, up to rounding, without the time of single operators; bytes are the larger ones."""
    model, slow = measured_chain((2, 3)), Cluster.uniform(1, DeviceKind("unit", shard_overhead=1000), Link(10**9))
    for own in model.slice_profiles:
        count = 12 // own.tokens
        prices = Prices(sliced(model, count), slow, Job(own.micro_batch, slices=(count,)))
        chain = prices.chain(((slow.devices[0],),), own.micro_batch)
        stage = assemble(chain, slow, (0, 3)).stages[0]
        for name, kind in (("forward", Kind.FORWARD), ("backward", Kind.BACKWARD)):
            for place, ends in ((0, own.first), (count - 1, own.last)):
                wanted = sum(getattr(cost, name) for cost in ends)
                assert stage.duration(kind, place) == pytest.approx(wanted, abs=3 * count)
        rows = zip(own.first, own.last, strict=True)
        assert chain.workspace[0].tolist() == [max(a.workspace, b.workspace) for a, b in rows]


def test_between_measured_lengths_and_beyond_them() -> None:
    """What slices take more than shares of sequences is on a line between lengths, and stays beyond them."""
    model = measured_chain((2, 4))
    plain = replace(model, slice_profiles=())

    def more(tokens: int) -> list[int]:
        own, bare = sliced(model, 12 // tokens).slicing, sliced(plain, 12 // tokens)
        assert own is not None
        return [a.forward - b.forward for a, b in zip(own.measured[0].costs, bare.profiles[0].costs, strict=True)]

    assert more(1) == more(2) and more(4) == more(6)
    assert all(abs(2 * now - a - b) <= 1 for now, a, b in zip(more(3), more(2), more(4), strict=True))


@pytest.mark.parametrize(
    ("lengths", "sizes", "words"),
    [
        ((12,), (1, 2), "no part of a sequence of 12 tokens"),
        ((3,), (1, 2, 4), "beside no profile of whole sequences there at that micro-batch"),
        ((3,), (1,), "the same lengths once at each of its profiles' micro-batches .1, 2."),
        ((3, 3), (1, 2), "the same lengths once"),
    ],
)
def test_measured_slices_that_do_not_belong_to_a_model_are_refused(
    lengths: tuple[int, ...], sizes: tuple[int, ...], words: str
) -> None:
    """As long as the sequence, without a profile beside them, of unlike lengths, twice."""
    with pytest.raises(InputError, match=words):
        measured_chain(lengths, sizes)
