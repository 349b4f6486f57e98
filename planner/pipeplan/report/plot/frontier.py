"""Plot of a frontier: the plans as a step line, and below it the proved lower bound.

::

    time │    ●──┐                 ●  a plan, the best one known up to the next
         │ ░░░░░░●─────┐           ░  between the proved bound and the best plan: the gap
         │       ░░░░░░●──────
         └───────────────────▶ memory, devices or price
"""

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeplan.core.schedule import Kind
from pipeplan.report.plot.colours import FAINT, INK, MEMORY, STYLES
from pipeplan.report.plot.library import check_suffix, drawing, new_figure, save

if TYPE_CHECKING:
    from pipeplan.analysis.frontier import Frontier

WIDTH, HEIGHT = 7.0, 4.2
"""Inches."""
BEYOND = 0.08
"""Share of the axis that is drawn to the right of the last point and to the left of the first."""
LABELS = {"devices": "devices", "price": "price per hour"}
BYTES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
TIMES = (("s", 10**9), ("ms", 10**6), ("µs", 10**3), ("ns", 1))


def save_frontier(path: str | Path, frontier: "Frontier") -> None:
    """Draw a frontier and write the picture.

    Raises
    ------
    InputError
        If matplotlib is missing, or the path ends neither in ``.svg`` nor in ``.png``.
    """
    check_suffix(Path(path))
    figure = new_figure(WIDTH, HEIGHT)
    with drawing():
        plot_frontier(frontier, figure.add_axes((0.11, 0.13, 0.85, 0.76)))
    save(figure, Path(path))


def plot_frontier(frontier: "Frontier", ax: Any) -> Any:
    """Draw a frontier on ``ax``, and return it. The axes are in nanoseconds and the units of cost."""
    costs, times = [point.cost for point in frontier.points], [point.value for point in frontier.points]
    span = (costs[-1] - costs[0]) or costs[-1] or 1
    left, right = costs[0] - BEYOND * span, costs[-1] + BEYOND * span
    edges, lows = bound_line(frontier, costs[0], right)
    merged = sorted({*costs, right, *edges})
    if any(point.gap for point in frontier.points):
        below, above = [height_at(x, edges, lows) for x in merged], [height_at(x, costs, times) for x in merged]
        ax.fill_between(merged, below, above, step="post", color=MEMORY, alpha=0.3, linewidth=0, label="gap")
        ax.step([*edges, right], [*lows, lows[-1]], where="post", color=MEMORY, linewidth=1.0, label="proved bound")
    colour = STYLES[Kind.FORWARD].fill
    ax.step([*costs, right], [*times, times[-1]], where="post", color=colour, linewidth=1.4)
    ax.plot(costs, times, "o", color=colour, markersize=4.5, label="plan, proved best" if frontier.complete else "plan")
    if frontier.nothing_below:
        ax.axvspan(left, costs[0], color=FAINT, alpha=0.6, linewidth=0, label="nothing searched fits, proved")
    _axes(frontier, ax, left, right)
    return ax


def bound_line(frontier: "Frontier", left: float, right: float) -> tuple[list[float], list[int]]:
    """Edges and heights of the step line of lower bounds, from the cheapest point on."""
    known = [(max(floor.cost, left), floor.bound) for floor in frontier.floors if floor.bound is not None]
    steps = {cost: bound for cost, bound in known if cost <= right}  # of several at the left edge the last one counts
    if not steps:
        return [left], [0]
    return list(steps), list(steps.values())


def height_at(x: float, edges: list[float], heights: list[int]) -> int:
    """Height of a step line at x."""
    return heights[max(bisect_right(edges, x) - 1, 0)]


def _axes(frontier: "Frontier", ax: Any, left: float, right: float) -> None:
    ax.set_xlim(left, right)
    ax.set_title(f"{frontier.model} on {frontier.cluster}", loc="left", fontsize=10, fontweight="bold")
    if frontier.over == "memory":
        _scaled(ax.xaxis, right, BYTES, "memory of the fullest device")
    else:
        _scaled(ax.xaxis, 1, (("", 1),), LABELS[frontier.over], whole=frontier.over == "devices")
    _scaled(ax.yaxis, frontier.points[0].value, TIMES, frontier.objective.figure)
    ax.grid(axis="y", color=FAINT, linewidth=0.6)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(INK)
    ax.legend(frameon=False, fontsize=8, loc="upper right")


def _scaled(axis: Any, largest: float, units: Sequence[tuple[str, int]], label: str, *, whole: bool = False) -> None:
    """Set round ticks in the unit that suits the largest value."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

    unit, factor = next(((unit, factor) for unit, factor in units if largest >= factor), units[-1])
    low, high = (edge / factor for edge in axis.get_view_interval())
    ticks = MaxNLocator(nbins=7, integer=whole, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    axis.set_major_locator(FixedLocator([tick * factor for tick in ticks if low <= tick <= high]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / factor:g}"))
    axis.set_label_text(f"{label} ({unit})" if unit else label)
