"""Training whose sums run front layers first beside the next step, compared with the unsplit model in plain torch."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
import torch

from helpers.distributed import front_first_workers
from helpers.distributed.front_first_workers import cases
from helpers.distributed.lasting import STEPS, Killer, lasting_plan, unhurried
from helpers.distributed.together import Job, done
from helpers.plans import with_priority
from helpers.quick import QUICK
from helpers.trained import EXACT, assert_equal_training
from pipeplan_executor import run
from pipeplan_executor.checkpoint import as_plain
from pipeplan_executor.train.saving import Saving

WORLDS = (2,) if QUICK else (2, 4)


def jobs(world: int, folder: Path) -> dict[str, Job]:
    """Jobs of these tests on this number of ranks."""
    found: dict[str, Job] = {"front first": (front_first_workers.everything, ())} if world in WORLDS else {}
    alone: dict[str, Job] = {
        "front first, order": (front_first_workers.order_of_a_step, ()),
        "front first, resumed": (front_first_workers.resumed, (str(folder / "saved"),)),
        "front first, refused": (front_first_workers.refused, ()),
    }
    return found | (alone if world == 2 else {})


@pytest.mark.parametrize(("world", "name"), [(world, name) for world in WORLDS for name in cases(world)])
def test_ten_steps_equal_plain_torch(ranks: Callable[[int], dict[str, Any]], world: int, name: str) -> None:
    """Whatever the order and the chunks: losses, norms, learning rates and weights are the unsplit model's."""
    ours, theirs, apart = ranks(world)["front first"][name]
    assert_equal_training(ours, theirs, apart)
    assert ours.rates == theirs.rates
    assert ours.evaluated == pytest.approx(theirs.evaluated, rel=EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_mixed_precision(name: str) -> None:
    """Under autocast an update within a forward rounds as one behind the step does."""
    ours, theirs, apart = done(2, {"mixed": (front_first_workers.mixed, ())})["mixed"][name]
    assert ours.losses == pytest.approx(theirs.losses, rel=1e-6)
    assert ours.scales == theirs.scales
    assert apart < 1e-6


def test_chunks_leave_in_one_order_and_updates_wait_for_the_next_step(ranks: Callable[[int], dict[str, Any]]) -> None:
    """Replicas with two and one micro-batches begin the same sums, which cover all numbers once.

    A step ends with the updates of its layers still to come; who looks at a parameter gets them all.
    """
    (left, waiting, behind, rate), other = ranks(2)["front first, order"]
    assert (left, waiting) == other[:2]
    assert waiting and not behind
    assert rate == other[3] == pytest.approx(0.01 / 3)
    ranges = sorted(each for each in left if each[0] < each[1])
    assert ranges[0][0] == 0 and all(a[1] == b[0] for a, b in pairwise(ranges))
    assert [each for each in left if each[0] < each[1]] != ranges[::-1], "the order of the plan is not the buckets'"


def test_looks_and_checkpoints_change_nothing(ranks: Callable[[int], dict[str, Any]]) -> None:
    """Weights are the same bit by bit with evaluations between steps, with a checkpoint, and resumed from it."""
    assert ranks(2)["front first, resumed"] == {"looked at": 0, "saved": 0, "resumed": 0}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("LBFGS", "LBFGS is not known to update each number independently"),
        ("counting", "Counting changes count of its parameter groups"),
        ("clipped", "clipping by a global norm needs all sums"),
    ],
)
def test_what_needs_all_sums_is_said(ranks: Callable[[int], dict[str, Any]], name: str, said: str) -> None:
    """Optimisers that cannot step layer by layer are refused; clipping is said to wait."""
    assert said in ranks(2)["front first, refused"][name]


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_exactly(tmp_path: Path) -> None:
    """Killed with sums in flight, it resumes from its last checkpoint and ends with the same weights, bit by bit."""
    plan = with_priority(lasting_plan(1, replicas=2), 3)
    run(replace(plan, priority=()), unhurried, steps=STEPS, warmup=0, saving=Saving(str(tmp_path / "plain")))
    with Killer([SIGKILL], tmp_path / "killed", seed=2) as killer:
        saving = Saving(str(tmp_path / "killed"), every=7)
        report = run(plan, unhurried, steps=STEPS, warmup=0, timeout=12.0, saving=saving, restarts=1)
    assert killer.sent == [SIGKILL] and report.first > 0
    undisturbed, model = (as_plain(tmp_path / name)["model"] for name in ("plain", "killed"))
    assert model.keys() == undisturbed.keys()
    assert all(torch.equal(value, undisturbed[name]) for name, value in model.items())
