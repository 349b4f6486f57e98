"""Teams are opened after a first plan; what the time does not suffice for is bounded by its least work."""

from importlib import import_module

import pytest

from helpers.instances import equal_devices
from helpers.operators import perceptrons
from pipeplan.core.cluster import Link
from pipeplan.core.errors import InputError, UndecidedError
from pipeplan.core.job import Job
from pipeplan.search.space.spaces import Spaces
from pipeplan.solve import solve
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Status, Stop

CLUSTER = equal_devices(4, link=Link(10**9, 1))


def test_spaces_are_opened_one_by_one() -> None:
    """The same ones, in the same order, as at once; none is missing at the end."""
    at_once = Spaces(perceptrons(), CLUSTER, Job(4, teams=(1, 2, 4)))
    later = Spaces(perceptrons(), CLUSTER, Job(4, teams=(1, 2, 4)), opening=Clock(Limits()))
    assert not later.teams and later.late
    opened = [spaces.split for spaces in later.open_teams()]
    assert opened == list(later.teams) == list(at_once.teams)
    assert not later.late and not at_once.late


def test_without_time_for_teams_their_least_work_is_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan without teams is an answer, and so is that bound; if only teams are asked for there is none."""
    proved = solve(perceptrons(), CLUSTER, 4, teams=(1, 2), workers=1)
    monkeypatch.setattr(import_module("pipeplan.solve.solving"), "FOR_TEAMS", 0.0)
    found = solve(perceptrons(), CLUSTER, 4, teams=(1, 2), workers=1)
    assert found.plan.team == 1
    assert 0 < found.bound <= proved.value
    assert (found.status, found.late, found.stop) == (Status.FEASIBLE, True, Stop.TIME)
    assert "not all ways to split layers over teams are known" in str(found)
    with pytest.raises(UndecidedError) as undecided:
        solve(perceptrons(), CLUSTER, 4, teams=(2,), workers=1)
    assert undecided.value.bound > 0


def test_sizes_without_room_are_left_out_with_a_word() -> None:
    """If others have room, or plans without teams are asked for too; alone they are refused."""
    words = "no teams of 8, for which "
    found = solve(perceptrons(), CLUSTER, 4, teams=(1, 2, 8), workers=1)
    without = solve(perceptrons(), CLUSTER, 4, teams=(1, 2), workers=1)
    assert (found.value, found.bound) == (without.value, without.bound)
    assert words in found.searched.as_text() and words not in without.searched.as_text()
    with pytest.raises(InputError, match=r"no node of .* has 8 devices"):
        solve(perceptrons(), CLUSTER, 4, teams=(8,), workers=1)
    for unlike in (False, True):
        alone = solve(perceptrons(), CLUSTER, 4, teams=(1, 8), unlike_teams=unlike, workers=1)
        assert alone.value == solve(perceptrons(), CLUSTER, 4, workers=1).value
        assert words in alone.searched.as_text()


def test_where_nothing_can_be_split_plans_without_teams_are_the_answer() -> None:
    """If they are asked for too, with a word; else the question is refused. Here no length has three parts."""
    three = equal_devices(3, link=Link(10**9, 1))
    for unlike in (False, True):
        found = solve(perceptrons(), three, 4, teams=(1, 3), unlike_teams=unlike, workers=1)
        assert found.value == solve(perceptrons(), three, 4, workers=1).value
        assert "no teams of 3, over which no operator can be split" in found.searched.as_text()
    with pytest.raises(InputError, match="can be split over them"):
        solve(perceptrons(), three, 4, teams=(3,), workers=1)
