"""Passes of sharded stages against a play of their units and collectives, event by event."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.instances import equal_devices, model_of
from pipeplan.core.errors import InfeasibleError
from pipeplan.core.job import Job
from pipeplan.costs.assembly import assemble
from pipeplan.costs.pricing import price
from pipeplan.costs.sharded import Passes, Units
from pipeplan.solve import solve

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


def test_layers_without_parameters_run_beside_their_neighbours_buffers() -> None:
    """What is gathered ahead and what was summed stays while a layer between computes; a forward has what came last."""
    units, none = Units.of(np.array([0, 40, 0, 4, 0]), ()), np.zeros(5, np.int64)
    assert units.with_buffers(none, 2, 100, every=True)[[0, 2, 4]].tolist() == [40, 44, 4]
    assert units.with_buffers(none, 2, 100, every=False)[[0, 2, 4]].tolist() == [40, 40, 4]
    assert units.with_buffers(none + 7, 2, 100, every=True)[[0, 2, 4]].tolist() == [47, 51, 11]


def test_layers_that_share_weights_run_beside_their_neighbours_buffers() -> None:
    """The last layer of a unit has what is behind it, the first one what is before it."""
    units = Units.of(np.array([8, 40, 4, 0, 16]), ((1, 3),))
    beside = units.with_buffers(np.full(5, 1000), 2, 100, every=True)
    assert (beside - 1000).tolist() == [2 * 8 + 40, 2 * 40 + 4 + 8, 2 * 44 + 16 + 8, 2 * 40 + 16 + 4, 2 * 16 + 40]


def test_computation_loses_nothing_beside_the_base_of_a_collective() -> None:
    """Of a gather of 12 ns whose base is 8, half of 4 is lost."""
    gather = np.array([12, 12])
    own = Passes(np.array([30, 30]), np.array([30, 30]), gather, gather, gather, True, 0.5, base=8)
    assert own.of(0, 2) == (12 + 30 + 2 + 30, 12 + 30 + 2 + 30 + 2 + 12)


def test_saved_bytes_of_recomputed_layers_are_gone_as_gradients_are_summed() -> None:
    """With all layers recomputed a stage is priced alike whether each was chosen or all had to be."""
    model, cluster = model_of([10, 10], parameters=[400] * 2, saved=[90] * 2, output=[5] * 2), equal_devices(2)
    peaks = []
    for recompute, again in ("choose", [(0, 1)]), ("full", None):
        chain = price(model, cluster, [cluster.devices], 1, Job(batch=2, zero=(2,), recompute=recompute))
        peaks.append(assemble(chain, cluster, (0, 2), again).stages[0].workspace)
    assert peaks == [2 * 400 + 200 + 200] * 2


def test_a_plan_with_less_than_the_neighbours_buffers_is_no_plan() -> None:
    """A layer without parameters between two of 400 B needs 5,000 B and both: 6,612 B in all at level 3."""
    model = model_of([10] * 3, parameters=[400, 0, 400], saved=[4] * 3, output=[4] * 3)
    costs = model.profiles[0].costs
    costs = (costs[0], replace(costs[1], workspace=5000), costs[2])
    model = replace(model, profiles=(replace(model.profiles[0], costs=costs),))
    job = Job(2, optimizer="sgd", zero=(3,), replicas=(2,), depths=(1,), recompute="none")
    assert solve(model, equal_devices(2, 6612), job=job).plan.stages[0].memory.total == 6612
    with pytest.raises(InfeasibleError, match=r"6\.46 KiB"):
        solve(model, equal_devices(2, 6611), job=job)


@pytest.mark.parametrize(("numbers", "at_once"), [(2**20, 2**19), (3 * 2**19, 3 * 2**18), (3 * 2**20, 2**20)])
def test_others_send_at_most_2_20_numbers_of_a_share_at_once(numbers: int, at_once: int) -> None:
    """On two replicas half of the numbers is a share, which arrives in parts if it is larger."""
    model, cluster = model_of([10], parameters=[4 * numbers]), equal_devices(2)
    chain = price(model, cluster, [cluster.devices], 1, Job(2, zero=(2,)))
    assert assemble(chain, cluster, (0, 1)).stages[0].workspace == 4 * (2 * numbers + numbers // 2 + at_once)
