"""Questions that name no sizes of teams: the referee finds the usual ones itself, and every way of them."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from helpers.quick import rarely
from pipeplan.costs.sharding import usual
from pipeplan.search.space.opening import Opening
from pipeplan_formulations.common.sentinels import UNLIMITED
from referee.bridge import ask
from referee.operators import in_equal_teams
from referee.questions import question
from referee.usual import with_usual_teams, without_sizes
from referee.verdict import judge

SEEDS = range(1_470_000, 1_470_400)
NOTICED = 1_470_010
"""A small question that teams of two answer best."""


def asked(seed: int) -> dict[str, Any]:
    """A question on teams that leaves their sizes to the planner, under schedule families, without slices."""
    document = question(seed)
    in_equal_teams(document)
    without_sizes(document)
    document["job"].pop("schedules", None)
    document["solve"] |= {"time_limit": 60.0}
    return document


def disputes(document: dict[str, Any]) -> list[str]:
    """What the referee says of the answer."""
    return judge(document, ask(document)).faults


def usable(seed: int) -> bool:
    """Whether there are usual sizes, and few ways of them."""
    document = question(seed)
    return not document["job"].get("slices") and bool(with_usual_teams(asked(seed))["job"].get("teams"))


@pytest.mark.parametrize("seeds", [(1_470_003, 1_470_006, 1_470_025), rarely(SEEDS)])
def test_answers_that_leave_sizes_to_the_planner_are_right(seeds: Sequence[int]) -> None:
    """Value, bound, optimum and ways, also of sizes that a bound ruled out before they were priced."""
    for seed in filter(usable, seeds):
        assert not disputes(asked(seed)), seed


def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if pairs of devices were no usual team."""
    monkeypatch.setattr(usual, "USUAL", (4, 8))


def _ruled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no team could be faster."""
    monkeypatch.setattr(Opening, "raised", lambda *_: UNLIMITED)


def _unopened(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a size without open ways had no plans."""
    monkeypatch.setattr(Opening, "open", lambda own: setattr(own, "done", True) or iter(()))


@pytest.mark.parametrize("mutation", [_forgotten, _ruled_out, _unopened])
def test_sizes_that_were_not_searched_are_noticed(
    mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a disagreement each."""
    document = asked(NOTICED)
    answer = ask(document)
    assert max(answer["teams"]) == 2 and not judge(document, answer).faults
    mutation(monkeypatch)
    assert disputes(document)
