"""Robust choices on random questions: equal to nominal ones without a spread, and consistent with samples."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.instances import equal_devices, model_of
from pipeplan.core.cluster import Cluster, Link
from pipeplan.core.model import Model
from pipeplan.core.perturbation import Robust
from pipeplan.solve import solve

Question = tuple[Model, Cluster, dict[str, Any]]


@st.composite
def questions(draw: st.DrawFn) -> Question:
    """Up to five layers on up to three equal devices in a box, links, sizes, tight memory now and then."""
    n = draw(st.integers(2, 5))

    def numbers(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=n, max_size=n))

    model = model_of(
        numbers(100, 900),
        numbers(100, 1800),
        saved=[3] * n,
        output=numbers(0, 3),
        parameters=[4] * n,
        update=numbers(0, 50),
        sizes=draw(st.sampled_from([(1,), (1, 2)])),
    )
    link = Link(draw(st.sampled_from([None, 10**7])), draw(st.integers(0, 50)))
    overlap = draw(st.sampled_from(["copy", "none", "stream"]))
    cluster = equal_devices(draw(st.integers(1, 3)), draw(st.sampled_from([None, 200])), link, overlap)
    return model, cluster, {"batch": 4, "recompute": draw(st.sampled_from(["none", "choose"]))}


@given(questions())
@settings(max_examples=25, deadline=None)
def test_without_a_spread_nothing_changes(question: Question) -> None:
    """Spread 0 chooses a plan as fast as the plain answer's, with its bound and its proof."""
    model, cluster, options = question
    plain, still = solve(model, cluster, **options), solve(model, cluster, robust=0.0, **options)
    assert (still.value, still.bound, still.status) == (plain.value, plain.bound, plain.status)


@given(questions(), st.sampled_from([Robust(0.3), Robust(0.1, 0.3, quantile=0.9)]))
@settings(max_examples=25, deadline=None)
def test_reported_means_hold(question: Question, robust: Robust) -> None:
    """No mean of a compared plan lies below its nominal step or the bound (six errors aside), the chosen plan is
    the best of those that ran all samples, and the one with the fastest nominal step is among them."""
    model, cluster, options = question
    result = solve(model, cluster, robust=robust, **options)
    choice = result.robust
    assert choice is not None
    assert choice.mean_bound == result.bound <= choice.nominal.value <= result.value
    for row in choice.compared:
        assert row.mean.value + 6 * row.mean.error >= row.value >= result.bound
    finalists = [row for row in choice.compared if row.samples == choice.samples]
    estimates = [(row.mean if robust.quantile is None else row.quantile).value for row in finalists]
    assert estimates[0] == min(estimates)
    assert choice.nominal.value in {row.value for row in finalists}
