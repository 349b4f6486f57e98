"""Consistency of reports, and the clock of a time limit."""

import pytest

from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.report import Limits, Report, Status, Stop


def report(status=Status.FEASIBLE, objective=10, bound=8, solution=(0, 1)):
    return Report(status, Stop.TIME, objective, bound, 0.1, "none", "1", 0, solution)


def test_gap_is_relative_to_the_objective():
    """The gap is (objective − bound) / objective, 0 for an objective of 0, None without a solution."""
    assert report().gap == pytest.approx(0.2)
    assert report(Status.OPTIMAL, 0, 0).gap == 0
    assert report(Status.UNKNOWN, None, 8, None).gap is None


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"bound": 11}, "bound 11 lies above the objective 10"),
        ({"status": Status.OPTIMAL}, "bound 8 is not the objective 10"),
        ({"status": Status.INFEASIBLE}, "does not fit"),
        ({"solution": None}, "does not fit"),
        ({"objective": None}, "does not fit"),
    ],
)
def test_contradictions_are_refused(parts, message):
    """A bound above the objective, an optimum with a gap, and a solution without a value raise ValueError."""
    with pytest.raises(ValueError, match=message):
        report(**parts)


def test_clock_stops_at_the_limit():
    """A clock raises once its time is over, and not before."""
    Clock(Limits(time=60)).check()
    spent = Clock(Limits(time=0))
    assert spent.left == 0
    with pytest.raises(OutOfTimeError):
        while True:
            spent.check()
