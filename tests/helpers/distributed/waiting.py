"""A machine whose processes mostly wait for other programs, importable by name in other processes."""

from itertools import count
from typing import Any

from pipeplan_executor.calibrate import machine

SLICE = 4_000_000
"""Nanoseconds between two looks at the clock, whatever happens in between."""


def measured_with_a_waiting_clock() -> Any:
    """Measure a machine by a clock that shows nothing but time slices of other programs."""
    looks = count(0, SLICE)
    machine.now = lambda: next(looks)  # type: ignore[assignment]
    return machine._measure()
