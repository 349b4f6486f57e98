"""Parts of the fractional partition: a problem solved by hand, polygons, envelopes, rounding."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.fractional import FractionalPartition, exact, rounded
from pipeplan_formulations.fractional.pieces import Piece, clip, envelope, lower_hull
from pipeplan_formulations.partition import PathCut

SQUARE = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)]


def two_stages(**changes) -> FractionalPartition:
    """Layers of 30, 60, 30 forward and twice that backward on two boards, 6 bytes of weights each, 12 on chip."""
    times = np.array([[30, 60, 30]] * 2) * 10**6
    ones = np.ones(3, np.int64)
    problem = FractionalPartition(
        forward=times,
        backward=2 * times,
        forward_streamed=times + 10**7,
        backward_streamed=2 * times + 10**7,
        update=0 * times,
        through=np.array([[0, 4, 8]]) * 10**6,
        own=np.array([[4, 8, 4]]) * 10**6,
        latency=np.array([5]),
        resident=10 * ones,
        saved=4 * ones,
        workspace=2 * ones,
        weights=6 * ones,
        bytes_through=np.array([0, 4, 8]),
        bytes_own=np.array([4, 8, 4]),
        in_flight=np.array([2, 1]),
        limit=np.full(2, 2**62),
        on_chip=np.array([12, 12]),
        micro_batches=4,
        objective="bottleneck",
    )
    return replace(problem, **changes)


def test_a_problem_worked_by_hand() -> None:
    """Half of the middle layer on either side: equal loads, and weights of one and a half layers on chip."""
    problem = two_stages()
    assert problem.evaluate((0.0, 1.5, 3.0)) == 3 * 60e6
    assert problem.streamed((0.0, 1.5, 3.0)) == (False, False)
    assert problem.streamed((0.0, 2.1, 3.0)) == (True, False)
    assert problem.memory((0.0, 1.5, 3.0)) == (15 + 2 * 6 + 2, 15 + 6 + 4 + 4 + 2)
    assert exact.solve(problem, Limits(10)).objective == 180 * 10**6
    step = replace(problem, objective="step")
    # way back of the second stage: 180 ms before it, two latencies, four micro-batches of 180 ms
    assert step.evaluate((0.0, 1.5, 3.0)) == 180e6 + 10 + 4 * 180e6


def test_on_chip_memory_decides_where_layers_are_divided() -> None:
    """With room for half of all weights on either chip the middle stays optimal; with less on one, it shifts."""
    tight = two_stages(on_chip=np.array([9, 9]))
    assert exact.solve(tight, Limits(10)).solution == pytest.approx((0, 1.5, 3))
    short = two_stages(on_chip=np.array([8, 18]))
    assert exact.solve(replace(short, forward_streamed=3 * short.forward), Limits(10)).solution == pytest.approx(
        (0, 4 / 3, 3)
    )
    cheap = exact.solve(short, Limits(10)).solution  # to stream a little costs less than to leave the balance
    assert cheap == pytest.approx((0, 1.4210526, 3))
    assert short.streamed(cheap) == (True, False)


def test_invalid_instances_are_refused() -> None:
    """Shapes, signs, streaming faster than on chip, impossible tensors, path cuts of another depth are refused."""
    for changes, words in (
        ({"latency": np.array([1, 2])}, "latency has shape"),
        ({"saved": np.array([1, -1, 1])}, "negative"),
        ({"forward_streamed": np.zeros((2, 3), np.int64)}, "forward takes longer"),
        ({"through": np.array([[1, 1, 1]])}, "in front of layer 0"),
        ({"through": np.array([[0, 9, 9]]) * 10**6}, "more crosses"),
        ({"micro_batches": 0}, "at least 1"),
        ({"objective": "latency"}, "choose step or bottleneck"),
        ({"two_lanes": True, "ahead": np.array([1, 1])}, "on one lane"),
        ({"objective": "step", "paths": (PathCut((1,), (1,), (0,), (), ()),)}, "no path"),
    ):
        with pytest.raises(ValueError, match=words):
            two_stages(**changes)


@given(st.floats(-2, 2), st.floats(-2, 2), st.floats(-1, 3))
@settings(max_examples=200, deadline=None)
def test_clipping_keeps_just_what_lies_on_the_side(a: float, b: float, most: float) -> None:
    """Every corner satisfies the row, and every grid point that satisfies it lies inside the clipped polygon."""
    kept = clip(SQUARE, a, b, most, 1e-9)
    assert all(a * x + b * y <= most + 1e-6 for x, y in kept)
    for x, y in ((i / 6, j / 6) for i in range(7) for j in range(7)):
        if a * x + b * y <= most - 1e-6:
            lows = [height for at, height, _ in lower_hull([(u, v, 0.0) for u, v in kept]) if at <= x + 1e-9]
            assert lows
            assert min(v for _, v in kept) <= y + 1e-6
            assert max(v for _, v in kept) >= y - 1e-6


@st.composite
def pieces(draw) -> Piece:
    """Random convex piece over a part of 0 … 1, sometimes a single point."""
    shares = sorted(draw(st.lists(st.integers(0, 20), min_size=1, max_size=4, unique=True)))
    corners = lower_hull([(x / 20, float(draw(st.integers(0, 50))), 0.0) for x in shares])
    return Piece(3, tuple(corners), None)


@given(st.lists(pieces(), min_size=1, max_size=5))
@settings(max_examples=300, deadline=None)
def test_an_envelope_is_the_least_of_its_pieces(every: list[Piece]) -> None:
    """At every share some piece of the envelope is as low as the lowest piece, and none is lower."""
    kept = envelope(every, 1e-9)
    for x in (i / 40 for i in range(41)):
        there = [piece.at(x)[1] for piece in every if piece.low <= x <= piece.high]
        left = [piece.at(x)[1] for piece in kept if piece.low <= x <= piece.high]
        assert bool(there) == bool(left)
        if there:
            assert min(left) == pytest.approx(min(there), abs=1e-6)


def test_rounding_takes_the_better_neighbour() -> None:
    """1.5 of three channels is rounded to one or two; memory decides if times are equal."""
    problem = two_stages(on_chip=np.full(2, 2**62))
    assert rounded(problem, (0.0, 1.5, 3.0), (4, 4, 4)) == (0.0, 1.5, 3.0)
    assert rounded(problem, (0.0, 1.6, 3.0), (4, 4, 4)) == (0.0, 1.5, 3.0)
    assert rounded(problem, (0.0, 1.5, 3.0), (3, 3, 3)) in ((0.0, 1 + 1 / 3, 3.0), (0.0, 1 + 2 / 3, 3.0))
    tight = replace(problem, limit=np.array([28, 2**62]))
    assert rounded(tight, (0.0, 1.4, 3.0), (3, 3, 3)) == (0.0, 1 + 1 / 3, 3.0)
    assert rounded(replace(problem, limit=np.array([5, 5])), (0.0, 1.4, 3.0), (3, 3, 3)) is None
