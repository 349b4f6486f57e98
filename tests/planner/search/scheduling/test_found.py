"""Searched schedules of cases that can be checked by hand, and inputs that the search refuses."""

from dataclasses import replace

import pytest

from helpers.pipelines import line
from helpers.placed import placed
from helpers.shared_data import ROOT
from pipeplan.core.cluster import Overlap
from pipeplan.core.errors import InputError, PlanError
from pipeplan.core.pipeline import Pipeline, Stage
from pipeplan.core.schedule import Schedule
from pipeplan.core.validate import validate_memory, validate_schedule
from pipeplan.schedules import FAMILIES, PLACED
from pipeplan.schedules.placed import vee
from pipeplan.search.scheduling import (
    as_schedule,
    find_schedule,
    relaxed_problem,
    schedule_lower_bound,
    schedule_problem,
)
from pipeplan.search.scheduling.link_bound import link_bound
from pipeplan.simulate import makespan, simulate
from pipeplan_formulations.common.report import Limits, Status, Stop

LIMITS = Limits(time=10, workers=1)


def _equal(stages: int, held: int = 0, room: int = 0) -> Pipeline:
    """F = I = W = 1 on a line of devices with free links; memory for ``room`` micro-batches if it is given."""
    pipeline = placed(tuple((s,) for s in range(stages)), (Stage(1, 2, 1, 1, held=held),) * stages)
    return replace(pipeline, limits=(room * held,) * stages) if room else pipeline


def test_equal_stages_are_proved_with_a_family() -> None:
    """On equal stages ZB-H1 takes 3 m + p − 1, and that is proved at once: no order of any kind is shorter."""
    found = find_schedule(_equal(4), 8, LIMITS)
    assert found.value == found.bound == 3 * 8 + 4 - 1
    assert (found.status, found.stop) == (Status.OPTIMAL, Stop.OPTIMALITY)
    assert found.gap == 0


def test_split_backwards_can_be_excluded() -> None:
    """Without split backwards 1F1B's (m + p − 1)(F + B) is the best, and the result has no W."""
    found = find_schedule(_equal(4), 8, LIMITS, split=False)
    assert found.value == found.bound == (8 + 4 - 1) * 3
    assert found.schedule is not None
    assert not any("W" in row for row in found.schedule.as_text())


def test_little_memory_is_used_better_than_by_a_family() -> None:
    """With room for two micro-batches on each of four devices, the searched order beats every family that fits."""
    pipeline = _equal(4, held=1, room=2)
    found = find_schedule(pipeline, 8, LIMITS)
    assert found.schedule is not None
    assert found.schedule.family == "found"
    validate_memory(found.schedule, pipeline)
    fitting = FAMILIES["1f1b-sno"].write((1,) * 4, 8)
    with pytest.raises(PlanError):
        validate_memory(fitting, pipeline)
    assert found.value is not None
    assert makespan(fitting, pipeline) < found.value < 8 * 4 * 3  # faster with more memory, slower in sequence


def test_nothing_fits() -> None:
    """A device that cannot hold one micro-batch proves the pipeline infeasible."""
    found = find_schedule(replace(_equal(3, held=2), limits=(1,) * 3), 4, LIMITS)
    assert (found.schedule, found.value, found.gap) == (None, None, None)
    assert found.status is Status.INFEASIBLE


def test_a_cutoff_ends_the_search() -> None:
    """Once no schedule can be below the cutoff, the search ends, whatever its gap."""
    pipeline = _equal(6, held=1, room=2)
    whole = schedule_lower_bound(relaxed_problem(pipeline, 40))
    found = find_schedule(pipeline, 40, Limits(time=60, workers=1), cutoff=whole)
    assert found.stop is Stop.GAP
    assert found.bound >= whole


def test_a_start_is_never_lost() -> None:
    """With a time limit of 0, a start that no family writes is returned unchanged."""
    pipeline = placed(vee(2), tuple(Stage(1 + s % 2, 3, 2, 1, held=1) for s in range(4)), latency=2)
    problem = schedule_problem(pipeline, 3)
    best = find_schedule(pipeline, 3, LIMITS)
    assert best.schedule is not None
    again = find_schedule(pipeline, 3, Limits(time=0.0), starts=[best.schedule])
    assert again.schedule == best.schedule
    assert again.value == best.value
    assert problem.stages == 4


def test_two_lanes_are_kept_where_they_may_be_compared() -> None:
    """FBP is a start where devices compute while they send, and is ignored where one lane would wait for the other."""
    fbp = FAMILIES["fbp-as"].write((1, 1), 3)
    free = line(2, 2, 3, overlap=Overlap.STREAM, occupancy=4)
    blocked = replace(free, overlap=Overlap.NONE)
    for pipeline in (free, blocked):
        found = find_schedule(pipeline, 3, LIMITS, split=False, starts=[fbp])
        assert found.value is not None
        assert found.value <= makespan(FAMILIES["1f1b-so"].write((1, 1), 3), pipeline)
    assert find_schedule(free, 3, LIMITS, split=False, starts=[fbp]).bound <= makespan(fbp, free)


