"""Explanations of plans whose stages are teams, and what larger teams would bring."""

from dataclasses import replace

import pytest

from helpers.instances import equal_devices, model_of
from helpers.operators import perceptrons
from helpers.quick import rarely
from pipeplan.analysis.explain import explain, remedies
from pipeplan.analysis.explain.changes import largest_team
from pipeplan.analysis.explain.feasible import fit, limits_never_bind
from pipeplan.core.cluster import Link
from pipeplan.core.errors import InfeasibleError
from pipeplan.core.job import Job
from pipeplan.costs.sharding.usual import usual_teams
from pipeplan.solve import solve

MODEL, CLUSTER = perceptrons(), equal_devices(4, link=Link(10**12, 1))
JOB = Job(4, optimizer="adam")


@pytest.mark.parametrize("teams", [rarely(()), (1, 2), rarely((2,))])
def test_a_larger_team_brings_what_a_solve_with_it_finds(teams: tuple[int, ...]) -> None:
    """Teams of twice the size are one of the changes; the gain is that of the changed question."""
    job = replace(JOB, teams=teams)
    result = solve(MODEL, CLUSTER, job=job)
    larger = 2 * result.plan.team
    found = explain(MODEL, CLUSTER, result=result, each=20)
    own = [each for each in found.outcomes if each.label.startswith("teams of")]
    if larger in (teams or usual_teams(MODEL, CLUSTER, job)):
        assert not own
        return
    (outcome,) = own
    assert outcome.label == f"teams of {larger} devices too, which share every layer"
    again = solve(MODEL, CLUSTER, job=replace(job, teams=(*(teams or (1,)), larger)))
    assert (outcome.value, outcome.bound) == (min(again.value, result.value), again.bound)


def test_teams_are_named_as_teams() -> None:
    """Devices are numbered t0, t1 and have their team's size; the path covers the step."""
    result = solve(MODEL, CLUSTER, job=replace(JOB, teams=(2,), replicas=(1,), depths=(2,)))
    found = explain(MODEL, CLUSTER, result=result, each=20)
    assert "2 stages on 2 teams" in found.headline
    assert [room.device for room in found.rooms] == ["t0 2 x unit", "t1 2 x unit"]
    assert "stage 0 (t0 2 x unit)" in {portion.where for portion in found.path}
    assert sum(portion.time for portion in found.path) == result.value


def test_there_are_no_larger_teams_than_nodes_nor_of_unknown_operators() -> None:
    """Models without operators, pins to a device, and nodes that are too small leave it out."""
    assert largest_team(MODEL, CLUSTER, JOB) == 4
    assert largest_team(model_of([1, 1]), CLUSTER, JOB) == 1
    assert largest_team(MODEL, CLUSTER, replace(JOB, pin=(("l0", "d1"),))) == 1
    result = solve(MODEL, CLUSTER, job=replace(JOB, teams=(4,)))
    assert not [each for each in explain(MODEL, CLUSTER, result=result).outcomes if each.label.startswith("teams of")]


def test_a_team_is_a_remedy_where_no_layer_fits_on_a_device() -> None:
    """A layer's state fits on two devices only: teams of two help, and their plan is one for the whole model."""
    model, tight = perceptrons(1), equal_devices(2, memory=2500, link=Link(10**12, 1))
    job = Job(1, optimizer="adam", zero=(0,), teams=(1,))
    assert solve(model, tight, job=replace(job, teams=())).plan.team == 2
    with pytest.raises(InfeasibleError):
        solve(model, tight, job=job)
    found = remedies(model, tight, job)
    assert found is not None
    (teams,) = [each for each in found.remedies if each.kind == "teams"]
    assert teams.fits and teams.text.startswith("teams of 2 devices too")
    asked = replace(job, teams=(2,))
    answer = fit(model, tight, asked, time_limit=20)
    assert answer.plan is not None and answer.plan.strategies and answer.plan.fingerprint == model.fingerprint
    assert not limits_never_bind(model, equal_devices(2), asked)


def test_without_time_to_find_ways_to_split_nothing_is_proved_of_teams() -> None:
    """The ways to split layers are sought within the time of a question too; where it is over, it is undecided."""
    model, tight = perceptrons(1), equal_devices(2, memory=100, link=Link(10**12, 1))
    job = Job(1, optimizer="adam", zero=(0,), teams=(1, 2))
    assert fit(model, tight, job, time_limit=-1.0).verdict is None
    assert fit(model, tight, job, time_limit=20.0).verdict is False


def test_the_least_memory_of_teams() -> None:
    """With teams too, the number of bytes is exact."""
    model, tight = perceptrons(1), equal_devices(2, memory=1000, link=Link(10**12, 1))
    job = Job(1, optimizer="adam", zero=(0,), teams=(2,))
    found = remedies(model, tight, job)
    assert found is not None
    (memory,) = [each for each in found.remedies if each.kind == "memory"]
    assert memory.fits and memory.smallest and memory.number is not None
    for more, fits in ((memory.number, True), (memory.number - 1, False)):
        assert (
            fit(model, equal_devices(2, memory=1000 + more, link=Link(10**12, 1)), job, time_limit=20).plan is not None
        ) == fits
