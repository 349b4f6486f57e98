"""Blocks of a model: the repeated part of its layers, as Megatron and torchtitan count it."""

import pytest

from pipeplan import load_model
from pipeplan.core.layers import blocks_of

HEAD = "norm", "linear"


@pytest.mark.parametrize(
    ("kinds", "first", "behind", "layers"),
    [
        (["embedding", *["block"] * 6, "head"], 1, 7, 1),
        (["embedding", "embedding", *["attention", "mlp"] * 4, *HEAD], 2, 10, 2),
        (["conv", "block", "block", "block", "head"], 1, 4, 1),
        (["linear"] * 5, 0, 5, 1),
    ],
)
def test_blocks_are_what_repeats(kinds: list[str], first: int, behind: int, layers: int) -> None:
    """Of one layer or several, with other layers ahead and behind."""
    assert blocks_of(kinds) == tuple(range(first, behind + 1, layers))


@pytest.mark.parametrize(
    "kinds",
    [
        [""] * 6,
        ["embedding", "block", "norm", "head"],
        ["conv", "conv", "pool"] * 3 + ["linear"] * 3,
        ["embedding", *["block"] * 3, "embedding", *["other"] * 3, "head"],
        ["block"],
    ],
)
def test_without_blocks_every_layer_counts(kinds: list[str]) -> None:
    """So do layers of no kind, repetitions of few long parts, and those of half of the layers or less."""
    assert blocks_of(kinds) == tuple(range(len(kinds) + 1))


@pytest.mark.parametrize(("name", "blocks"), [("llama3-8b", 32), ("gpt2-xl", 48), ("bert-large", 24), ("vgg-16", 21)])
def test_blocks_of_shipped_models(name: str, blocks: int) -> None:
    """Transformers have as many as their papers say; a VGG's layers are all counted."""
    assert len(load_model(name).blocks) - 1 == blocks
