"""Passes of sharded stages against a play of their units and collectives, event by event."""

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeplan.costs.sharded import Passes, Units

FREQUENT = st.one_of(st.integers(0, 3), st.integers(0, 40))
COLLECTIVE = st.integers(0, 10).map(lambda time: 4 * time)
SPEEDS = st.integers(1, 4)
"""Quarters of its speed at which a unit computes beside collectives, whose times are multiples of 4."""
LAYERS = st.lists(st.tuples(FREQUENT, FREQUENT, COLLECTIVE), min_size=1, max_size=7)
"""For each layer: its forward, its backward, and its gather; 0 for a layer without parameters."""
Layer = tuple[int, int, int]


def play(blocks: list[list[int]], gathers: list[int], sums: list[int], quarters: int) -> int:
    """Units one after the other: while one computes, the next one's gather runs, then the sum of the one before."""
    now = gathers[0]
    for i, block in enumerate(blocks):
        busy = (gathers[i + 1] if i + 1 < len(blocks) else 0) + (sums[i - 1] if i else 0)
        now += busy + max(sum(block) - busy * quarters // 4, 0)
    return now + sums[-1]


def played(layers: list[Layer], of: int, level: int, quarters: int = 4) -> int:
    """Nanoseconds of a pass, its layers in its own order; ``of``: 0 for forwards, 1 for backwards."""
    units: list[list[Layer]] = []
    front = 0
    for layer in layers:
        if layer[2]:
            units.append([layer])
        elif units:
            units[-1].append(layer)
        else:
            front += layer[of]
    if not units:
        return front
    gathers = [unit[0][2] if level == 3 else 0 for unit in units]
    sums = [3 * unit[0][2] if of else 0 for unit in units]  # sums take three times as long
    return front + play([[layer[of] for layer in unit] for unit in units], gathers, sums, quarters)


def passes(layers: list[Layer], level: int, quarters: int = 4) -> Passes:
    """The passes of such layers."""
    forward, backward, gather = (np.array(row, np.int64) for row in zip(*layers, strict=True))
    return Passes(forward, backward, gather, gather, 3 * gather, level == 3, quarters / 4)


@given(LAYERS, st.sampled_from((2, 3)), SPEEDS)
def test_passes_of_every_span_wait_for_their_collectives(layers: list[Layer], level: int, quarters: int) -> None:
    own = passes(layers, level, quarters)
    for a, b in combinations(range(len(layers) + 1), 2):
        expected = played(layers[a:b], 0, level, quarters), played(layers[a:b][::-1], 1, level, quarters)
        assert own.of(a, b) == expected
    assert tuple(int(row.sum()) for row in own.whole) == own.of(0, len(layers))


@given(LAYERS, st.sampled_from((2, 3)), st.integers(0, 4))
def test_tables_sum_to_at_most_the_time_of_every_span(layers: list[Layer], level: int, quarters: int) -> None:
    own = passes(layers, level, quarters)
    for a, b in combinations(range(len(layers) + 1), 2):
        assert all(int(row[a:b].sum()) <= time for row, time in zip(own.least, own.of(a, b), strict=True))


@given(LAYERS)
def test_only_the_first_forward_of_a_step_gathers_at_level_2(layers: list[Layer]) -> None:
    own, computed = passes(layers, 2), sum(layer[0] for layer in layers)
    assert own.of(0, len(layers))[0] == computed
    assert own.first_forward(0, len(layers)) == played(layers, 0, 3) - computed
    assert passes(layers, 3).first_forward(0, len(layers)) == 0


def test_tables_of_like_units_count_what_each_waits_for_between_others() -> None:
    own = passes([(10, 20, 12)] * 4, 3)
    forward, backward = own.least
    assert forward.tolist() == [22, 12, 12, 12]  # the first waits in full, each other one for what is not ahead
    assert backward.tolist() == [20 + 36, 20 + 4, 20 + 4, 20 + 12]  # a gather and what is certain of a sum beside 20


def test_where_nothing_runs_beside_a_collective_all_is_added() -> None:
    own = passes([(5, 9, 2), (1, 2, 0), (7, 8, 3)], 3, quarters=0)
    assert [row.tolist() for row in own.least] == [[7, 1, 10], [17, 2, 20]]
    assert own.of(1, 3) == (11, 22)


def test_layers_that_share_weights_are_one_unit() -> None:
    units = Units.of(np.array([8, 2, 0, 3, 1]), ((0, 2, 4),))
    assert units.first.tolist() == [9, 2, 0, 3, 0]
    assert units.last.tolist() == [0, 2, 0, 3, 9]
    assert units.reaching.tolist() == [9, 11, 9, 12, 9]


def test_units_of_shared_weights_are_gathered_at_one_end_and_summed_at_the_other() -> None:
    forward, backward = np.array([10, 10, 10]), np.array([20, 20, 20])
    own = Passes(forward, backward, np.array([12, 4, 0]), np.array([0, 4, 12]), np.array([30, 5, 0]), True, 1.0)
    assert own.of(0, 3) == (12 + 30, 12 + 60 + 30)  # all but the ends is beside the computation
