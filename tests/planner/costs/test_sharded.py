"""Passes of sharded stages against a play of their units and collectives, event by event."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeplan.costs.sharded import backward_pass, forward_pass

TIMES = st.one_of(st.integers(0, 3), st.integers(0, 40))
COLLECTIVES = TIMES.map(lambda time: 4 * time)
LAYERS = st.lists(st.tuples(TIMES, COLLECTIVES, COLLECTIVES, st.booleans()), min_size=1, max_size=7)
"""For each layer: its forward or backward, the gather and the sum, and whether it has parameters."""


SPEEDS = st.integers(1, 4)
"""Quarters of its speed at which a unit computes beside collectives, whose times are multiples of 4."""


def play(blocks: list[list[int]], gathers: list[int], sums: list[int], quarters: int) -> int:
    """Units one after the other: while one computes, the next one's gather runs, then the sum of the one before."""
    now = gathers[0]
    for i, block in enumerate(blocks):
        busy = (gathers[i + 1] if i + 1 < len(blocks) else 0) + (sums[i - 1] if i else 0)
        now += busy + max(sum(block) - busy * quarters // 4, 0)
    return now + sums[-1]


def units_of(layers: list[tuple[int, int, int, bool]]) -> list[list[tuple[int, int, int, bool]]]:
    """The layers from each one with parameters to the next; those in front of the first are left out."""
    found: list[list[tuple[int, int, int, bool]]] = []
    for layer in layers:
        if layer[3]:
            found.append([layer])
        elif found:
            found[-1].append(layer)
    return found


@given(LAYERS, SPEEDS)
def test_a_forward_waits_for_one_gather_at_a_time(layers: list[tuple[int, int, int, bool]], quarters: int) -> None:
    units = units_of(layers)
    front = sum(layer[0] for layer in layers) - sum(layer[0] for unit in units for layer in unit)
    expected = front
    if units:
        blocks = [[layer[0] for layer in unit] for unit in units]
        expected += play(blocks, [unit[0][1] for unit in units], [0] * len(units), quarters)
    times, gathers, _, have = (np.array(row, np.int64) for row in zip(*layers, strict=True))
    found = forward_pass(times, gathers * have, np.flatnonzero(have), quarters / 4)
    assert found.sum() == expected
    assert (found >= times).all()


@given(LAYERS, SPEEDS)
def test_a_backward_waits_for_a_gather_and_a_sum(layers: list[tuple[int, int, int, bool]], quarters: int) -> None:
    units = units_of(layers[::-1])
    front = sum(layer[0] for layer in layers) - sum(layer[0] for unit in units for layer in unit)
    expected = front
    if units:
        blocks = [[layer[0] for layer in unit] for unit in units]
        expected += play(blocks, [unit[0][1] for unit in units], [unit[0][2] for unit in units], quarters)
    times, gathers, sums, have = (np.array(row, np.int64) for row in zip(*layers, strict=True))
    found = backward_pass(times, gathers * have, sums * have, np.flatnonzero(have), quarters / 4)
    assert found.sum() == expected
    assert (found >= times).all()


def test_where_nothing_runs_beside_a_collective_all_is_added() -> None:
    times, gathers, sums, units = np.array([5, 1, 7]), np.array([2, 0, 3]), np.array([4, 0, 6]), np.array([0, 2])
    assert forward_pass(times, gathers, units, 0).tolist() == [7, 1, 10]
    assert backward_pass(times, gathers, sums, units, 0).tolist() == [11, 1, 16]
