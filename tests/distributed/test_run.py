"""Plans on real processes: exact gradients."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from helpers.distributed import workers
from helpers.distributed.found_cases import KINDS, found_cases
from helpers.distributed.models import layers_of, tiny_mlp, tiny_vgg
from helpers.distributed.together import Job
from helpers.plans import plan_for
from helpers.quick import part
from pipeplan.core.errors import PlanError
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.schedules import FAMILIES, PLACED
from pipeplan_executor import launch, run

EXACT = 1e-10
CASES = {2: 8, 3: 10, 4: 3}
"""Number of random plans, by number of ranks; the slow run has a hundred each."""
TIED = {2: 4, 3: 8, 4: 2}
"""Number of random plans of models whose layers share weights, by number of ranks."""
CAPTURED = {2: 2, 3: 1, 4: 0}
"""Number of random plans of models captured as graphs, by number of ranks."""
BESIDES = {
    2: {"replicas": (), "evaluation": (), "verification": ()},
    3: {"training": (3,), "tied_training": (3,)},
    4: {"tied_pairs": (3,)},
}
"""Further jobs by number of ranks."""


class Results(NamedTuple):
    """Results of this module's workers on a number of ranks, by name."""

    world: int
    found: dict[str, Any]


def kinds(world: int) -> Sequence[str]:
    """Kinds of found schedules; quick runs on four ranks have some of them."""
    return part(KINDS) if world == 4 else KINDS


def jobs(world: int, folder: Path) -> dict[str, Job]:
    """Jobs of these tests on this number of ranks."""
    if world not in CASES:
        return {}
    return {
        "random": (workers.random_cases, (CASES[world], 5)),
        "tied": (workers.random_cases, (TIED[world], 6, "TIED")),
        "captured": (workers.random_cases, (CAPTURED[world], 9, "CAPTURED")),
        "placed": (workers.placed_families, (7,)),
        "found": (workers.found_schedules, (found_cases(world, 8, kinds(world)),)),
        **{name: (getattr(workers, name), arguments) for name, arguments in BESIDES.get(world, {}).items()},
    }


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, ranks: Callable[[int], dict[str, Any]]) -> Results:
    """Results of one number of ranks."""
    return Results(request.param, ranks(request.param))


def on(*worlds: int) -> pytest.MarkDecorator:
    """Run a test with the results of each of these numbers of ranks."""
    return pytest.mark.parametrize("results", worlds, indirect=True)


@on(*CASES)
def test_random_plans_are_exact(results: Results) -> None:
    """Loss and gradients equal the unsplit model's in float64, whatever the cuts, replicas, order and recomputation."""
    _all_exact(results.found["random"], CASES[results.world])


@on(*CASES)
def test_random_plans_of_tied_weights_are_exact(results: Results) -> None:
    """So they do where layers share weights: on one stage or several, replicated, recomputed, with split backwards."""
    _all_exact(results.found["tied"], TIED[results.world])


@on(2, 3)
def test_random_plans_of_captured_models_are_exact(results: Results) -> None:
    """So they do along graphs, where skips and memories are relayed, with two inputs; the slow run has all models."""
    _all_exact(results.found["captured"], CAPTURED[results.world])


@on(*CASES)
def test_families_that_place_stages_are_exact(results: Results) -> None:
    """So they do with several stages on a rank: looped, in a V, in both directions, with split backwards."""
    families = [name for name, family in PLACED.items() if not (family.even and results.world % 2)]
    _all_exact(results.found["placed"], len(part(families, 3) if results.world == 4 else families))


@on(*CASES)
def test_found_schedules_are_exact(results: Results) -> None:
    """So they do in orders that no family has: joined, split, recomputed, replicated, with several stages on a rank."""
    _all_exact(results.found["found"], len(kinds(results.world)))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("world", CASES)
def test_many_random_plans_are_exact(world: int) -> None:
    """The same for three hundred more plans of all models."""
    _all_exact(launch(workers.random_cases, world, 100, 100 + world, "EVERY", timeout=300), 100)


def _all_exact(errors: dict[str, float], count: int) -> None:
    assert len(errors) == count
    assert not {name: error for name, error in errors.items() if not error <= EXACT}


@on(3)
@pytest.mark.parametrize(("name", "count"), [("training", 6), ("tied_training", 8)])
def test_training_follows_the_unsplit_model(name: str, count: int, results: Results) -> None:
    """Over several steps losses and weights stay the unsplit model's: every optimiser, replicated, ZeRO-1, tied."""
    _all_follow(results.found[name], count)


