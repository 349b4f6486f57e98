"""How good schedules get, and what is proved, where memory is tight: lists without a solver, CP-SAT, bounds.

A line of p devices, one stage each, m micro-batches; F = 1000, I = 1000, W = 700, each drawn within ±h a stage;
lag 100; room for k micro-batches on each device, of which I frees 60 % and W 40 %. Two threads. ``python -m
benchmarks schedule_scale`` takes as long as the column of limits says, about twelve minutes.
"""

import time
from random import Random

from pipeplan_formulations.report import Limits
from pipeplan_formulations.schedule import PipelineSchedule, lower_bound, solve
from pipeplan_formulations.schedule.constructive import constructive

SEED = 7
LISTS = 2.0
"""Seconds for the column of lists; CP-SAT's own start may take longer."""
ROWS = (
    (8, 32, 0.0, 4, 60),
    (8, 32, 0.0, 6, 60),
    (8, 32, 0.0, 8, 60),
    (8, 32, 0.0, 12, 60),
    (8, 32, 0.3, 4, 60),
    (8, 32, 0.3, 6, 60),
    (8, 32, 0.3, 8, 60),
    (16, 32, 0.3, 12, 90),
    (16, 32, 0.3, 16, 90),
    (8, 64, 0.3, 6, 90),
)
"""p, m, h, k, seconds."""


def line(stages: int, micro_batches: int, spread: float, in_flight: int) -> PipelineSchedule:
    """The instance of a row."""
    draw = Random(SEED)

    def times(mean: int) -> tuple[int, ...]:
        return tuple(round(mean * (1 + draw.uniform(-spread, spread))) for _ in range(stages))

    return PipelineSchedule(
        device=tuple(range(stages)),
        micro_batches=micro_batches,
        forward=times(1000),
        backward=times(1000),
        weight=times(700),
        split=(True,) * stages,
        lag=(100,) * (stages - 1),
        lag_back=(100,) * (stages - 1),
        ending=(0,) * stages,
        taken=(100,) * stages,
        freed=(60,) * stages,
        freed_by_weight=(40,) * stages,
        base=(0,) * stages,
        limit=(100 * in_flight,) * stages,
    )


def main() -> None:
    """Print a row for every instance."""
    print(
        f"{'instance':18} {'lists':>9} {'no solver':>10} {'CP-SAT':>9} {'bound':>9} {'gap':>7} {'time':>7} {'limit':>6}"
    )
    for stages, micro_batches, spread, in_flight, seconds in ROWS:
        problem = line(stages, micro_batches, spread, in_flight)
        found = constructive(problem, LISTS)
        begin = time.monotonic()
        report = solve(problem, Limits(time=seconds))
        wall = time.monotonic() - begin
        name = f"p{stages} m{micro_batches} h{spread:g} k{in_flight}"
        lists = "none" if found is None else str(found[0])
        gap = "none" if report.gap is None else f"{100 * report.gap:.2f} %"
        print(
            f"{name:18} {lists:>9} {lower_bound(problem):>10} {report.objective or 'none':>9} {report.bound:>9} "
            f"{gap:>7} {wall:6.1f}s {seconds:5}s",
            flush=True,
        )


if __name__ == "__main__":
    main()
