"""Remedies of infeasible jobs: each remedy does fit, and the next smaller one does not."""

from dataclasses import replace

import pytest

from helpers.explained import lean
from helpers.instances import equal_devices, fat_head, model_of
from helpers.quick import rarely
from pipeplan.analysis.explain import Remedy, remedies
from pipeplan.analysis.explain.changes import with_devices, with_memory
from pipeplan.analysis.explain.feasible import fit
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.errors import InfeasibleError
from pipeplan.core.job import Job, Recompute
from pipeplan.core.model import Model
from pipeplan.search.infeasible import total_memory_shortfall
from pipeplan.search.space.space import Space
from pipeplan.solve import solve
from pipeplan_formulations.common.bisection import least


def fits(model: Model, cluster: Cluster, job: Job) -> bool:
    """True if a direct solve finds a plan."""
    try:
        solve(model, cluster, job=job)
    except InfeasibleError:
        return False
    return True


def by_kind(model: Model, cluster: Cluster, job: Job) -> dict[str, Remedy]:
    """The remedies, by kind."""
    found = remedies(model, cluster, job, time_limit=30)
    assert found is not None and found.proved
    return {remedy.kind: remedy for remedy in found.remedies}


def test_a_job_that_fits_needs_no_remedy() -> None:
    """The result is None, not an empty list."""
    assert remedies(fat_head(), equal_devices(3), Job(16)) is None


@pytest.mark.parametrize("limit", [9, rarely(17), rarely(25)])
def test_the_least_memory_fits_and_a_byte_less_does_not(limit: int) -> None:
    """The number of bytes is exact, whether the device or the job sets the limit."""
    for cluster, asked in ((equal_devices(3, limit), lean(16)), (equal_devices(3), lean(16, memory=limit))):
        remedy = by_kind(fat_head(), cluster, asked)["memory"]
        assert remedy.fits and remedy.smallest and remedy.number is not None
        assert fits(fat_head(), *with_memory(cluster, asked, remedy.number))
        assert not fits(fat_head(), *with_memory(cluster, asked, remedy.number - 1))


def test_the_fewest_further_devices() -> None:
    """Four layers of 24 bytes of weights and gradients on devices of 30: four devices it takes, so two more."""
    model, cluster = model_of([5] * 4, parameters=[12] * 4), equal_devices(2, 30)
    remedy = by_kind(model, cluster, lean(4))["devices"]
    assert (remedy.fits, remedy.number, remedy.smallest) == (True, 2, True)
    assert str(remedy) == "fits: 2 more unit; a smaller change is proved not to"
    assert fits(model, *with_devices(cluster, lean(4), "unit", 2))
    assert not fits(model, *with_devices(cluster, lean(4), "unit"))


def test_the_largest_smaller_batch() -> None:
    """One device with ten bytes for activations, two per sample: GPipe of eight samples does not fit, five do."""
    model, cluster = model_of([5], saved=[2]), equal_devices(1, 10)
    remedy = by_kind(model, cluster, lean(8, schedules=("gpipe",)))["batch"]
    assert (remedy.fits, remedy.number, remedy.smallest) == (True, 5, True)


def test_micro_batches_that_only_a_smaller_batch_has_count() -> None:
    """Profiled from 2 to 4 samples, a batch of 9 has micro-batches of 3 only, one of 8 also those of 2 that fit."""
    remedy = by_kind(model_of([5], saved=[2], sizes=(2, 4)), equal_devices(1, 5), lean(9))["batch"]
    assert (remedy.fits, remedy.number, remedy.smallest) == (True, 8, False)


def test_plans_that_only_heuristics_place_count() -> None:
    """Nodes have unlike links, so no listed stage has both devices; a heuristic's fits where `solve` finds it."""
    row = (Node(("unit",), Link(10**9)), Node(("unit",), Link(10**8)))
    cluster = Cluster("unlike", {"unit": DeviceKind("unit", memory=20)}, row, Link(10**9), Overlap.COPY)
    model, asked = model_of([20, 20], parameters=[8, 8]), lean(4, replicas=(2,))
    found = remedies(model, cluster, asked)
    assert found is not None
    remedy = next(each for each in found.remedies if each.kind == "memory")
    assert remedy.fits and remedy.smallest and remedy.number is not None
    assert fits(model, *with_memory(cluster, asked, remedy.number))
    assert not fits(model, *with_memory(cluster, asked, remedy.number - 1))


