"""Labels of a plan's devices (``'d3 · stage 1 (2/4)'``), and of the lanes of a picture as far as they fit."""

from collections.abc import Sequence
from typing import Any

from pipeplan.core.plan import Plan


def device_labels(plan: Plan) -> tuple[str, ...]:
    """Label of each rank: its device in the cluster, its stage and, for a replicated stage, its replica."""
    return tuple(f"{plan.letter}{device}{_stages(plan, rank)}" for rank, device in enumerate(plan.ranks))


def _stages(plan: Plan, rank: int) -> str:
    own = plan.pipeline.stages_on[rank]
    parts = []
    for stage in own:
        homes = plan.pipeline.placement[stage]
        parts.append(f"{stage} ({homes.index(rank) + 1}/{len(homes)})" if len(homes) > 1 else f"{stage}")
    return f" · stage{'s' if len(own) > 1 else ''} {', '.join(parts)}" if own else ""


_LINE = 0.13
"""Inches of height of a name."""
_LETTER, _LEAST = 0.072, 0.95
"""Inches of width of a letter, and of the narrowest margin."""


def lane_names(lanes: int, devices: Sequence[str] | None) -> list[str]:
    """Names to the left of the lanes."""
    return [devices[i] if devices is not None and i < len(devices) else f"device {i}" for i in range(lanes)]


def label_room(lanes: int, devices: Sequence[str] | None) -> float:
    """Width of the margin to the left of the lanes, in inches."""
    longest = max((len(name) for name in lane_names(lanes, devices)), default=0)
    return max(_LEAST, 0.2 + _LETTER * longest)


def label_step(ax: Any, lanes: int) -> int:
    """The smallest k for which a name fits at every k-th lane."""
    inches = ax.get_position().height * ax.figure.get_figheight()
    return max(1, -int(-_LINE * lanes // inches)) if inches else 1


def note(ax: Any, place: float, text: str, colour: str) -> None:
    """Write a small text to the right of a lane."""
    ax.annotate(
        text, (1, place), xycoords=("axes fraction", "data"), xytext=(6, 0), textcoords="offset points", fontsize=7.5,
        va="center", color=colour, annotation_clip=False,
    )  # fmt: skip


def label_lanes(ax: Any, places: Sequence[float], names: Sequence[str], size: float | None = None) -> None:
    """Write the names to the left of an axis, each at its place; only every k-th if lanes are flat."""
    every = label_step(ax, len(places))
    ax.set_yticks(list(places)[::every], list(names)[::every], fontsize=size)
