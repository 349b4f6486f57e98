"""Figures of matplotlib, which is imported here only, when a picture is drawn."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeplan.core.errors import InputError
from pipeplan.report.plot.colours import INK

SUFFIXES = (".svg", ".png")

_RC = {
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.fonttype": "none",  # text stays text: it can be searched, and files stay small
    "svg.hashsalt": "pipeplan",  # the same picture is the same file
}


def require_matplotlib() -> None:
    """Raise InputError, with the way to install it, if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise InputError("pictures need matplotlib; install it with: pip install 'pipeplan[plot]'")


def new_figure(width: float, height: float) -> Any:
    """An empty figure of ``width`` × ``height`` inches that needs no screen.

    Raises
    ------
    InputError
        If matplotlib is not installed; the text says how to install it.
    """
    require_matplotlib()
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_RC):
        figure = Figure(figsize=(width, height))
        FigureCanvasAgg(figure)
        return figure


def drawing() -> Any:
    """Context with the common style of text and axes."""
    import matplotlib

    return matplotlib.rc_context(_RC)


def check_suffix(path: Path) -> str:
    """Return the format of a picture by its path: ``'svg'`` or ``'png'``.

    Raises
    ------
    InputError
        If the path ends otherwise.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: a picture's name must end in .svg or .png")
    return path.suffix.lower().removeprefix(".")


def save(figure: Any, path: Path) -> None:
    """Write a figure in the format of the path's suffix, whole or not at all."""
    import io

    from pipeplan.io.atomic import write_whole

    kind = check_suffix(path)
    content = io.BytesIO()
    with drawing():
        metadata = {"Date": None} if kind == "svg" else {}
        figure.savefig(content, format=kind, dpi=160, facecolor="white", metadata=metadata)
    write_whole(path, content.getvalue())
