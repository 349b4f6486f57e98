"""Gantt chart of a schedule: one lane per device, one box per action, and the memory of every device beneath.

::

    device 0  │F0│F1│F2│     │ B0 │F3│ B1 │  31 % idle       ← numbers in boxes: micro-batches; grey: idle
    device 1     │F0│ B0 │F1│ B1 │F2│ B2 │   12 % idle
              └──────────────────────────▶ time
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeplan.core.schedule import Kind
from pipeplan.core.timeline import Timeline
from pipeplan.report.plot.boxes import (
    BOX,
    draw_borders,
    draw_boxes,
    draw_numbers,
    draw_transfers,
    drawn_transfers,
    shaded,
    shades_of,
)
from pipeplan.report.plot.colours import FAINT, IDLE, INK, STYLES, TRANSFER
from pipeplan.report.plot.fold import Lanes, folded
from pipeplan.report.plot.labels import label_lanes, label_room, label_step, lane_names, note
from pipeplan.report.plot.library import check_suffix, drawing, new_figure, save
from pipeplan.report.plot.memory import draws_memory, plot_memory

WIDTH, RIGHT = 12.0, 1.75
"""Inches of the whole figure, and of the margin to the right of the lanes."""
LANE, MEMORY_LANE = 0.36, 0.28
"""Inches of height per device in the two panels."""
TITLE, LEGEND, HEAD, GAP, FOOT = 0.3, 0.18, 0.42, 0.3, 0.62
"""Inches of the title, of the legend, above a time line, between its two panels, and below everything."""
TALLEST = 20.0
"""Inches; more lanes than fit at full height become flatter."""


def save_gantt(
    path: str | Path,
    timelines: Mapping[str, Timeline],
    *,
    limits: Sequence[int] | None = None,
    devices: Sequence[str] | None = None,
    memory: bool = True,
    title: str = "",
) -> None:
    """Draw time lines beneath each other on one time axis, and write the picture; of many lanes, equal ones are one.

    Parameters
    ----------
    path : str or Path
        Ends in ``.svg`` or ``.png``.
    timelines : mapping of str to Timeline
        Time lines by label: ``{"predicted": …, "measured": …}``.
    limits : sequence of int, optional
        Bytes that each device may hold; drawn if a device comes near them.
    devices : sequence of str, optional
        Names of the lanes.
    memory : bool
        Draw the memory of every device, if a time line records it.
    title : str
        Above everything, like `Plan.headline`.

    Raises
    ------
    InputError
        If matplotlib is missing, or the suffix is neither ``.svg`` nor ``.png``.
    """
    check_suffix(Path(path))
    save(gantt_figure(timelines, limits=limits, devices=devices, memory=memory, title=title), Path(path))


def gantt_figure(
    timelines: Mapping[str, Timeline],
    *,
    limits: Sequence[int] | None = None,
    devices: Sequence[str] | None = None,
    memory: bool = True,
    title: str = "",
) -> Any:
    """The figure that `save_gantt` writes."""
    titles = [headline(label, timeline) for label, timeline in timelines.items()]
    alike = folded(Lanes(timelines, limits, devices), max(map(_lanes, timelines.values()), default=0))
    timelines, limits, devices = alike.timelines, alike.limits, alike.devices
    panels = [
        (label, timeline, _lanes(timeline), memory and draws_memory(timeline)) for label, timeline in timelines.items()
    ]
    heights = [(LANE * lanes, MEMORY_LANE * lanes if held else 0.0) for _, _, lanes, held in panels]
    fixed = TITLE * bool(title) + LEGEND + FOOT + sum(HEAD + (GAP if below else 0.0) for _, below in heights)
    flexible = sum(above + below for above, below in heights)
    squeeze = min(1.0, (TALLEST - fixed) / flexible) if flexible else 1.0
    height = fixed + flexible * squeeze
    end = max((timeline.makespan for timeline in timelines.values()), default=0)

    figure = new_figure(WIDTH, height)
    left = label_room(max((lanes for _, _, lanes, _ in panels), default=0), devices)
    width = (WIDTH - left - RIGHT) / WIDTH
    top = height - TITLE * bool(title) - LEGEND
    axes: list[Any] = []
    with drawing():
        for (_, timeline, _, held), heading, (above, below) in zip(panels, titles, heights, strict=True):
            top -= HEAD + above * squeeze
            ax = figure.add_axes((left / WIDTH, top / height, width, above * squeeze / height))
            plot_gantt(timeline, ax, title=heading, devices=devices, end=end)
            axes.append(ax)
            if held:
                top -= GAP + below * squeeze
                ax = figure.add_axes((left / WIDTH, top / height, width, below * squeeze / height))
                plot_memory(timeline, ax, limits=limits, devices=devices, end=end)
                axes.append(ax)
        for ax in axes:
            time_axis(ax, end, labels=ax is axes[-1])
        if title:
            figure.text(0.1 / WIDTH, 1 - 0.1 / height, title, fontsize=10, fontweight="bold", va="top")
        if axes:
            _legend(figure, list(timelines.values()), height, 0.06 + TITLE * bool(title))
    return figure


def plot_gantt(
    timeline: Timeline,
    ax: Any = None,
    title: str | None = None,
    *,
    devices: Sequence[str] | None = None,
    numbers: bool = True,
    end: int | None = None,
) -> Any:
    """Draw one time line's lanes.

    Parameters
    ----------
    timeline : Timeline
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure.
    title : str, optional
        By default the text of `headline`.
    devices : sequence of str, optional
        Names of the lanes.
    numbers : bool
        Write micro-batch numbers into the boxes that have room for them.
    end : int, optional
        Nanoseconds at which the axis ends; the time line's own end otherwise.

    Returns
    -------
    matplotlib.axes.Axes
    """
    lanes = _lanes(timeline)
    standalone = ax is None
    if standalone:
        figure = new_figure(WIDTH, HEAD + LANE * lanes + FOOT)
        height, left = figure.get_figheight(), label_room(lanes, devices)
        ax = figure.add_axes((left / WIDTH, FOOT / height, (WIDTH - left - RIGHT) / WIDTH, LANE * lanes / height))
    end = timeline.makespan if end is None else end
    ax.set_xlim(0, max(end, 1))
    ax.set_ylim(lanes - 0.5, -0.5)
    label_lanes(ax, range(lanes), lane_names(lanes, devices))
    ax.tick_params(axis="both", length=0)
    ax.tick_params(axis="x", length=3, color=FAINT)
    for side in ax.spines.values():
        side.set_visible(False)
    ax.set_title(headline("", timeline) if title is None else title, loc="left", fontsize=10, fontweight="bold")
    ax.barh(range(lanes), timeline.makespan, height=BOX, color=IDLE, linewidth=0, zorder=1)
    draw_borders(ax, timeline)
    draw_boxes(ax, timeline)
    draw_transfers(ax, timeline)
    if numbers:
        draw_numbers(ax, timeline, lanes)
    for lane in range(0, lanes if timeline.makespan else 0, label_step(ax, lanes)):
        idle = 1 - timeline.busy(lane) / timeline.makespan
        note(ax, lane, f"{idle:.0%} idle".replace("%", " %"), INK)
    if standalone:
        time_axis(ax, end)
    return ax


def headline(label: str, timeline: Timeline) -> str:
    """Title of a time line: ``'predicted: 12.3 ms, bubble 27.3 %'``."""
    from pipeplan.core.units import format_time

    facts = f"{format_time(timeline.makespan)}, bubble {bubble(timeline):.1%}".replace("%", " %")
    return f"{label}: {facts}" if label else facts


def bubble(timeline: Timeline) -> float:
    """Share of the devices' time in which they are idle."""
    whole = timeline.makespan * _lanes(timeline)
    return 1 - sum(timeline.busy(device) for device in range(_lanes(timeline))) / whole if whole else 0.0


