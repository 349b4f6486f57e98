"""Schedules of many micro-batches: periodic patterns, and steps made of them.

The lines of ``schedule_scale``. First the steps, then for each memory the least period of one, two and three
micro-batches, last the least memory at a period, with F = I = W. ``python -m benchmarks schedule_many`` takes about
eight minutes, two threads.
"""

import time
from dataclasses import replace

from benchmarks.schedule_scale import line

from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.schedule import PipelineSchedule
from pipeplan_formulations.schedule.cyclic import least_period, solve
from pipeplan_formulations.schedule.cyclic.period import modulo

SECONDS = 28.0
STEPS = (
    (8, 1024, 0.0, 12),
    (8, 1024, 0.0, 8),
    (8, 1024, 0.3, 8),
    (8, 1024, 0.0, 6),
    (8, 1024, 0.3, 6),
    (8, 1024, 0.0, 4),
    (8, 1024, 0.3, 4),
    (64, 256, 0.0, 64),
    (64, 256, 0.3, 64),
)
"""p, m, h, k."""
PERIODS = ((0.0, 4), (0.0, 6), (0.0, 8), (0.3, 4), (0.3, 6), (0.3, 8))
"""h, k of eight devices."""
MEMORY = ((1, 3), (2, 6), (1, 4), (2, 8))
"""Micro-batches of a period, and the period in F."""


def equal(stages: int) -> PipelineSchedule:
    """Instance with F = I = W = 1 without lags, memory for 16 micro-batches of 2 bytes, half of each freed by I."""
    ones, none = (1,) * stages, (0,) * (stages - 1)
    twos = (2,) * stages
    problem = replace(line(stages, 16, 16), forward=ones, backward=ones, weight=ones, lag=none, lag_back=none)
    return replace(problem, taken=twos, freed=ones, freed_by_weight=ones, limit=(32,) * stages)


def steps() -> None:
    """Print step, bound and gap."""
    print(f"{'step':22} {'found':>9} {'bound':>9} {'gap':>7} {'time':>7}")
    for stages, micro_batches, spread, in_flight in STEPS:
        report = solve(line(stages, micro_batches, in_flight, spread), Limits(time=SECONDS))
        gap = "none" if report.gap is None else f"{100 * report.gap:.2f} %"
        name = f"p{stages} m{micro_batches} h{spread:g} k{in_flight}"
        print(f"{name:22} {report.objective or 'none':>9} {report.bound:>9} {gap:>7} {report.wall:6.1f}s", flush=True)


def periods() -> None:
    """Print the mean time of one micro-batch by unit: found, proved for this unit, proved for any."""
    print(f"\n{'period / unit':22} {'found':>9} {'proved':>9} {'any unit':>9} {'time':>7}")
    for spread, in_flight in PERIODS:
        problem = line(8, 32, in_flight, spread)
        for unit in (1, 2, 3):
            begin = time.monotonic()
            least = least_period(problem, unit, Limits(time=10.0, gap=0.001))
            wall = time.monotonic() - begin
            found = "none" if least.pattern is None else f"{least.pattern.period / unit:.1f}"
            name = f"p8 h{spread:g} k{in_flight} u{unit}"
            print(
                f"{name:22} {found:>9} {least.bound / unit:9.1f} {least.any_unit / unit:9.1f} {wall:6.1f}s", flush=True
            )


def memory() -> None:
    """Print the least memory at a period."""
    print(f"\n{'p8, F = I = W = 1':22} {'micro-batches held':>20}")
    problem = equal(8)
    for unit, period in MEMORY:
        found = modulo(problem, unit, period, Limits(time=60.0), "memory")
        held = "none" if found.pattern is None else f"{max(found.pattern.peaks(problem)) / 2:g}"
        said = held if found.proved else f"at most {held}"
        print(f"{f'{unit} in a period of {period}':22} {said:>20}", flush=True)


def main() -> None:
    """Print all three tables."""
    steps()
    periods()
    memory()


if __name__ == "__main__":
    main()
