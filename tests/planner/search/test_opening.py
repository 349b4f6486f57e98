"""Teams are opened after a first plan; what the time does not suffice for is bounded by nothing."""

from importlib import import_module

import pytest

from helpers.instances import equal_devices
from helpers.operators import perceptrons
from pipeplan.core.cluster import Link
from pipeplan.core.errors import UndecidedError
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


def test_without_time_for_teams_nothing_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan without teams is an answer, with a bound of 0; if only teams are asked for there is none."""
    monkeypatch.setattr(import_module("pipeplan.solve"), "FOR_TEAMS", 0.0)
    found = solve(perceptrons(), CLUSTER, 4, teams=(1, 2), workers=1)
    assert found.plan.team == 1
    assert (found.bound, found.status, found.late) == (0, Status.FEASIBLE, True)
    assert found.stop is Stop.TIME
    assert "not all ways to split layers over teams are known" in str(found)
    with pytest.raises(UndecidedError):
        solve(perceptrons(), CLUSTER, 4, teams=(2,), workers=1)