def test_wishes_that_stand_in_the_way_are_named() -> None:
    """A job of one large micro-batch does not fit; any number of them does, and so does another schedule."""
    model, cluster = model_of([5], saved=[2], sizes=(1, 2, 4)), equal_devices(1, 4)
    found = by_kind(model, cluster, lean(4, micro_batches=(1,)))
    assert found["micro_batches"].fits and "zero" not in found and not found["schedules"].fits
    found = by_kind(model, cluster, lean(4, schedules=("gpipe",)))
    assert found["schedules"].fits and "micro_batches" not in found


def test_recomputation_is_offered_where_it_helps() -> None:
    """One device for two layers, each saving nine bytes of which one is its output: only recomputing them fits."""
    model = model_of([5, 5], saved=[9, 9], output=[1, 1])
    question = lean(2, schedules=("gpipe",), memory=16)
    found = by_kind(model, equal_devices(1), question)
    assert found["recompute"].fits and not found["schedules"].fits
    assert fits(model, equal_devices(1), replace(question, recompute=Recompute.CHOOSE))


def test_sharing_the_optimisers_state_is_offered_where_it_helps() -> None:
    """Two replicas of a layer with Adam: sixteen bytes a parameter do not fit, twelve do."""
    model = model_of([5], parameters=[40])
    question = lean(2, optimizer="adam", replicas=(1, 2), memory=130, zero=(0,))
    found = by_kind(model, equal_devices(2), question)
    assert found["zero"].fits
    assert fits(model, equal_devices(2), replace(question, zero=(1,)))


def test_weights_that_all_devices_together_cannot_hold_need_no_search() -> None:
    """Four layers of 24 bytes: three devices of 31 are known not to hold them at once, of 32 they are searched."""
    model, job = model_of([5] * 4, parameters=[12] * 4), lean(4)
    small = [total_memory_shortfall(Space(model, equal_devices(3, *memory), job)) for memory in ((31,), (32,), ())]
    assert [bool(why) for why in small] == [True, False, False]
    refused = fit(model, equal_devices(3, 31), job, time_limit=0.0)
    assert (refused.plan, refused.proved, refused.verdict) == (None, True, False)
    assert fit(model, equal_devices(3, 32), job, time_limit=0.0).verdict is None
    assert fit(model, equal_devices(3, 32), job, time_limit=30.0).verdict is False
    assert fit(model, equal_devices(3, 60), job, time_limit=30.0).verdict is True


def test_orders_that_no_family_has_count() -> None:
    """One of two micro-batches at a time fits in 2 bytes under any order; 1F1B holds both, in 4 bytes."""
    model, job = model_of([5, 5], saved=[2, 2]), lean(2, micro_batches=(2,), depths=(2,))
    for schedules, verdicts in ((job.schedules, (False, False, True)), (("any",), (False, True, True))):
        asked = replace(job, schedules=schedules)
        found = [fit(model, equal_devices(2, memory), asked, time_limit=30.0).verdict for memory in (1, 2, 4)]
        assert tuple(found) == verdicts


def test_what_does_not_help_is_said() -> None:
    """Weights that no device can hold: no batch and no number of devices helps, memory does."""
    found = by_kind(
        model_of([5], parameters=[40]),
        equal_devices(1, 50),
        lean(4, schedules=(), replicas=(), recompute=Recompute.CHOOSE),
    )
    assert {kind: remedy.fits for kind, remedy in found.items()} == {
        "memory": True,
        "batch": False,
        "devices": False,
    }
    assert found["memory"].number == 80 - 50


@pytest.mark.parametrize("first", [1, 2, 7, 40, 99])
def test_bisection_is_exact_whatever_it_jumps_to(first: int) -> None:
    """The least number that fits is found from above with jumps and without, and what is undecided is no proof."""
    asked: list[int] = []

    def answer(number: int, jump: int = 0) -> tuple[bool | None, int]:
        asked.append(number)
        return number >= first, max(number - jump, first)

    for jump in (0, 3, 1000):
        asked.clear()
        found = least(lambda number, jump=jump: answer(number, jump), 0, 100)
        assert (found.number, found.excluded, found.proved) == (first, first - 1, True)
        assert len(asked) <= 16
    if first > 1:
        unsure = least(lambda number: (None if number < first else True, number), 0, 100)
        assert (unsure.number, unsure.proved) == (first, False)
