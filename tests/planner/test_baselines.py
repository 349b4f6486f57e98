"""Heuristics that are short of time."""

from instances import equal_devices, fat_head
from pipeplan.job import Job
from pipeplan.search.baselines import LATE, baselines
from pipeplan.search.space import Space
from pipeplan.solve import solve

SPACE = Space(fat_head(), equal_devices(3), Job(2))
"""Three devices for two micro-batches: data parallelism, which is asked first, has no plan."""


def test_turns_go_on_until_a_plan_is_known() -> None:
    """Without time, heuristics are asked until one of them has a plan, and no further."""
    found = list(baselines(SPACE, 0.0).values())
    first = next(n for n, one in enumerate(found) if one.judged)
    assert first > 0
    assert all(one.why != LATE for one in found[:first])
    assert {one.why for one in found[first + 1 :]} == {LATE}
    assert solve(fat_head(), equal_devices(3), batch=2, time_limit=0.0).value == found[first].value


def test_a_plan_that_is_known_already_ends_the_turns() -> None:
    """Then no heuristic is asked once the time is over."""
    assert {one.why for one in baselines(SPACE, 0.0, known=True).values()} == {LATE}
