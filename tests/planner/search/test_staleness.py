"""Plans with one step of delay: what they take and keep, what is refused, what an answer says without it."""

from functools import lru_cache
from pathlib import Path

import pytest

from helpers.instances import equal_devices, model_of
from pipeplan.analysis.explain import require_step
from pipeplan.analysis.judge import judge
from pipeplan.core.cluster import Cluster, DeviceKind, Link
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.plan import Plan
from pipeplan.io.export import exported
from pipeplan.search.result import PUBLISHED, Result
from pipeplan.solve import solve

LATE = {"objective": "period", "staleness": 1, "optimizer": "adam"}


def model() -> Model:
    """Four equal layers of 32 bytes of parameters."""
    return model_of([64] * 4, parameters=[32] * 4, update=[8] * 4, sizes=(1, 2))


@lru_cache
def answer(speed: int, batch: int = 8, **options: object) -> Result:
    """The best plan on four devices, whose links carry so many bytes per second."""
    cluster = Cluster.uniform(4, DeviceKind("unit"), Link(speed, 0))
    return solve(model(), cluster, batch, **LATE | options)  # type: ignore[arg-type]


def test_a_sum_of_one_stage_is_hidden() -> None:
    """Data parallelism whose sums take nearly a batch takes the work and the update, with and without gathers."""
    for level in (0, 1):
        late = answer(2 * 10**8, depths=1, replicas=4, zero=level)
        ahead = answer(2 * 10**8, depths=1, replicas=4, zero=level, staleness=0)
        stage = late.plan.pipeline.stages[0]
        work = 2 * (stage.forward + stage.backward) + stage.update
        assert work > stage.reduce + stage.gather > work // 2
        assert late.value == late.bound == work
        assert ahead.value > late.value


@pytest.mark.parametrize(("options", "bytes_"), [({}, 0), ({"zero": 1, "replicas": 2, "depths": 2}, 0)])
def test_two_versions_and_two_buffers_are_kept(options: dict[str, object], bytes_: int) -> None:
    """Weights and gradients count twice, the optimiser's state once."""
    late, ahead = (answer(10**9, **options, staleness=n).plan.stages for n in (1, 0))
    for one, other in zip(late, ahead, strict=False):
        if one.layers == other.layers and one.replicas == other.replicas:
            assert (one.memory.weights, one.memory.gradients) == (2 * other.memory.weights, 2 * other.memory.gradients)
            assert one.memory.optimizer == other.memory.optimizer


def test_a_plan_and_its_file_say_so(tmp_path: Path) -> None:
    """It is in the plan and in its file, whose claims are checked; files of other plans have no word of it."""
    late, ahead = answer(10**9), answer(10**9, staleness=0)
    late.plan.save(tmp_path / "late.json")
    ahead.plan.save(tmp_path / "ahead.json")
    assert Plan.load(tmp_path / "late.json") == late.plan
    assert "gradients one step late" in late.plan.headline
    assert "staleness" not in (tmp_path / "ahead.json").read_text()
    broken = (tmp_path / "late.json").read_text().replace('"staleness": 1', '"staleness": 0')
    (tmp_path / "late.json").write_text(broken)
    with pytest.raises(InputError, match="contradicts itself"):
        Plan.load(tmp_path / "late.json")


def test_a_file_for_torch_has_no_delay() -> None:
    """Its lists end with a batch."""
    with pytest.raises(InputError, match="torch's schedule files end with a batch"):
        exported(answer(10**9).plan, "torch-csv")


def test_an_explanation_is_about_a_step() -> None:
    """So the option goes with the objective that it needs."""
    with pytest.raises(InputError, match="leave out --objective period, and --staleness"):
        require_step("period")


def test_an_answer_without_it_says_what_it_would_win() -> None:
    """In one line, with what it costs; the bound holds for the plans that it is about."""
    late, ahead = answer(2 * 10**8), answer(2 * 10**8, staleness=0)
    (line,) = [line for line in str(ahead).splitlines() if line.startswith("one step of delay (--staleness 1)")]
    assert PUBLISHED in line and "20 % more iterations" in line
    assert ahead.delayed is not None and ahead.delayed <= late.value < ahead.value
    assert late.delayed is None and PUBLISHED in str(late)
    assert ahead.as_json()["delayed_bound_s"] == ahead.delayed / 1e9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "step"}, "from batch to batch in a long run, not about the step time"),
        ({"objective": "bottleneck"}, "not about the load per sample"),
        ({"zero": 2}, "level 2 of ZeRO .* two versions of them whole"),
        ({"zero": (1, 3)}, "level 3 of ZeRO"),
        ({"schedules": "gpipe"}, "schedule 'gpipe' ends with every batch"),
        ({"schedules": ("1f1b", "interleaved")}, "schedule 'interleaved' ends with every batch"),
        ({"chunks": (1, 3)}, r"3 stages of a device \(chunks\) run in lists that end with a batch"),
        ({"schedules": "any"}, "searched for the least step"),
        ({"staleness": 2}, "staleness"),
    ],
)
def test_what_it_excludes_is_refused(options: dict[str, object], message: str) -> None:
    """With the reason and what to ask for."""
    with pytest.raises(InputError, match=message):
        answer(10**9, **options)


@pytest.mark.parametrize(
    ("micro_batches", "replicas", "message"),
    [
        (2, 1, "4 stages have 2 micro-batches a batch, .* as many at least"),
        (4, (1, 1, 3, 1), "3 replicas do not share 4 micro-batches equally"),
    ],
)
def test_a_plan_with_too_few_micro_batches_is_no_plan(micro_batches: int, replicas: object, message: str) -> None:
    """A third version would be in use, or batches would differ."""
    with pytest.raises(InputError, match=message):
        judge(model(), equal_devices(6), 4, stages=(1, 1, 1, 1), micro_batches=micro_batches, replicas=replicas, **LATE)  # type: ignore[arg-type]


def test_a_plan_by_hand_is_judged() -> None:
    """With the same value as the search's plan, whose bound holds for it."""
    best = answer(10**9)
    plan = best.plan
    judged = judge(
        model(),
        Cluster.uniform(4, DeviceKind("unit"), Link(10**9, 0)),
        8,
        stages=tuple(len(stage.layers) for stage in plan.stages),
        replicas=tuple(stage.replicas for stage in plan.stages),
        micro_batches=plan.micro_batches,
        zero=plan.zero,
        schedule=plan.schedule.family,
        **LATE,
    )
    assert judged.value == best.value >= judged.plan.bound > 0
    assert max(span.action.micro_batch for span in judged.timeline.spans) == 4 * plan.micro_batches - 1


def test_a_job_says_it_in_its_file() -> None:
    """As a field, only where it is asked for."""
    assert Job(4, objective="period", staleness=1).minimised == "delayed"  # type: ignore[arg-type]
    assert Job(4).minimised == "step"
