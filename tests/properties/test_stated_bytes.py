"""Bytes of gradients and of optimiser state that a job states for each parameter."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.instances import equal_devices, model_of
from helpers.noticed import noticed
from pipeplan import InfeasibleError, InputError, Job, Plan, load_cluster, load_model, solve
from pipeplan.core.model import Model
from pipeplan.core.validate import validate_plan
from pipeplan.costs.kept import Kept
from pipeplan.io.job_file import read_job, write_job
from pipeplan_executor.optim.updates import require_stated

MODEL = replace(model_of([10, 20], saved=[4, 4], output=[4, 4], parameters=[200, 200]), dtype="bfloat16")
"""200 parameters, of 2 + 2 + 12 bytes with Adam."""


def parts(model: Model = MODEL, **options: Any) -> tuple[int, int, int]:
    """Bytes of weights, gradients and state of one device's plan."""
    memory = solve(model, equal_devices(1), 1, optimizer="adam", time_limit=10, **options).plan.stages[0].memory
    return memory.weights, memory.gradients, memory.optimizer


def test_stated_bytes_count_for_each_parameter() -> None:
    """Megatron keeps gradients in 4 bytes; torchtune keeps 2 bytes of state."""
    assert parts() == (400, 400, 2400)
    assert parts(gradient_bytes=4) == (400, 800, 2400)
    assert parts(state_bytes=2) == (400, 400, 400)
    assert parts(state_bytes=0, gradient_bytes=1) == (400, 200, 0)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_replicas_share_out_stated_bytes_as_others(zero: int) -> None:
    """State from level 1 of ZeRO on, gradients from level 2 on."""
    options: dict[str, Any] = {"depths": 1, "replicas": 2, "zero": zero, "micro_batches": 2, "optimizer": "adam"}
    stage = solve(MODEL, equal_devices(2), 2, state_bytes=6, gradient_bytes=4, time_limit=10, **options).plan.stages[0]
    assert stage.memory.optimizer == (1200 if zero == 0 else 600)
    assert stage.memory.gradients == (800 if zero < 2 else 400)


def test_the_answer_names_them_and_the_plan_keeps_them(tmp_path: Path) -> None:
    """In words; a plan file with them is read back, and is valid."""
    result = solve(MODEL, equal_devices(1), 1, optimizer="adam", state_bytes=2, time_limit=10)
    assert "2 + 2 + 2 bytes for each parameter: bfloat16 weights, gradients, state of adam, state as stated" in str(
        result
    )
    result.plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert (again.state_bytes, again.gradient_bytes) == (2, None)
    validate_plan(again, MODEL, equal_devices(1))


def test_a_job_file_keeps_them(tmp_path: Path) -> None:
    """Fields of a job come back from its file."""
    job = Job(8, optimizer="adam", state_bytes=2, gradient_bytes=4)
    write_job(job, tmp_path / "job.yaml")
    assert read_job(tmp_path / "job.yaml") == job


def test_what_never_fits_names_the_bytes_assumed() -> None:
    """With fewer stated bytes a plan fits."""
    tight = equal_devices(1, memory=1400)
    with pytest.raises(InfeasibleError, match=r"2 \+ 2 \+ 12 bytes for each parameter"):
        solve(MODEL, tight, 1, optimizer="adam", time_limit=10)
    assert solve(MODEL, tight, 1, optimizer="adam", state_bytes=2, time_limit=10).bound


@pytest.mark.parametrize(("name", "value"), [("state_bytes", -1), ("gradient_bytes", 0), ("state_bytes", 65)])
def test_impossible_bytes_are_refused(name: str, value: int) -> None:
    """The message names the field."""
    with pytest.raises(InputError, match=name):
        Job(8, **{name: value})


def test_an_update_moves_what_is_stated() -> None:
    """Estimated: it reads and writes weights and state, and reads gradients of the model's format."""
    model, cluster = load_model("llama3-8b"), load_cluster("64-h100")
    own = solve(model, cluster, 64, depths=8, replicas=1, time_limit=0.2, optimizer="adam", micro_batches=64)
    lean = solve(
        model, cluster, 64, depths=8, replicas=1, time_limit=0.2, optimizer="adam", micro_batches=64, state_bytes=2
    )
    assert lean.plan.pipeline.stages[0].update < own.plan.pipeline.stages[0].update


def test_the_executor_refuses_what_it_cannot_keep() -> None:
    """Torch's Adam keeps twice the parameters' bytes, and gradients are in their format."""
    from torch import ones

    single = [ones(3, requires_grad=True)]
    plan = solve(MODEL, equal_devices(1), 1, optimizer="adam", time_limit=10).plan
    require_stated(replace(plan, state_bytes=8, gradient_bytes=4), single, own=False)
    with pytest.raises(Exception, match=r"states 2 bytes of optimiser state .* keeps 8 for parameters of 4"):
        require_stated(replace(plan, state_bytes=2), single, own=False)
    require_stated(replace(plan, state_bytes=2), single, own=True)
    with pytest.raises(Exception, match="states 2 bytes of gradients"):
        require_stated(replace(plan, gradient_bytes=2), single, own=True)


@pytest.mark.parametrize(
    ("name", "field", "first"), [("state_of", "state_bytes", 47), ("gradients_of", "gradient_bytes", 39)]
)
def test_stated_bytes_that_are_ignored_are_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str, field: str, first: int
) -> None:
    """As if a job could not state them."""
    own = getattr(Kept, name)

    def deaf(kept: Kept, parameters: int) -> int:
        bare = Kept(kept.model, replace(kept.job, **{field: None}))
        return int(own(bare, parameters))

    monkeypatch.setattr(Kept, name, deaf)
    assert noticed(lambda document: field in document["job"] and "teams" not in document["job"], first=first)
