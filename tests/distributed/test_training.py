"""Training with the usual options on real processes, compared with the unsplit model in a plain torch loop."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from helpers.distributed import data_workers, training_workers
from helpers.distributed.together import Job
from helpers.distributed.training_workers import LOW, Found, cases
from helpers.quick import QUICK

EXACT = 1e-10
WORLDS = (2,) if QUICK else (2, 3)


class Results(NamedTuple):
    """Results by number of ranks, and those of verification."""

    on: dict[int, Found]
    errors: dict[str, float]


def jobs(world: int, folder: Path) -> dict[str, Job]:
    """Jobs of these tests on this number of ranks."""
    sharing: dict[str, Job] = {"sharing": (data_workers.shared_out, ())} if world == 2 else {}
    return {"everything": (training_workers.everything, ()), **sharing} if world in WORLDS else {}


@pytest.fixture(scope="module")
def results(ranks: Callable[[int], dict[str, Any]]) -> Results:
    """Results of each number of ranks."""
    found = {world: ranks(world)["everything"] for world in WORLDS}
    return Results({world: cases for world, (cases, _) in found.items()}, found[2][1])


@pytest.mark.parametrize(("world", "name"), [(world, name) for world in WORLDS for name in cases(world)])
def test_training_equals_plain_torch(results: Results, world: int, name: str) -> None:
    """Over several steps losses, norms, learning rates and weights are those of a plain loop, in float64."""
    ours, theirs, apart = results.on[world][name]
    assert ours.losses == pytest.approx(theirs.losses, rel=EXACT)
    assert ours.evaluated == pytest.approx(theirs.evaluated, rel=EXACT)
    assert ours.norms == pytest.approx(theirs.norms, rel=EXACT)
    assert ours.rates == theirs.rates
    assert apart < EXACT
    assert len(set(ours.losses)) > 1


@pytest.mark.parametrize("name", LOW)
def test_mixed_precision_equals_plain_torch(results: Results, name: str) -> None:
    """In bf16 and fp16 the same operations round the same; fp16 leaves out the same updates and adapts the scale."""
    ours, theirs, apart = results.on[2][name]
    assert ours.losses == pytest.approx(theirs.losses, rel=1e-6)
    assert ours.evaluated == pytest.approx(theirs.evaluated, rel=1e-2)  # a batch at once rounds other products
    assert ours.norms == pytest.approx(theirs.norms, rel=1e-5)
    assert ours.rates == theirs.rates
    assert ours.scales == theirs.scales
    assert apart < 1e-6
    assert len(set(ours.losses)) > 1


def test_the_cases_test_what_they_say(results: Results) -> None:
    """Gradients are longer than their limit, learning rates fall, and fp16 overflows before it does not."""
    for world, found in results.on.items():
        for name, case in cases(world).items():
            assert all(norm > case.options["clip"] for norm in found[name][0].norms), name
            assert bool(found[name][0].norms) == ("clip" in case.options), name
            assert (len(set(found[name][0].rates)) > 1) == ("scheduler" in case.options), name
    for name, case in LOW.items():
        if case.options["precision"] == "fp16":
            scales = results.on[2][name][0].scales
            assert scales[0] > scales[-2] == scales[-1], name


def test_masks_are_the_same_for_every_plan(results: Results) -> None:
    """Dropout on two and three ranks, split, recomputed or replicated: one first loss."""
    every = [seen for found in results.on.values() for name, (seen, *_) in found.items() if name.startswith("dropout")]
    firsts = [seen.losses[0] for seen in every]
    assert firsts == pytest.approx([firsts[0]] * len(firsts), rel=EXACT)


def test_verification_allows_what_draws_and_weighs(results: Results) -> None:
    """Loss and gradients of a step equal the unsplit model's with dropout, in chains and graphs, and with weights."""
    assert set(results.errors) == {"dropped", "skipping", "padded", "uneven"}
    assert all(error <= EXACT for error in results.errors.values()), results.errors


@pytest.mark.parametrize("name", data_workers.CASES)
def test_ranks_load_their_share_of_a_dataset(ranks: Callable[[int], dict[str, Any]], name: str) -> None:
    """Losses are those of whole batches; replicas load half of the samples each, and one rank logs and tracks."""
    found = ranks(2)["sharing"][name]
    assert found["losses"] == pytest.approx(found["expected"], rel=1e-6)
    loaded = [set(rank["loaded"]) for rank in found["ranks"]]
    every = data_workers.STEPS * found["batch"]
    assert len(set.union(*loaded)) == every
    assert [len(own) for own in loaded] == ([every // 2] * 2 if name == "replicas" else [every] * 2)
    assert [rank["logs"] for rank in found["ranks"]] == [True, False]
    assert [rank["rest"] for rank in found["ranks"]] == [data_workers.STEPS - 2] * 2
    first, second = (rank["tracked"] for rank in found["ranks"])
    assert not second
    assert [numbers["loss"] for numbers in first] == found["losses"]
    assert [numbers["step"] for numbers in first] == [1, 2, 3]
    assert all(numbers["gradient_norm"] > 0 and numbers["learning_rate"] > 0 for numbers in first)
