"""A run: what was measured beside what was predicted."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeplan.core.plan import Plan
from pipeplan.core.tabular import Table, Unit
from pipeplan.core.timeline import Timeline
from pipeplan.core.units import format_time
from pipeplan.report.page.chart import BLUE, INK, ORANGE, Trace, chart, fill, mark, rows, scaled, unit_for
from pipeplan.report.page.markup import facts, listing, paragraph, table
from pipeplan.report.page.skeleton import Section
from pipeplan.report.plot.frontier import BYTES, TIMES
from pipeplan.report.plot.labels import device_labels


@dataclass(frozen=True)
class Measured:
    """Measurements of a run, in nanoseconds and bytes.

    Attributes
    ----------
    step_time : int
        Median of ``step_times``.
    step_times, losses
        One per timed step.
    peaks, predicted_peaks : sequence of int
        By rank.
    timeline : Timeline
        Of the step of median duration.
    lines : sequence of str
        The report in words.
    """

    step_time: int
    step_times: Sequence[int]
    losses: Sequence[float]
    peaks: Sequence[int]
    predicted_peaks: Sequence[int]
    timeline: Timeline
    lines: Sequence[str]


def run(plan: Plan, found: Measured) -> Section:
    """Figures and words of the run, the time of each step beside the prediction, and the loss."""
    off = f"{found.step_time / plan.step_time - 1:+.1%}" if plan.step_time and found.step_times else ""
    measured = format_time(found.step_time) if found.step_times else ""
    rate = plan.yardstick.throughput(plan.batch, found.step_time).cells()
    body = facts(
        [("measured", measured), ("predicted", format_time(plan.step_time)), ("difference", off), *rate.items()]
    )
    return Section(
        "run", "The run", paragraph(f"Ran {plan.headline}.", "run") + body + listing(found.lines) + _steps(plan, found)
    )


def _steps(plan: Plan, found: Measured) -> str:
    if not found.step_times:
        return ""
    unit, factor = unit_for(max(plan.step_time, *found.step_times), TIMES)
    numbers = [str(n + 1) for n in range(len(found.step_times))]
    height = min(28 * len(numbers), 600)
    drawn = chart(
        "steps",
        f"Time of each timed step; the dashed line is the prediction, {format_time(plan.step_time)}.",
        [
            _bar("measured", found.step_times, factor, ORANGE, "", list(map(format_time, found.step_times))),
            mark("predicted", plan.step_time / factor, len(numbers)),
        ],
        height=85 + height,
        xaxis={"title": {"text": f"step time ({unit})"}, "rangemode": "tozero", "zeroline": False},
        yaxis=rows([f"step {number}" for number in numbers], height),
    )
    lines = [
        (number, format_time(time), f"{loss:.4f}")
        for number, time, loss in zip(numbers, found.step_times, found.losses, strict=True)
    ]
    return drawn + table(Table.of_text(("step", "time", "loss"), lines), "Timed steps")


def peaks(plan: Plan, found: Measured) -> Section:
    """Bars of the peaks of memory, measured and predicted."""
    names, largest = device_labels(plan), max([*found.peaks, *found.predicted_peaks])
    unit, factor = unit_for(largest, BYTES)
    height = min(44 * len(names), 1000)
    drawn = chart(
        "peaks-chart",
        "Peak memory of each rank, measured and predicted.",
        [
            _bar("measured", found.peaks, factor, ORANGE, ""),
            _bar("predicted", found.predicted_peaks, factor, BLUE, "/"),
        ],
        height=85 + height,
        barmode="group",
        xaxis={"title": {"text": f"memory ({unit})"}, "rangemode": "tozero", "zeroline": False},
        yaxis=rows(names, height),
    )
    lines = tuple(
        (name, peak, predicted, peak / predicted - 1 if predicted else None)
        for name, peak, predicted in zip(names, found.peaks, found.predicted_peaks, strict=True)
    )
    columns: dict[str, Unit] = {"rank": "", "measured": "bytes", "predicted": "bytes", "difference": "share"}
    return Section("memory", "Memory", drawn + table(Table(columns, lines), "Peak memory, measured and predicted"))


def _bar(
    name: str, values: Sequence[int], factor: float, colour: str, pattern: str, text: Sequence[str] | None = None
) -> Trace:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": list(range(len(values))),
        "x": scaled(values, factor),
        "text": text,
        "textposition": "auto",
        "textangle": 0,
        "insidetextfont": {"color": INK},
        "marker": fill(colour, pattern),
        "hovertemplate": f"{name}: %{{x}}<extra></extra>",
    }
