"""A machine whose processes mostly wait for other programs, importable by name in other processes."""

from itertools import count
from typing import Any

from pipeplan_executor.calibrate import machine

SLICE = 4_000_000
"""Nanoseconds between two looks at the clock, whatever happens in between."""


def measured_with_a_waiting_clock() -> Any:
    """Measure a machine, as briefly as possible, by a clock that shows nothing but time slices of other programs."""
    brief = {"ROUNDS": 3, "SUMMED": machine.SUMMED[:1], "SUMS": 3, "TURNS": 2, "SIDES": machine.SIDES[:2], "PASSES": 3}
    for name, value in brief.items():
        setattr(machine, name, value)
    looks = count(0, SLICE)
    machine.now = lambda: next(looks)  # type: ignore[assignment]
    return machine._measure()
