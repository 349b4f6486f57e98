"""Charts of plotly, which is imported here only, and their colours."""

from collections.abc import Mapping, Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeplan.core.errors import InputError

SUFFIXES = (".html", ".htm")
Trace = Mapping[str, Any]
"""One trace of a chart as plotly's JSON has it; texts in it are escaped by `label`."""

INK = "#000000"
"""Text in boxes and bars: at least 4.5 to 1 on every fill."""
BLUE, GREY, ORANGE, PATH = "#3b7dd8", "#9aa3ad", "#e69f00", "#d81b60"
"""The answer, other methods, what was measured; the critical path and limits, which are lines on light and dark."""
SEVERAL = ("#56b4e9", "#e69f00", "#009e73", "#f0e442", "#cc79a7", "#9aa3ad", "#d55e00")
"""Colours of several like things (Okabe and Ito); patterns tell them apart too."""
NAMES = {"": "", "/": "rising", ".": "dots", "x": "crossed", "\\": "falling", "+": "grid", "-": "level"}
"""Patterns, and their classes in the style sheet."""
PATTERNS = tuple(NAMES)

_LAYOUT: Mapping[str, Any] = {
    "font": {"family": "system-ui, sans-serif", "size": 13},
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "margin": {"l": 10, "r": 16, "t": 10, "b": 10},
    "showlegend": False,
    "modebar": {"bgcolor": "rgba(0,0,0,0)"},
    "hoverlabel": {"bgcolor": "#1d2329", "font": {"color": "#ffffff"}, "align": "left"},
    "hovermode": "closest",
    "dragmode": False,
    "barmode": "overlay",
}
_ZOOM = ("zoomIn2d", "zoomOut2d", "pan2d", "zoom2d", "resetScale2d", "toImage")


def require_plotly(path: Path) -> None:
    """Raise InputError if a page of this name cannot be made: its name must end in .html, and plotly be installed."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: a page's name must end in .html")
    if find_spec("plotly") is None:
        raise InputError("pages need plotly; install it with: pip install 'pipeplan[report]'")


def library() -> str:
    """Return plotly's own script."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def chart(
    name: str, description: str, traces: Sequence[Trace], *, height: int, zoom: bool = False, **layout: Any
) -> str:
    """Return a chart as HTML.

    Parameters
    ----------
    name : str
        Its address in the page.
    description : str
        For those who do not see it; also its caption.
    traces : sequence of mapping
    height : int
        Pixels.
    zoom : bool
        Whether its horizontal axis can be zoomed.
    **layout
        What plotly's layout has beside the common one.
    """
    from plotly.io import to_html

    merged = {**_LAYOUT, **layout}
    if zoom:
        merged |= {"dragmode": "zoom", "margin": {**_LAYOUT["margin"], "t": 34}}  # room for the buttons
    for axis in ("xaxis", "yaxis"):
        merged[axis] = {"automargin": True, "fixedrange": not (zoom and axis == "xaxis"), **merged.get(axis, {})}
    config = {
        "displaylogo": False,
        "displayModeBar": zoom,
        "modeBarButtons": [list(_ZOOM)],
        "doubleClick": "reset" if zoom else False,
    }
    drawn = to_html(
        {"data": list(traces), "layout": merged},
        config=config,
        include_plotlyjs=False,
        full_html=False,
        default_height="100%",
        validate=False,
        div_id=name,
    )
    text = escape(description)
    box = f'<div class="chart" role="img" aria-label="{text}" style="--height: {height}px">{drawn}</div>'
    return f"<figure>{key(traces)}{box}<figcaption>{text}</figcaption></figure>"


def key(traces: Sequence[Trace]) -> str:
    """Return the names of traces beside their colours, patterns and dashes, as a list; nothing of a single one."""
    named = {trace["name"]: trace for trace in reversed(traces) if trace.get("name") and len(trace["x"])}
    items = "".join(f"<li>{_swatch(trace)}{escape(name)}</li>" for name, trace in reversed(named.items()))
    return f'<ul class="key">{items}</ul>' if len(named) > 1 else ""


def _swatch(trace: Trace) -> str:
    marker, line = trace.get("marker", {}), trace.get("line", {})
    kind = (
        "dot" if trace.get("mode") == "markers" else line.get("dash", "solid") if trace["type"] == "scatter" else "box"
    )
    shape = NAMES.get(marker.get("pattern", {}).get("shape", ""), "")
    colour = line.get("color") if kind in ("solid", "dash") else marker.get("color")
    return f'<span class="swatch {kind} {shape}" style="--fill: {colour}" aria-hidden="true"></span>'


def label(text: str) -> str:
    """Return a text as a chart shows it: plotly reads tags in texts."""
    return escape(text)


def fill(colour: str, pattern: str = "") -> dict[str, Any]:
    """Return the marker of bars in a colour, with a pattern in ink where colour is not to tell them apart alone."""
    shape = {"shape": pattern, "bgcolor": colour, "fgcolor": INK, "fgopacity": 0.5, "size": 6, "solidity": 0.12}
    return {"color": colour, "pattern": shape} if pattern else {"color": colour}


def mark(name: str, x: float, count: int) -> Trace:
    """Return a dashed line across ``count`` rows, with its name in the legend."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [x, x],
        "y": [-0.5, count - 0.5],
        "line": {"color": PATH, "width": 2.5, "dash": "dash"},
        "hoverinfo": "skip",
    }


def rows(names: Sequence[str], height: int, **more: Any) -> dict[str, Any]:
    """Return a vertical axis with a named row at 0, 1, …, the first on top; of many rows every k-th is named."""
    every = max(1, -(-len(names) * 16 // max(height, 1)))
    return {
        "tickvals": list(range(0, len(names), every)),
        "ticktext": [label(name) for name in names[::every]],
        "range": [len(names) - 0.5, -0.5],
        "showgrid": False,
        "zeroline": False,
        "ticks": "outside",
        "tickcolor": "rgba(0,0,0,0)",
        **more,
    }


def scaled(values: Sequence[float], factor: float) -> list[float]:
    """Return values in a unit, with six digits: pages stay small."""
    return [float(f"{value / factor:.6g}") for value in values]


def unit_for(largest: float, units: Sequence[tuple[str, int]]) -> tuple[str, int]:
    """Return the unit, of those given from the largest on, that suits a value, and its factor."""
    return next(((unit, factor) for unit, factor in units if largest >= factor), units[-1])