def test_a_link_that_all_share_bounds_the_step() -> None:
    """Tensors of 9 ns on one card, both ways: 2 m of them lie between the first forward and the first stage's end."""
    pipeline = line(2, 1, 2, occupancy=9, resource="card")
    assert link_bound(pipeline, 6, split=False) == 1 + 2 * 6 * 9 + 2
    assert schedule_lower_bound(relaxed_problem(pipeline, 6, split=False)) == link_bound(pipeline, 6, split=False)
    found = find_schedule(pipeline, 6, LIMITS, split=False)
    assert found.value is not None
    assert found.bound == link_bound(pipeline, 6, split=False) <= found.value


def test_reductions_of_tied_stages_do_not_wait_for_each_other() -> None:
    """Stages 0 and 3, and 1 and 2, hold the same weights and lie crosswise on two devices: no deadlock."""
    pipeline = replace(
        placed(((0,), (1,), (0,), (1,)), (Stage(1, 2, 1, 1, update=1, reduce=1),) * 4), tied=((0, 3), (1, 2))
    )
    found = find_schedule(pipeline, 3, LIMITS)
    assert found.schedule is not None
    validate_schedule(found.schedule, 4, 3, pipeline.placement, pipeline.tied)


@pytest.mark.parametrize(
    ("placement", "said"),
    [(((0, 1), (2,)), "2-1 replicas"), (PLACED["chimera"].placement(2), "several data-parallel replicas")],
)
def test_unequal_or_mixed_replicas_are_refused(placement: tuple[tuple[int, ...], ...], said: str) -> None:
    """Unequal numbers of replicas, and replicas that share devices, are refused with advice."""
    with pytest.raises(InputError, match=said):
        schedule_problem(placed(placement, (Stage(1, 2, 1, 1),) * 2), 4)


def test_replicas_of_unequal_memory_are_refused() -> None:
    """Neither replica has the least memory on every device."""
    pipeline = replace(placed(((0, 1), (2, 3)), (Stage(1, 2, held=1),) * 2), limits=(5, 6, 8, 7))
    with pytest.raises(InputError, match="replicas that are alike"):
        schedule_problem(pipeline, 4, split=False)


def test_unknown_halves_are_refused() -> None:
    """A backward whose parts have no times cannot be split; a search leaves it joined."""
    pipeline = placed(((0,), (1,)), (Stage(1, 2), Stage(1, 2, 1, 1)))
    with pytest.raises(InputError, match="stage 0 takes 2 ns and its two parts none"):
        schedule_problem(pipeline, 4)
    with pytest.raises(InputError, match="3 entries for 2 stages"):
        schedule_problem(pipeline, 4, [True] * 3)
    with pytest.raises(InputError, match="at least one micro-batch"):
        schedule_problem(pipeline, 0)
    assert relaxed_problem(pipeline, 4).split == (False, True)
    assert find_schedule(pipeline, 4, LIMITS).status is Status.OPTIMAL


def test_a_replica_with_one_micro_batch_less_leaves_out_the_last() -> None:
    """Three micro-batches on two replicas: the second one runs one, and both reduce."""
    pipeline = placed(((0, 1),), (Stage(1, 2, 1, 1, update=1, reduce=1),))
    schedule = find_schedule(pipeline, 3, LIMITS).schedule
    assert schedule is not None
    problem = schedule_problem(pipeline, 3, split=False)
    orders = (tuple(op for i in range(2) for op in problem.operations(0) if op.micro_batch == i),)
    assert as_schedule(orders, pipeline, 3).as_text() == ("0F0 0B0 0F2 0B2 0R 0U", "0F1 0B1 0R 0U")


def test_an_unfit_start_is_refused() -> None:
    """A start with other micro-batches is refused."""
    with pytest.raises(PlanError):
        find_schedule(_equal(2), 4, LIMITS, starts=[Schedule("odd", ((), ()))])


def test_the_picture_of_the_docs_is_what_runs() -> None:
    """Its lists take 36 and 25 on three equal devices with memory for two micro-batches; the search finds 25."""
    text = (ROOT / "docs" / "schedules.md").read_text().partition("## Schedules that are found")[2]
    rows = [line.split()[2:] for line in text.splitlines() if line.startswith("device ")]
    pipeline = _equal(3, held=1, room=2)
    for drawn, takes in ((rows[:3], 36), (rows[3:6], 25)):
        names = [[f"{stage}{cell}" for cell in row if cell[0] in "FBIW"] for stage, row in enumerate(drawn)]
        schedule = Schedule.from_text("drawn", map(" ".join, names))
        validate_memory(schedule, pipeline)
        timeline = simulate(schedule, pipeline)
        assert timeline.makespan == takes
        for span in timeline.spans:
            assert drawn[span.device][span.start] == str(span.action)[1:]
    found = find_schedule(pipeline, 6, LIMITS)
    assert found.value == found.bound == 25
