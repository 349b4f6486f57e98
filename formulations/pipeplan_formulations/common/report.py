"""What a solver is told, and what it says."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

Solution = TypeVar("Solution")

Progress = Callable[[int | None, int], None]
"""Called with the incumbent's objective (None before there is one) and the proven bound, when either improves."""


class Status(StrEnum):
    """What we have."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


class Stop(StrEnum):
    """Why we stopped."""

    OPTIMALITY = "optimality"
    GAP = "gap"
    EXHAUSTED = "exhausted"  # everything was looked at, and no bound that is left can be raised
    TIME = "time"
    INTERRUPT = "interrupt"
    ERROR = "error"


class BeyondIntegersError(ValueError):
    """Times are so large that their sums leave 64-bit integers."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a solver may stop.

    Attributes
    ----------
    time : float
        Seconds of wall time.
    gap : float
        Relative gap (objective − bound) / objective at which the answer is good enough.
    workers : int
        Threads. CP-SAT is deterministic with one only.
    seed : int
    """

    time: float = 60.0
    gap: float = 0.0
    workers: int = 2
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Report(Generic[Solution]):
    """A solver's answer. ``bound`` never exceeds the optimum; ``objective`` belongs to ``solution``.

    Raises
    ------
    ValueError
        If the parts contradict each other (a bound above the objective, a solution without objective).
    """

    status: Status
    stop: Stop
    objective: int | None
    bound: int
    wall: float
    backend: str
    version: str
    seed: int
    solution: Solution | None

    def __post_init__(self) -> None:
        has_solution = self.status in (Status.OPTIMAL, Status.FEASIBLE)
        if has_solution != (self.solution is not None) or has_solution != (self.objective is not None):
            raise ValueError(f"status {self.status} does not fit solution {self.solution} of {self.objective}")
        if self.objective is not None and self.bound > self.objective:
            raise ValueError(f"bound {self.bound} lies above the objective {self.objective}")
        if self.status is Status.OPTIMAL and self.bound != self.objective:
            raise ValueError(f"optimal, yet bound {self.bound} is not the objective {self.objective}")

    @property
    def gap(self) -> float | None:
        """(objective − bound) / objective; None without a solution, 0 for an objective of 0."""
        if self.objective is None:
            return None
        return (self.objective - self.bound) / self.objective if self.objective else 0.0
