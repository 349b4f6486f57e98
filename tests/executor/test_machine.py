"""Description of a machine: the measurements, and the link that is fitted to them."""

from random import Random
from typing import Any

import pytest

from helpers.distributed.waiting import measured_with_a_waiting_clock
from pipeplan.core.cluster import Link
from pipeplan.core.errors import PipeplanError
from pipeplan.costs.collectives import all_reduce, alone
from pipeplan_executor.calibrate import machine
from pipeplan_executor.calibrate.machine import (
    KIND,
    SIZES,
    Measured,
    collective_efficiency,
    describe_machine,
    fit_link,
    speed_beside,
    with_units,
)
from pipeplan_executor.calibrate.sharded_block import (
    COUNTED,
    LENGTH,
    SAMPLES,
    SUMS,
    WIDTH,
    Excess,
    program_of_block,
)


def test_a_straight_line_is_found_again() -> None:
    """Times that are latency + size / bandwidth give both back."""
    sizes = list(SIZES)
    assert fit_link(sizes, [2_000 + size / 4 for size in sizes]) == (4 * 10**9, 2_000)


@pytest.mark.parametrize("seed", range(20))
def test_no_other_line_is_closer(seed: int) -> None:
    """Of those with a latency of at least 0, relative to each time: also where the best line lies below the origin."""
    random = Random(seed)
    sizes, shift = list(SIZES), random.choice((-500, 0, 500, 5_000))
    times = [(size / 4 + shift) * random.uniform(0.8, 1.2) for size in sizes]

    def error(bandwidth: float, latency: float) -> float:
        return sum(
            ((latency + size * 1e9 / bandwidth) / time - 1) ** 2 for size, time in zip(sizes, times, strict=True)
        )

    bandwidth, latency = fit_link(sizes, times)
    near = [(bandwidth * by, max(latency + more, 0)) for by in (0.99, 1, 1.01) for more in (-50, 0, 50)]
    assert error(bandwidth, latency) <= min(error(*line) for line in near) * (1 + 1e-6)


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


def test_a_pass_of_each_operator_of_the_block_counts_once() -> None:
    """The overhead is divided by as many passes as the price adds it to: forward and backward, and weights' own."""
    operators = program_of_block().graph.operators
    assert 2 * len(operators) + sum(bool(each.weights) for each in operators) == COUNTED


def measured(exchanges: dict[int, float], **more: Any) -> Measured:
    """Measurements of a machine with these exchanges, and all else as it should be."""
    values: dict[str, Any] = {
        "sums": {size: 100_000 + size / 2 for size in (2**22, 2**26)},
        "units": {size: 100_000 + size / 2 for size in (2**14, 2**22)},
        "speed_beside_collectives": 0.8,
        "shards": Excess(0.0, 0.0),
        "ranks": 2,
        "bare": 2**26,
    }
    return Measured(exchanges, **{**values, **more})


GOOD = {size: 60_000 + size / 4 for size in SIZES}
IDLE = dict.fromkeys(SIZES, 4_000_000.0)


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (measured(IDLE), r"an exchange of 16.00 MiB took 4 ms, hardly longer than one of 4.00 KiB"),
        (measured({**IDLE, SIZES[-1]: 1_000_000.0}), "hardly longer"),
        (measured(dict.fromkeys(SIZES[:-1], 60000.0) | {SIZES[-1]: 10**9}), "to which only a link of"),
        (measured({size: 1_000 + size / 2000 for size in SIZES}), "to which only a link of 2e\\+03 GB/s fits"),
        (measured(GOOD, sums={2**22: 5_000_000.0, 2**26: 4_000_000.0}), "a sum of 64.00 MiB took 4 ms"),
        (measured(GOOD, units={2**14: 2_000.0, 2**22: 1.0}), "a gather of a layer's shards"),
    ],
)
def test_what_cannot_be_true_is_measured_again(odd: Measured, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that no machine has is measured again, and refused with what was measured if it stays so."""
    answers = [odd, measured(GOOD), odd, odd, odd]
    monkeypatch.setattr(machine, "launch", lambda *_, **__: answers.pop(0))
    assert describe_machine(2).nodes[0].link.bandwidth == pytest.approx(4 * 10**9, rel=1e-6)
    assert len(answers) == 3
    with pytest.raises(PipeplanError, match=f"cannot be measured: .*{said}.*3 attempts"):
        describe_machine(2)
    assert not answers


@pytest.mark.slow
def test_a_clock_that_only_waits_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If every exchange takes a time slice of other programs, whatever its size, no link is written."""
    real = machine.launch
    monkeypatch.setattr(machine, "ATTEMPTS", 1)
    monkeypatch.setattr(machine, "launch", lambda _, *more, **how: real(measured_with_a_waiting_clock, *more, **how))
    with pytest.raises(PipeplanError, match=r"this machine cannot be measured: an exchange of .* hardly longer"):
        describe_machine(2)


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
