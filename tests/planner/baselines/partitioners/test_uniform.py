"""Equal layer counts with the roundings of three projects."""

from itertools import pairwise

import pytest

from helpers.chains import make_chain
from pipeplan import Job, load_cluster, load_model
from pipeplan.baselines.partitioners import PARTITIONERS, NotApplicable
from pipeplan.costs.pricing import price


def counts(name: str, layers: int, stages: int) -> list[int]:
    boundaries = PARTITIONERS[name].balance(make_chain([1] * layers, devices=stages), 8)
    return [b - a for a, b in pairwise(boundaries)]


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [
        (10, 4, [3, 3, 2, 2]),
        (8, 4, [2, 2, 2, 2]),
        (11, 4, [3, 3, 3, 2]),
        (3, 5, [1, 1, 1, 0, 0]),
        (7, 1, [7]),
    ],
)
def test_deepspeed(layers: int, stages: int, expected: list[int]) -> None:
    """The remainder goes to the first stages, and with too few layers the last stages stay empty."""
    assert counts("uniform-deepspeed", layers, stages) == expected


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [
        (14, 4, [3, 4, 4, 3]),
        (12, 4, [3, 4, 3, 2]),
        (32, 4, [8, 9, 8, 7]),
        (3, 2, [2, 1]),
        (2, 4, [0, 1, 1, 0]),
        (7, 1, [7]),
    ],
)
def test_torchtitan(layers: int, stages: int, expected: list[int]) -> None:
    """n + 2 effective layers are split evenly, remainder first, and both end stages hold one layer less."""
    assert counts("uniform-torchtitan", layers, stages) == expected


def test_torchtitan_needs_an_effective_layer_a_stage() -> None:
    """With more stages than effective layers there is no split, and the numbers are named."""
    with pytest.raises(NotApplicable, match=r"2 layers and 2 .* on 5 stages"):
        counts("uniform-torchtitan", 2, 5)


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [(12, 4, [3, 3, 3, 3]), (11, 4, [3, 3, 3, 2]), (126, 16, [7, *[8] * 14, 7]), (14, 4, [3, 4, 4, 3]), (5, 1, [5])],
)
def test_megatron(layers: int, stages: int, expected: list[int]) -> None:
    """Stages are equal, with the loss, then also the embedding, counted as a layer only where that is what divides."""
    assert counts("uniform-megatron", layers, stages) == expected


def test_megatron_refuses_what_does_not_divide() -> None:
    """13 layers on 4 stages divide neither as 13 nor as 14 nor as 15, and the message says so."""
    with pytest.raises(NotApplicable, match=r"13 layers do not divide by 4, nor do 14 .* nor 15"):
        counts("uniform-megatron", 13, 4)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("uniform-deepspeed", [5, 5, 4, 4, 4, 4, 4, 4]),
        ("uniform-torchtitan", [5, 5, 4, 4, 4, 4, 4, 4]),
        ("uniform-megatron", [5, 4, 4, 4, 4, 4, 4, 5]),
    ],
)
def test_blocks_are_counted_beside_embedding_and_head(name: str, expected: list[int]) -> None:
    """Llama 3 8B on eight stages: Megatron has four of the 32 blocks on each, torchtitan 34 eights with both ends."""
    model, cluster = load_model("llama3-8b"), load_cluster("64-h100")
    chain = price(model, cluster, cluster.devices[:8], 1, Job(8))
    boundaries = PARTITIONERS[name].balance(chain, 8)
    assert [b - a for a, b in pairwise(boundaries)] == expected


def test_stages_end_between_blocks_of_several_layers() -> None:
    """With two layers ahead, four blocks of two layers and one layer behind, halves are 2 + 4 and 4 + 1 layers."""
    chain = make_chain([1] * 11, devices=2, blocks=(2, 4, 6, 8, 10))
    assert PARTITIONERS["uniform-megatron"].balance(chain, 8) == (0, 6, 11)
    assert PARTITIONERS["uniform-torchtitan"].balance(chain, 8) == (0, 6, 11)
    with pytest.raises(NotApplicable, match="4 blocks do not divide by 9, nor do 5 with the loss"):
        PARTITIONERS["uniform-megatron"].balance(make_chain([1] * 11, devices=9, blocks=(2, 4, 6, 8, 10)), 8)


def test_parameters_count_shared_weights_in_each_layer() -> None:
    """DeepSpeed builds every layer to count its parameters, so a tied head weighs as much as the embedding."""
    model, cluster = load_model("gpt2-small"), load_cluster("4-v100-nvlink")
    chain = price(model, cluster, cluster.devices[:2], 1, Job(8))
    assert PARTITIONERS["parameters"].balance(chain, 8) == (0, 7, 14)