@on(4)
def test_copies_on_replicated_stages_follow_the_unsplit_model(results: Results) -> None:
    """A shared weight's gradients are summed over all replicas of all its stages, none left out or counted twice."""
    _all_follow(results.found["tied_pairs"], 4)


def _all_follow(found: dict[str, tuple[list[float], list[float], float]], count: int) -> None:
    assert len(found) == count
    for case, (ours, theirs, apart) in found.items():
        assert ours == pytest.approx(theirs, rel=1e-10), case
        assert theirs[0] != theirs[-1], case
        assert apart < 1e-9, case  # some gradients are mere rounding, and Adam divides by their size


@on(2)
def test_replicas_share_out_the_optimiser_and_keep_their_own_buffers(results: Results) -> None:
    """Under ZeRO-1 the replicas hold all of Adam's state once, in even shares; batch norm's statistics are local."""
    (whole, shares), (mean0, replay0, mean1, replay1) = results.found["replicas"]
    assert whole <= sum(shares) <= 1.02 * whole  # a share may begin in the padding between two parameters
    assert max(shares) <= 1.02 * min(shares)
    assert mean0 == pytest.approx(replay0, rel=1e-12)
    assert mean1 == pytest.approx(replay1, rel=1e-12)
    assert mean0 != pytest.approx(mean1, rel=1e-3)


@on(2)
def test_verification_allows_rounding_only(results: Results) -> None:
    """Right gradients pass, also those that are zero except for rounding; a sum over the batch does not."""
    found = dict(results.found["verification"])
    sums = found.pop("tiny_sums")
    assert not sums.holds
    assert "the loss is a sum over samples" in str(sums)
    assert sums.error <= EXACT
    assert all(verdict.holds for verdict in found.values()), found
    rounding, single = found.pop("tiny_rounding"), found.pop("tiny_single")
    assert EXACT < rounding.error <= rounding.tolerance < 1e-4
    assert rounding.dtype == "float64"
    assert single.dtype == "float32"
    assert "know no float64" in str(single)
    assert all((verdict.dtype, verdict.tolerance) == ("float64", EXACT) for verdict in found.values())


@on(2)
def test_evaluation_and_prediction_are_the_unsplit_models(results: Results) -> None:
    """Dropout is off and batch norm uses its statistics; outputs come back whole, in the model's own structure."""
    found = results.found["evaluation"]
    assert len(found) >= 4
    for case, (loss, reference, apart) in found.items():
        assert loss == pytest.approx(reference, rel=1e-10), case
        assert apart < 1e-10, case


def test_a_run_reports_what_happened() -> None:
    """``run`` gives losses, times, peaks, every action on the time line, and exact gradients."""
    workload = tiny_mlp()
    names = layers_of(workload)
    schedule = FAMILIES["gpipe"].write((1, 1), 3)
    plan = plan_for(workload.module, names, (0, 1, len(names)), schedule)
    report = run(plan, tiny_mlp, steps=2, warmup=1, verify=True, timeout=60)
    assert report.error is not None
    assert report.error <= EXACT
    assert len(report.losses) == len(report.step_times) == 2
    assert all(peak > 0 for peak in report.peaks)
    assert {span.action for span in report.timeline.spans} == set(schedule.actions())


def test_a_broken_plan_never_starts() -> None:
    """A schedule that would deadlock is refused before a process is started."""
    f, b = Kind.FORWARD, Kind.BACKWARD
    broken = Schedule("broken", ((Action(f, 0), Action(b, 0)), (Action(b, 1), Action(f, 1))))
    workload = tiny_mlp()
    names = layers_of(workload)
    with pytest.raises(PlanError, match="1B0"):
        run(plan_for(workload.module, names, (0, 1, len(names)), broken), tiny_mlp)


def test_a_plan_for_another_model_never_starts() -> None:
    """Names that are missing, or a fingerprint that differs, are refused with advice."""
    workload = tiny_mlp()
    names = layers_of(workload)
    plan = plan_for(workload.module, names, (0, 1, len(names)), FAMILIES["gpipe"].write((1, 1), 2))
    with pytest.raises(PlanError, match="does not belong"):
        run(plan, tiny_vgg)
    with pytest.raises(PlanError, match="another"):
        run(replace(plan, fingerprint="0" * 16), tiny_mlp)
