"""Memory of every device over time: one small lane per device, all on one scale, with the limit if it is near."""

from collections.abc import Sequence
from typing import Any

from pipeplan.core.timeline import Timeline
from pipeplan.core.units import format_bytes
from pipeplan.costs.chain import UNLIMITED
from pipeplan.report.plot.colours import FAINT, INK, LIMIT, MEMORY
from pipeplan.report.plot.labels import label_lanes, label_step, lane_names, note

NEAR = 2.5
"""Largest ratio of a limit to the largest peak at which the limit is drawn; a higher one is only written."""
_FILL = 0.86
"""Share of a lane's height that stands for the largest amount."""


def draws_memory(timeline: Timeline) -> bool:
    """True if a time line records the memory of its devices."""
    return any(step.held for line in timeline.memory for step in line)


def plot_memory(
    timeline: Timeline,
    ax: Any,
    *,
    limits: Sequence[int] | None = None,
    devices: Sequence[str] | None = None,
    end: int | None = None,
) -> Any:
    """Draw the memory lines of a time line on ``ax``, and return it.

    Parameters
    ----------
    timeline : Timeline
    ax : matplotlib.axes.Axes
    limits : sequence of int, optional
        Bytes that each device may hold.
    devices : sequence of str, optional
        Names of the lanes.
    end : int, optional
        Nanoseconds at which the axis ends; the time line's own end otherwise.
    """
    lanes, peaks = len(timeline.memory), timeline.peaks
    known = [limits[i] if limits is not None and i < len(limits) else None for i in range(lanes)]
    largest = max(peaks, default=0) or 1
    near = [limit for limit in known if limit is not None and limit <= NEAR * largest]
    scale = _FILL / max(largest, *near, 1)
    limited = any(limit is not None and limit < UNLIMITED for limit in known)
    every = label_step(ax, lanes)
    _frame(ax, lanes, devices, timeline.makespan if end is None else end)
    ax.set_title("memory: peak and limit" if limited else "memory: peak", loc="left", fontsize=8.5, pad=3)
    for lane, line in enumerate(timeline.memory):
        floor = lane + 1
        times = [step.time for step in line] + [timeline.makespan]
        heights = [floor - step.held * scale for step in line]
        heights += heights[-1:] or [floor]
        ax.fill_between(times, heights, floor, step="post", color=MEMORY, alpha=0.35, linewidth=0, zorder=2)
        ax.step(times, heights, where="post", color=MEMORY, linewidth=0.9, zorder=3)
        ax.axhline(floor, color=FAINT, linewidth=0.6, zorder=1)
        limit = known[lane]
        if limit is not None and limit in near:
            level = floor - limit * scale
            ax.plot([0, timeline.makespan], [level, level], color=LIMIT, linewidth=0.9, dashes=(4, 2), zorder=4)
        if lane % every == 0:
            _annotate(ax, floor - _FILL / 2, peaks[lane], limit)
    return ax


def _frame(ax: Any, lanes: int, devices: Sequence[str] | None, end: int) -> None:
    ax.set_xlim(0, max(end, 1))
    ax.set_ylim(lanes, 0)
    label_lanes(ax, [lane + 1 - _FILL / 2 for lane in range(lanes)], lane_names(lanes, devices), size=8)
    ax.tick_params(axis="both", length=0)
    ax.tick_params(axis="x", length=3, color=FAINT)
    for side in ax.spines.values():
        side.set_visible(False)


def _annotate(ax: Any, height: float, peak: int, limit: int | None) -> None:
    """Write the peak to the right of a lane, red if it is above the limit."""
    text, colour = format_bytes(peak), INK
    if limit is not None and limit < UNLIMITED:
        text = f"{text} of {format_bytes(limit)}"
        colour = LIMIT if peak > limit else INK
    note(ax, height, text, colour)
