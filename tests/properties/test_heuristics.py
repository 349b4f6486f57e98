"""Heuristics on random questions: bounds against simulated values, and peaks without a timeline."""

from functools import cache
from typing import Any

import pytest

from helpers.happening import happens
from helpers.judged import baselines
from helpers.quick import part
from pipeplan.core.errors import InputError
from pipeplan.search.evaluate import Pace
from pipeplan.search.space.spaces import Spaces
from pipeplan.search.turns import LONG, NOT_ASKED, Baseline
from referee.bridge import objects
from referee.questions import question

SEEDS = part(range(80), 3)


class Slow(Pace):
    """Estimates under which no plan can be simulated in any time limit."""

    def simulate(self, candidate: object) -> float:
        """Seconds of a simulation."""
        return 1e9


def space(seed: int) -> Spaces | None:
    """The searched space of a random question; None if the question is refused."""
    document = question(seed, large=seed % 3 == 0)
    try:
        return Spaces(*objects(document))
    except InputError:
        return None


def judged(space: Spaces, **how: Any) -> dict[str, Baseline]:
    """The rows of all heuristics, with time enough."""
    return dict(baselines(space, 1e6, **how))


@cache
def simulated_rows(seed: int) -> dict[str, Baseline]:
    """The simulated rows of a random question, for both tests; none if it is refused."""
    asked = space(seed)
    return {} if asked is None else judged(asked)


@pytest.mark.parametrize("seed", SEEDS)
def test_bounds_of_heuristics_are_bounds(seed: int) -> None:
    """A heuristic that is only bounded has a plan when it is simulated, which takes at least as long as its bound."""
    asked = space(seed)
    if asked is None:
        return
    simulated = simulated_rows(seed)
    bounded = judged(asked, incumbent=lambda: 0, pace=Slow())
    for name, row in simulated.items():
        other = bounded[name]
        assert other.evaluated is None or asked.job.objective == "bottleneck"
        if row.value is None:
            assert (row.bound, other.bound) == (None, None)
            assert other.why == row.why not in NOT_ASKED
        elif other.value is None:
            assert other.bound is not None
            assert other.bound <= row.value
            assert other.why == LONG
            assert other.label
            assert bool(other.outside) == bool(row.outside)


@pytest.mark.happens(0.3)
def test_peaks_need_no_timeline() -> None:
    """The peaks shown for a heuristic are those of its simulated step."""
    for seed in SEEDS:
        for row in simulated_rows(seed).values():
            if happens(row.evaluated is not None):
                assert row.peaks == row.evaluated.timeline.peaks, seed


def test_only_plans_whose_bound_is_below_the_incumbent_are_worth_time() -> None:
    """Where there is no time for more, a heuristic is simulated if its bound is below the incumbent, else bounded."""
    asked = space(11)
    assert asked is not None
    least = min(row.value for row in judged(asked).values() if row.value is not None)
    rows = judged(asked, incumbent=lambda: least, pace=Slow()).values()
    assert any(row.bound is not None for row in rows)
    assert all(row.bound is None or row.bound >= least for row in rows if not row.outside)
    for plan in (row.evaluated for row in rows if row.evaluated is not None):
        assert plan.candidate.problem.evaluate(plan.boundaries) < least
