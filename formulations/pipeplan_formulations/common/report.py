"""Limits and report of a solver, with its status and the reason why it stopped."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

Solution = TypeVar("Solution")

Progress = Callable[[int | None, int], None]
"""Called with the incumbent's objective (None before there is one) and the proven bound, when either improves."""


class Status(StrEnum):
    """Kind of answer: a proved optimum, a solution, a proof that there is none, or neither."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


class Stop(StrEnum):
    """Reason why a solver stopped."""

    OPTIMALITY = "optimality"
    GAP = "gap"
    EXHAUSTED = "exhausted"  # nothing is left to examine, and no remaining bound can be raised
    TIME = "time"
    INTERRUPT = "interrupt"
    ERROR = "error"


class BeyondIntegersError(ValueError):
    """Times are so large that their sums exceed 64-bit integers."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits at which a solver may stop, its threads and its seed.

    Attributes
    ----------
    time : float
        Seconds of wall time.
    gap : float
        Relative gap (objective − bound) / objective at which the answer is good enough.
    workers : int
        Threads. CP-SAT is deterministic only with one.
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
