"""Sequences in slices on several ranks: replicas, teams, buckets, tied weights, checkpoints."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.captured_models import tiny_gpt2, tiny_llama
from helpers.distributed.exactness import worst_error
from helpers.distributed.models import blank_model, tiny_decoder
from helpers.distributed.together import Job
from helpers.plans import in_teams, plan_for, with_buckets
from helpers.runnable_schedules import halved
from helpers.sliced import sliced
from pipeplan.core.plan import Plan
from pipeplan.frontend.workload import Workload
from pipeplan.io.plan_file import read_plan
from pipeplan.schedules import FAMILIES
from pipeplan.schedules.slices import sliced_families
from pipeplan_executor import RunError
from pipeplan_executor import run as execute
from pipeplan_executor.train.saving import Saving
from pipeplan_executor.zoo.decoder import SHARDS

EXACT = 1e-10
Build = Callable[[], Workload]


def planned(
    build: Build, replicas: tuple[int, ...], tokens: Sequence[int], split: bool = False, again: Sequence[str] = ()
) -> Plan:
    """Four micro-batches of two samples."""
    module, names, held = blank_model(build)
    schedule = FAMILIES["gpipe"].write(replicas, 4)
    cuts = [round(number * len(names) / len(replicas)) for number in range(len(replicas) + 1)]
    plan = plan_for(module, names, cuts, halved(schedule) if split else schedule, 2, "adam", again, held)
    return sliced(plan, tokens)


def error(plan: Plan, build: Build = tiny_decoder) -> float:
    """The largest relative difference of loss and gradients to the unsliced model's."""
    found = execute(plan, build, steps=0, verify=True, timeout=300).error
    assert found is not None
    return found


def on_two_stages() -> Plan:
    """A decoder whose sequences are cut into three slices of unlike lengths."""
    return planned(tiny_decoder, (1, 1), (3, 2, 1))


def jobs(world: int, folder: Path) -> dict[str, Job]:
    """Jobs of these tests on this number of ranks."""
    return {"slices": (worst_error, (on_two_stages(), tiny_decoder, 0))} if world == 2 else {}


def test_stages_pass_slices_on(ranks: Callable[[int], dict[str, Any]], tmp_path: Path) -> None:
    """Each message is one slice; the plan is the same in its file."""
    on_two_stages().save(tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json").slices == (3, 2, 1)
    assert ranks(2)["slices"] < EXACT


@pytest.mark.slow
@pytest.mark.parametrize("build", [tiny_gpt2, tiny_llama])
def test_captured_models_on_three_ranks(build: Build) -> None:
    """Tied weights are summed behind the last slice; several tensors pass between stages."""
    assert error(planned(build, (1, 1, 1), (6, 4, 2), split=True), build) < EXACT


@pytest.mark.slow
@pytest.mark.parametrize(("replicas", "split", "zero"), [((2, 2), False, 0), ((2, 1), True, 1)])
def test_replicas_sum_behind_the_last_slice(replicas: tuple[int, ...], split: bool, zero: int) -> None:
    """Buckets leave with the backward of slice 0 of the last micro-batch, or its weight gradients."""
    plan = replace(with_buckets(planned(tiny_decoder, replicas, (2, 2, 2), split), 2, zero), zero=zero)
    assert error(plan) < EXACT


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tokens", "stages", "sequence"), [((3, 2, 1), 1, False), ((4, 2), 1, True), ((2, 2, 2), 2, True)]
)
def test_teams_share_out_slices(tokens: tuple[int, ...], stages: int, sequence: bool) -> None:
    """By heads and hidden neurons, and tokens of a slice in parts; also with split backwards and recomputation."""
    module, names, _ = blank_model(tiny_decoder)
    plan = planned(tiny_decoder, (1,) * stages, tokens, split=stages > 1, again=names[2:3])
    assert error(in_teams(plan, module, SHARDS, 2, names[1:-1] if sequence else ())) < EXACT


@pytest.mark.slow
def test_teams_that_cannot_divide_slices_are_refused() -> None:
    """Where the tokens of a slice are in parts, teams divide them."""
    module, names, _ = blank_model(tiny_decoder)
    plan = in_teams(planned(tiny_decoder, (1,), (3, 3)), module, SHARDS, 2, names[1:-1])
    with pytest.raises(RunError, match="slices of 3 tokens cannot be split in a team"):
        error(plan)


@pytest.mark.slow
def test_families_of_slices_run_and_forwards_alone() -> None:
    """On two replicas of two stages: each takes its micro-batches with all their slices."""
    for family in sliced_families(3):
        plan = replace(planned(tiny_decoder, (2, 2), (2, 2, 2)), schedule=family.write((2, 2), 4))
        assert error(plan) < EXACT
    found = execute(plan, tiny_decoder, steps=2, warmup=0, prefill=True, timeout=300)
    assert len(found.step_times) == 2 and not found.losses


@pytest.mark.slow
def test_a_run_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """Losses behind it are those of a run without a break, and of whole sequences."""
    plan = planned(tiny_decoder, (1, 1), (3, 2, 1))
    whole = replace(plan, slices=(), schedule=FAMILIES["gpipe"].write((1, 1), 4))
    saving = Saving(str(tmp_path / "here"), every=2, resume=True)
    execute(plan, tiny_decoder, steps=2, warmup=0, saving=saving, timeout=300)
    behind = execute(plan, tiny_decoder, steps=4, warmup=0, saving=saving, timeout=300)
    expected = execute(whole, tiny_decoder, steps=4, warmup=0, timeout=300)
    assert behind.losses == pytest.approx(expected.losses[2:], rel=1e-5)