def _lanes(timeline: Timeline) -> int:
    return max([len(timeline.memory), *(span.device + 1 for span in timeline.spans)], default=0) or 1


def time_axis(ax: Any, end: int, *, labels: bool = True) -> None:
    """Set ticks in a unit that suits the whole axis."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    units = (("s", 10**9), ("ms", 10**6), ("µs", 10**3))
    unit, factor = next(((unit, factor) for unit, factor in units if end >= factor), ("ns", 1))
    ax.xaxis.set_major_locator(MaxNLocator(nbins=10, steps=[1, 2, 5, 10]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / factor:g}"))
    ax.tick_params(labelbottom=labels)
    if labels:
        ax.set_xlabel(f"time ({unit})")


def _legend(figure: Any, timelines: Sequence[Timeline], height: float, top: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    present = {span.action.kind for timeline in timelines for span in timeline.spans if span.end > span.start}
    handles: list[Any] = [Patch(color=STYLES[kind].fill, label=STYLES[kind].label) for kind in Kind if kind in present]
    lightest = max((max(shades_of(timeline).values(), default=0.0) for timeline in timelines), default=0.0)
    if lightest:
        handles.append(Patch(color=shaded(STYLES[Kind.FORWARD].fill, lightest), label="a later stage of the device"))
    if any(drawn_transfers(timeline) for timeline in timelines):
        handles.append(Line2D([], [], color=TRANSFER.fill, label=TRANSFER.label))
    handles.append(Patch(facecolor=IDLE, edgecolor=FAINT, linewidth=0.6, label="idle"))
    figure.legend(
        handles=handles, loc="upper right", bbox_to_anchor=(1 - RIGHT / WIDTH, 1 - top / height), ncols=len(handles),
        frameon=False, fontsize=8.5, handlelength=1.1, handleheight=1.0, columnspacing=1.3, borderpad=0,
    )  # fmt: skip
