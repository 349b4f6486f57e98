"""Description of a machine: the measurements, and the link that is fitted to them."""

import pytest

from pipeplan.core.cluster import Link
from pipeplan.core.errors import PipeplanError
from pipeplan.costs.collectives import all_reduce, alone
from pipeplan_executor.calibrate.machine import (
    KIND,
    SIZES,
    collective_efficiency,
    describe_machine,
    fit_link,
    speed_beside,
    with_units,
)
from pipeplan_executor.calibrate.sharded_block import COUNTED, LENGTH, SAMPLES, SUMS, WIDTH, Excess


def test_a_straight_line_is_found_again() -> None:
    """Times that are latency + size / bandwidth give both back."""
    sizes = list(SIZES)
    assert fit_link(sizes, [2_000 + size / 4 for size in sizes]) == (4 * 10**9, 2_000)


def test_a_line_below_the_origin_gets_no_latency() -> None:
    """If the fitted latency would be negative, the bandwidth alone is fitted."""
    sizes = list(SIZES)
    bandwidth, latency = fit_link(sizes, [size / 4 - 500 for size in sizes])
    assert latency == 0
    assert bandwidth >= 4 * 10**9


@pytest.mark.parametrize("members", [2, 3, 4])
def test_the_share_makes_the_ring_formula_true(members: int) -> None:
    """Sums that took 2 (r - 1) rounds at 60 % of the link, and its latencies, give 60 %."""
    link, rounds = Link(10**9, 30_000), 2 * (members - 1)
    sums = {size: rounds * (30_000 + size / members / 0.6) for size in (4 * 10**6, 16 * 10**6, 64 * 10**6)}
    assert collective_efficiency(link, members, sums) == 0.6
    sums[4 * 10**6] *= 5  # one outlier does not count
    assert collective_efficiency(link, members, sums) == 0.6


@pytest.mark.parametrize("members", [2, 4])
def test_a_layer_gathers_as_fast_as_measured(members: int) -> None:
    """Rounds at 30 % of the all-reduce's half of the link, their latencies and a millisecond."""
    link, rounds = Link(10**9, 30_000, 0.5), members - 1
    units = {size: rounds * (30_000 + size / members / 0.15) + 10**6 for size in (2**14, 2**18, 2**20, 2**22)}
    found = with_units(link, members, units)
    assert found.unit_efficiency == 0.3
    assert found.unit_overhead == pytest.approx(10**6, abs=5)
    slow = with_units(link, members, dict.fromkeys(units, 1.0))
    assert (slow.unit_efficiency, slow.unit_overhead) == (1.0, 0)


@pytest.mark.parametrize(("both", "speed"), [(1000, 1), (1125, 0.75), (1500, 0), (990, 1), (1600, 0)])
def test_what_computation_loses_beside_a_sum(both: int, speed: float) -> None:
    """1,000 ns of computation beside 500 ns of a sum; no less than nothing is lost, and no more than all."""
    assert speed_beside(1000, 500, both) == speed


def test_an_operator_takes_longer_by_what_no_sum_explains() -> None:
    """A block took its sums, as they are predicted, and 90 us for each operator; at least its processor time."""
    link = Link(10**9, 30_000, 0.5)
    sums = SUMS * alone(all_reduce(2, link), 4 * SAMPLES * LENGTH * WIDTH)
    assert Excess(sums + 90_000.0 * COUNTED, 0.0).by_operator(link) == 90_000
    assert Excess(sums / 2, 40_000.0 * COUNTED).by_operator(link) == 40_000
    assert Excess(sums / 2, -1.0).by_operator(link) == 0


@pytest.mark.slow
def test_this_machine_is_described() -> None:
    """Two workers with memory, a runtime that fits into it, and a link that was measured, collectives included."""
    cluster = describe_machine(2)
    kind, link = cluster.devices[0].kind, cluster.nodes[0].link
    assert [device.kind.name for device in cluster.devices] == [KIND, KIND]
    assert kind.memory is not None
    assert 10**7 < kind.runtime < kind.memory
    assert link.bandwidth is not None
    assert 10**6 < link.bandwidth < 10**12
    assert link.latency < 10**9
    assert 0.01 <= link.collective_efficiency < 100
    assert 0.01 <= link.unit_efficiency <= 1
    assert link.unit_overhead < 10**9
    assert 0 <= kind.speed_beside_collectives <= 1
    assert 0 <= kind.shard_overhead < 10**9


def test_no_worker_is_refused() -> None:
    """A machine is described for at least one worker."""
    with pytest.raises(PipeplanError, match="at least one worker"):
        describe_machine(0)
