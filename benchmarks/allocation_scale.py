"""Run time of the allocation solver on large instances: depth, widths, kinds, layers and recomputation at once.

The reference is the textbook dynamic programme for the same numbers of layers and units (contiguous layers, equal
devices, least largest stage), written plainly with numpy. The ratio of the two times does not depend on the machine.
"""

import time

import numpy as np

from pipeplan_formulations import allocation
from pipeplan_formulations.allocation import ChainAllocation
from pipeplan_formulations.allocation.suffix_bounds.refinement import open_bracket, relaxation
from pipeplan_formulations.common.report import Limits

MICRO_BATCHES = 512
CASES = (
    ("one kind, one width", 98, (98,), (1,), False),
    ("one kind, all widths", 98, (98,), tuple(range(1, 99)), False),
    ("two kinds, one width", 98, (64, 64), (1,), False),
    ("two kinds, recomputing", 98, (64, 64), (1,), True),
    ("two kinds, all widths", 98, (33, 33), tuple(range(1, 34)), False),
    ("a long chain", 1000, (256,), (1,), False),
)
"""Name, layers, units of each kind, widths, and True if memory is short."""


def instance(layers: int, units: tuple[int, ...], widths: tuple[int, ...], tight: bool) -> ChainAllocation:
    """Instance of equal layers between a small and a large one; the second kind is 1.8 times as slow; nodes of 8."""
    forward = np.full(layers, 10_000_000)
    forward[0], forward[-1] = 1_000_000, 12_000_000
    kinds, table = len(units), (len(units), len(widths), layers)
    hop = np.broadcast_to(np.array([200_000, 1_000_000])[:, None], (kinds, kinds, 2, layers - 1))
    rows = forward * np.array([[10], [18]])[:kinds] // 10
    replicated = (np.array(widths) > 1)[None, :, None]
    return ChainAllocation(
        forward=rows,
        backward=2 * rows,
        reduce=np.full(table, 2_000_000) * replicated,
        resident=np.full(table, 1000),
        saved=np.full(layers, 100),
        output=np.full(layers, 10),
        workspace=np.full(layers, 50),
        recomputable=np.ones(layers, np.bool_),
        received=np.full(layers - 1, 10),
        limit=np.full(kinds, 3000 if tight else 2**40),
        units=np.array(units),
        node=np.full(kinds, 8),
        send=hop,
        send_back=hop,
        latency=np.full((kinds, kinds, 2), 5000),
        micro_batches=MICRO_BATCHES,
        widths=widths,
    )


def textbook(layers: int, stages: int) -> float:
    """Seconds of best[s][b] = min over a of max(best[s − 1][a], prefix[b] − prefix[a])."""
    start = time.perf_counter()
    prefix = np.arange(layers + 1)
    best = np.where(prefix == 0, 0, 2**60)
    for _ in range(stages):
        following = np.full(layers + 1, 2**60)
        for b in range(1, layers + 1):
            following[b] = np.maximum(best[:b], prefix[b] - prefix[:b]).min()
        best = following
    assert best[layers] == -(-layers // stages)
    return time.perf_counter() - start


def main() -> None:
    """Print the table."""
    print(f"{'':24} {'':6} {'':8} {'way back':>23} {'all of it':>23}")
    print(f"{'':24} layers    units      gap  seconds  ratio     gap  seconds  ratio")
    for name, layers, units, widths, tight in CASES:
        reference = textbook(layers, sum(units) if sum(units) < layers else layers)
        problem = instance(layers, units, widths, tight)
        bracket = open_bracket(problem, Limits())
        relaxation(problem, bracket)
        assert bracket.high is not None
        first, gap_first = bracket.clock.wall, 1 - bracket.low / bracket.high
        report = allocation.solve(problem, Limits(time=60))
        assert report.objective is not None
        wall, there = report.wall, "+".join(map(str, units))
        print(
            f"{name:24} {layers:6} {there:>8} {gap_first:8.2%} {first:8.2f} {first / reference:6.1f} "
            f"{1 - report.bound / report.objective:7.2%} {wall:8.2f} {wall / reference:6.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
