"""Quality and bounds of schedules under tight memory: list schedules without a solver, CP-SAT, lower bounds.

The instances are those of `line`: p devices, m micro-batches, times within ±h per stage, room for k micro-batches on
each device. Two threads; each row stops at its limit, the whole after twelve minutes at most.

::

    device 0 ─lag─▶ device 1 ─lag─▶ … ─lag─▶ device p − 1        each with room for k micro-batches in flight

"Known" are the best makespan and bound measured with separate prototypes in the same number of seconds.
"Heuristic" is the automatic scheduler published with Zero Bubble Pipeline Parallelism, run as shipped.

``python -m benchmarks schedule_scale`` prints all rows.
"""

from random import Random
from typing import NamedTuple

from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.schedule import PipelineSchedule, lower_bound, solve
from pipeplan_formulations.schedule.constructive import constructive

FORWARD, BACKWARD, WEIGHT, LAG = 1000, 1000, 700, 100
TAKEN, FREED = 100, 60
SEED = 7
LISTS = 2.0
"""Seconds for the column of list schedules; the solver's own start may take longer."""


class Row(NamedTuple):
    """An instance, its time limit in seconds, and its known figures."""

    devices: int
    micro_batches: int
    spread: float
    in_flight: int
    seconds: int
    heuristic: int
    known: int
    known_bound: int


ROWS = (
    Row(8, 32, 0.0, 4, 60, 352_900, 160_900, 157_994),
    Row(8, 32, 0.0, 6, 60, 216_500, 114_900, 114_835),
    Row(8, 32, 0.0, 8, 60, 98_300, 98_300, 98_300),
    Row(8, 32, 0.0, 12, 60, 96_600, 94_100, 94_100),
    Row(8, 32, 0.3, 4, 60, 317_974, 143_367, 142_236),
    Row(8, 32, 0.3, 6, 60, 197_942, 105_661, 103_136),
    Row(8, 32, 0.3, 8, 60, 98_914, 96_331, 96_331),
    Row(16, 32, 0.3, 12, 90, 354_991, 122_036, 122_036),
    Row(16, 32, 0.3, 16, 90, 114_174, 109_762, 109_476),
    Row(8, 64, 0.3, 6, 90, 385_462, 207_269, 191_176),
)


def main() -> None:
    """Print a row for every instance."""
    print(
        f"{'instance':16} {'lists':>8} {'no solver':>9} {'found':>8} {'bound':>8} {'gap':>7} {'time':>7} {'limit':>5}"
        f" | {'known':>8} {'its bound':>9} {'heuristic':>9}"
    )
    for row in ROWS:
        problem = line(row.devices, row.micro_batches, row.in_flight, row.spread)
        lists = constructive(problem, LISTS)
        report = solve(problem, Limits(time=row.seconds))
        name = f"p{row.devices} m{row.micro_batches} h{row.spread:g} k{row.in_flight}"
        gap = "none" if report.gap is None else f"{100 * report.gap:.2f} %"
        print(
            f"{name:16} {lists[0] if lists else 'none':>8} {lower_bound(problem):>9} {report.objective or 'none':>8} "
            f"{report.bound:>8} {gap:>7} {report.wall:6.1f}s {row.seconds:4}s | {row.known:>8} {row.known_bound:>9} "
            f"{row.heuristic:>9}",
            flush=True,
        )


def line(stages: int, micro_batches: int, in_flight: int, spread: float = 0.0, seed: int = SEED) -> PipelineSchedule:
    """Create an instance with one stage per device and split backwards; I frees 60 % of a micro-batch, W the rest.

    Parameters
    ----------
    stages, micro_batches : int
    in_flight : int
        Number of micro-batches that fit on each device.
    spread : float
        Each F, I and W of each stage is a mean time multiplied by a factor from [1 − spread, 1 + spread], truncated to
        an integer; all F are drawn first, then all I, then all W.
    seed : int
        Seed of ``random.Random``.
    """
    draw = Random(seed)

    def times(mean: int) -> tuple[int, ...]:
        return tuple(int(mean * draw.uniform(1 - spread, 1 + spread)) for _ in range(stages))

    return PipelineSchedule(
        device=tuple(range(stages)),
        micro_batches=micro_batches,
        forward=times(FORWARD),
        backward=times(BACKWARD),
        weight=times(WEIGHT),
        split=(True,) * stages,
        lag=(LAG,) * (stages - 1),
        lag_back=(LAG,) * (stages - 1),
        ending=(0,) * stages,
        taken=(TAKEN,) * stages,
        freed=(FREED,) * stages,
        freed_by_weight=(TAKEN - FREED,) * stages,
        base=(0,) * stages,
        limit=(TAKEN * in_flight,) * stages,
    )


if __name__ == "__main__":
    main()
