"""Means, quantiles and standard errors of samples, checked against repeatedly drawn samples."""

from functools import cache
from math import inf

import numpy as np
import pytest

from helpers.pipelines import line
from pipeplan.core.perturbation import Robust
from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Schedule
from pipeplan.schedules import FAMILIES
from pipeplan.simulate.perturbed.sample import step_times
from pipeplan.simulate.perturbed.statistics import mean, quantile

SEEDS, SAMPLES = 60, 400


@cache
def many(spread: float) -> np.ndarray:
    """Steps of one plan under many seeds, shape (SEEDS, SAMPLES)."""
    rows = [step_times(*plan(), Robust(spread, spread / 2), samples=SAMPLES, seed=seed) for seed in range(SEEDS)]
    return np.array(rows)


def plan() -> tuple[Schedule, Pipeline]:
    """Four stages, eight micro-batches."""
    return FAMILIES["1f1b-sno"].write((1,) * 4, 8), line(4, 10_000, 20_000, occupancy=2_000)


@pytest.mark.parametrize("spread", [0.05, 0.3])
def test_the_error_of_the_mean_is_how_far_means_scatter(spread: float) -> None:
    """Over 60 seeds the means scatter as much as each of them says, to a quarter."""
    found = [mean(row) for row in many(spread)]
    scatter = np.std([each.value for each in found], ddof=1)
    assert 0.75 < scatter / np.mean([each.error for each in found]) < 1.33


@pytest.mark.parametrize("q", [0.5, 0.95])
def test_the_error_of_a_quantile_is_on_the_safe_side(q: float) -> None:
    """Over 60 seeds quantiles scatter no more than a quarter beyond what each of them says."""
    found = [quantile(row, q) for row in many(0.3)]
    scatter = np.std([each.value for each in found], ddof=1)
    assert scatter < 1.25 * np.mean([each.error for each in found])


def test_pairs_make_the_mean_surer() -> None:
    """With z and −z in turn, means scatter much less than those of as many independent steps would."""
    rows = many(0.05)
    alone = rows.std(axis=1).mean() / SAMPLES**0.5
    assert rows.mean(axis=1).std(ddof=1) < alone / 2


def test_estimates_of_made_up_samples() -> None:
    """By hand: the pairs 1 3, 5 7 have means 2 and 6; of 0 … 100 the median is 50, between the 45th and the 56th."""
    found = mean(np.array([1, 3, 5, 7], np.int64))
    assert (found.value, found.error) == (4, 2)
    assert mean(np.array([5, 5], np.int64)).error == inf
    middle = quantile(np.arange(101)[::-1], 0.5)
    assert (middle.value, middle.error) == (50, (56 - 45) / 2)
