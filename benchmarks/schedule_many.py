"""Schedules of many micro-batches: steps and their bounds.

The lines of ``schedule_scale``. ``python -m benchmarks schedule_many`` takes about four minutes, two threads.
"""

from benchmarks.schedule_scale import line

from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.schedule.long_steps import solve

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


def main() -> None:
    """Print step, bound and gap."""
    print(f"{'step':22} {'found':>9} {'bound':>9} {'gap':>7} {'time':>7}")
    for stages, micro_batches, spread, in_flight in STEPS:
        report = solve(line(stages, micro_batches, in_flight, spread), Limits(time=SECONDS))
        gap = "none" if report.gap is None else f"{100 * report.gap:.2f} %"
        name = f"p{stages} m{micro_batches} h{spread:g} k{in_flight}"
        print(f"{name:22} {report.objective or 'none':>9} {report.bound:>9} {gap:>7} {report.wall:6.1f}s", flush=True)


if __name__ == "__main__":
    main()
