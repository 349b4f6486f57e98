"""Colours of the kinds of action, the same in every picture and trace.

Forward is blue and backward orange, a pair that every kind of colour vision distinguishes (Okabe and Ito, Color
Universal Design, 2008). The two parts of a split backward are a lighter and a darker orange; the rest is green, violet
and grey. Lightness differs too, so that the kinds remain distinct in print without colour.
"""

from dataclasses import dataclass

from pipeplan.core.schedule import Kind


@dataclass(frozen=True)
class Style:
    """Label and colours of one kind of action.

    Attributes
    ----------
    label : str
        For legends and traces.
    fill, ink : str
        Colours of the box and of the text in it.
    trace : str
        The nearest name in the fixed palette of Chrome's trace format.
    """

    label: str
    fill: str
    ink: str
    trace: str


STYLES = {
    Kind.FORWARD: Style("forward", "#3b7dd8", "#ffffff", "rail_response"),
    Kind.BACKWARD: Style("backward", "#f0a030", "#2b1a00", "rail_idle"),
    Kind.INPUT_GRADIENT: Style("input gradient", "#f7c678", "#2b1a00", "yellow"),
    Kind.WEIGHT_GRADIENT: Style("weight gradient", "#b8641a", "#ffffff", "bad"),
    Kind.REDUCE: Style("reduce", "#8467b8", "#ffffff", "detailed_memory_dump"),
    Kind.UPDATE: Style("update", "#2f9e77", "#ffffff", "good"),
    Kind.GATHER: Style("gather", "#b7a3dd", "#1d2329", "light_memory_dump"),
}

TRANSFER = Style("transfer", "#9aa3ad", "#1d2329", "grey")
"""Style of a tensor in transit."""
IDLE = "#e2e6eb"
"""Colour of idle time in a lane."""
INK, FAINT, LIMIT = "#1d2329", "#d9dee3", "#c0392b"
"""Colours of text and axes, of lines between lanes, and of memory limits."""
MEMORY = "#6b8cae"
"""Colour of the memory line of a device."""
