"""Report of a calibration as text and as plain data."""

from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Kind
from pipeplan.core.units import format_bytes, format_time
from pipeplan.report.plot.colours import STYLES
from pipeplan.search.result import Result
from pipeplan_executor.calibrate.calibration import Calibration
from pipeplan_executor.calibrate.costs import FIELDS
from pipeplan_executor.train.report import layers_by_stage

SAME = 0.01
"""Smallest relative gain for which another plan is reported as better: runs differ by more than less."""
ORDER = {kind: place for place, kind in enumerate(Kind)}


def as_text(plan: Plan, found: Calibration, best: Result | None = None) -> str:
    """Return the report as text.

    Parameters
    ----------
    best : Result, optional
        The result of solving again with the calibrated model and cluster.
    """
    seen, before, after = found.seen, found.before, found.after
    lines = [
        f"step time {format_time(seen.step_time)} measured (median of {seen.steps}), "
        f"{format_time(before.step_time)} predicted before ({_off(before.step_time, seen.step_time)}), "
        f"{format_time(after.step_time)} after ({_off(after.step_time, seen.step_time)})"
    ]
    for (stage, kind), took in sorted(seen.actions.items(), key=lambda item: (item[0][0], ORDER[item[0][1]])):
        planned = getattr(plan.pipeline.stages[stage], FIELDS[kind])
        lines.append(
            f"stage {stage}: {STYLES[kind].label} {format_time(took)} measured, {format_time(planned)} planned"
        )
    for rank, gap in enumerate(seen.gaps):
        lines.append(f"rank {rank}: gap of {format_time(gap)} before an action")
    for route, took in sorted(seen.transfers.items()):
        lines.append(
            f"stage {route.source} to stage {route.target}: a tensor is read {format_time(took)} after it was made"
        )
    for rank, peak in enumerate(seen.peaks):
        lines.append(
            f"rank {rank}: peak {format_bytes(peak)} measured, {format_bytes(before.peaks[rank])} predicted before "
            f"({_off(before.peaks[rank], peak)}), {format_bytes(after.peaks[rank])} after"
            f" ({_off(after.peaks[rank], peak)})"
        )
    lines.append(
        f"the measured step is {found.stretch:.3f} times the simulated one: actions vary, and the later of two counts"
    )
    if best is not None:
        lines.append(_verdict(plan, found, best))
    return "\n".join(lines)


def _off(predicted: int, measured: int) -> str:
    return f"{predicted / measured - 1:+.1%}" if measured else "nothing measured"


def better(found: Calibration, best: Result) -> bool:
    """Return whether another plan's predicted step is shorter by more than `SAME`."""
    return best.plan.step_time < (1 - SAME) * found.after.step_time


def _verdict(plan: Plan, found: Calibration, best: Result) -> str:
    if not better(found, best):
        return (
            f"the plan stays: no other was found that is faster by more than {SAME:.0%} (the best takes "
            f"{format_time(best.plan.step_time)}, bound {format_time(best.bound)})"
        )
    new = best.plan
    return (
        f"another plan is best now: {format_time(new.step_time)} instead of {format_time(found.after.step_time)} "
        f"({_off(new.step_time, found.after.step_time)}): {_shape(new)}; it was {_shape(plan)}"
    )


def _shape(plan: Plan) -> str:
    layers = layers_by_stage(plan)
    many = f"{plan.micro_batches} micro-batches of {plan.micro_batch}, {plan.schedule.family}"
    return f"{plan.shape}, layers {layers}, {many}"


def as_json(plan: Plan, found: Calibration, best: Result | None = None) -> dict[str, object]:
    """Return plain data in seconds and bytes."""
    seen = found.seen
    return {
        "steps": seen.steps,
        "measured_step_time_s": seen.step_time / 1e9,
        "predicted_step_time_s": {
            "planned": plan.step_time / 1e9,
            "before": found.before.step_time / 1e9,
            "after": found.after.step_time / 1e9,
        },
        "measured_peak_bytes": list(seen.peaks),
        "predicted_peak_bytes": {"before": list(found.before.peaks), "after": list(found.after.peaks)},
        "actions_s": {f"{stage}{kind}": took / 1e9 for (stage, kind), took in sorted(seen.actions.items())},
        "gaps_s": [gap / 1e9 for gap in seen.gaps],
        "stretch": found.stretch,
        "best": None if best is None else {"better": better(found, best)} | best.as_json(),
    }
