"""A heuristic of one's own is judged like the others; what it does wrong is its row's reason, and costs no answer."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from helpers.instances import equal_devices, fat_head
from pipeplan.baselines.deadline import check_deadline
from pipeplan.baselines.partitioners import PARTITIONERS, NotApplicable
from pipeplan.baselines.partitioners.partitioner import Partitioner
from pipeplan.baselines.planners import PLANNERS, Arrangement, BaselinePlanner
from pipeplan.search import heuristics, proposals, turns
from pipeplan.search.turns import Baseline
from pipeplan.solve import solve

MINE = "mine"
LAYERS = len(fat_head().layers)
EVEN = (0, 1, 2, LAYERS)


def row_of(balance: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, planner: bool = False) -> Baseline:
    """The row of a heuristic that is named beside an answer, which is no slower than it."""
    own: dict[str, Any] = (
        {"PLANNERS": {**PLANNERS, MINE: BaselinePlanner(MINE, "mine", "drawn", (), balance)}}
        if planner
        else {"PARTITIONERS": {**PARTITIONERS, MINE: Partitioner(MINE, "mine", "drawn", balance)}}
    )
    for module in (heuristics, proposals, turns):
        for name, known in own.items():
            monkeypatch.setattr(module, name, known)
    found = solve(fat_head(), equal_devices(3), 8, time_limit=0.3, workers=1, beside=(MINE,))
    row = found.baselines[MINE]
    assert row.outside or row.value is None or row.value >= found.value
    assert not row.untried
    return row


def fails(*_: Any) -> Any:
    """As a mistake does."""
    raise ValueError("three is no number of mine")


@pytest.mark.parametrize("found", [EVEN, list(EVEN), np.array(EVEN), (0, LAYERS, LAYERS, LAYERS)])
def test_boundaries_of_any_kind_are_judged(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuples, lists and arrays of whole numbers; devices of empty stages are left out."""
    assert row_of(lambda *_: found, monkeypatch).value is not None


def test_a_slow_one_that_is_named_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although it computes for longer than the search may, whether or not it looks at its deadline."""

    def balance(*_: Any) -> tuple[int, ...]:
        time.sleep(0.5)
        check_deadline()
        return EVEN

    assert row_of(balance, monkeypatch).value is not None


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ((0, 2, 1, LAYERS), "never fall"),
        ((1, 1, 2, LAYERS), "begin with 0"),
        ((0, 1, 2, LAYERS + 1), f"end with {LAYERS}"),
        ((0, 1, LAYERS), "4 numbers"),
        ((0.0, 1.0, 2.0, float(LAYERS)), "whole numbers"),
        (None, "whole numbers"),
    ],
)
def test_what_are_no_boundaries_is_said(found: Any, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that loses layers, or that has some twice, is no plan, however fast it would be."""
    row = row_of(lambda *_: found, monkeypatch)
    assert row.value is None and why in row.why


def test_an_error_inside_is_said_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer stands all the same."""
    for planner in (False, True):
        row = row_of(fails, monkeypatch, planner)
        assert row.value is None
        assert "ValueError: three is no number of mine (test_own_heuristics.py, line" in row.why


def test_its_own_reason_stands_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of every other heuristic that has no plan."""

    def balance(*_: Any) -> Any:
        raise NotApplicable("I have none")

    assert row_of(balance, monkeypatch).why == "I have none"


@pytest.mark.parametrize(
    ("arrangement", "why"),
    [
        (Arrangement((0, 2, LAYERS), ((0,), (7,))), "the cluster has 3 devices"),
        (Arrangement((0, 2, LAYERS), ((0, 1), (1,))), "devices of its own"),
        (Arrangement((0, 2, LAYERS), ((0, 1), ())), "devices of its own"),
        (Arrangement((0, 2, 2, LAYERS), ((0,), (1,), (2,))), "leave a stage empty"),
        (Arrangement((0, 2), ((0,),)), f"end with {LAYERS}"),
    ],
)
def test_arrangements_that_are_no_plans_are_said(
    arrangement: Arrangement, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those beside them are judged: one bad arrangement does not cost the others."""
    row = row_of(lambda *_: (arrangement,), monkeypatch, planner=True)
    assert row.value is None and why in row.why
    good = Arrangement((0, 2, LAYERS), ((0, 1), (2,)))
    assert row_of(lambda *_: (arrangement, good), monkeypatch, planner=True).value is not None


def test_none_of_the_known_ones_fails() -> None:
    """The reasons of heuristics that come with the program are their own."""
    found = solve(fat_head(), equal_devices(3), 8, time_limit=1.0, workers=1)
    assert not [row for row in found.baselines.values() if "it failed" in row.why]
