"""What stands beside the lanes of a picture: as many names as there is room for."""

from collections.abc import Sequence
from typing import Any

_LINE = 0.13
"""Inches that a name needs in height."""
_LETTER, _LEAST = 0.072, 0.95
"""Inches that a letter takes in width, and that the margin has at least."""


def lane_names(lanes: int, devices: Sequence[str] | None) -> list[str]:
    """What stands to the left of each lane."""
    return [devices[i] if devices is not None and i < len(devices) else f"device {i}" for i in range(lanes)]


def label_room(lanes: int, devices: Sequence[str] | None) -> float:
    """Inches to the left of the lanes."""
    longest = max((len(name) for name in lane_names(lanes, devices)), default=0)
    return max(_LEAST, 0.2 + _LETTER * longest)


def labelled(ax: Any, lanes: int) -> int:
    """Every how many lanes a name fits."""
    inches = ax.get_position().height * ax.figure.get_figheight()
    return max(1, -int(-_LINE * lanes // inches)) if inches else 1


def note(ax: Any, place: float, text: str, colour: str) -> None:
    """Write something small to the right of a lane."""
    ax.annotate(
        text, (1, place), xycoords=("axes fraction", "data"), xytext=(6, 0), textcoords="offset points", fontsize=7.5,
        va="center", color=colour, annotation_clip=False,
    )  # fmt: skip


def label_lanes(ax: Any, places: Sequence[float], names: Sequence[str], size: float | None = None) -> None:
    """Write the names to the left of an axis, each at its place; only every k-th where lanes are flat."""
    every = labelled(ax, len(places))
    ax.set_yticks(list(places)[::every], list(names)[::every], fontsize=size)
