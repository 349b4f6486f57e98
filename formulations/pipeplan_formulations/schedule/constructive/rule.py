"""What a list scheduler goes by."""

from dataclasses import dataclass
from typing import TypeAlias

Priorities: TypeAlias = tuple[list[list[float]], list[list[float]], list[list[float]]]
"""Of F, I and W, per stage and micro-batch: the least goes first."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How a device chooses among what it may start.

    Attributes
    ----------
    priorities : Priorities
        Which goes first.
    patience : float
        A device waits for something better that is known to arrive within this fraction of the time that the best it
        could start now takes: 0 makes non-delay schedules, 1 active ones.
    held : tuple of int, or None
        Most micro-batches in flight per stage (F started, I not ended), each at least 1; None for as many as fit.
    alternate : bool
        An F goes first after an I, an I after an F.
    """

    priorities: Priorities
    patience: float = 0.0
    held: tuple[int, ...] | None = None
    alternate: bool = False
