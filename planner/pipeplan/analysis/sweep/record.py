"""`Record` of one cell of a sweep: the answer in figures, or why there is none."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Outcome = Literal["solved", "infeasible", "failed"]


@dataclass(frozen=True, slots=True)
class Figures:
    """One method's plan. Nanoseconds and bytes.

    Attributes
    ----------
    value : int or None
        Step time, or the largest stage load; None without a plan.
    peaks : tuple of int
        Peak bytes of each device of the plan.
    plan : str
        Depth, replicas, micro-batches and schedule, for people.
    why : str
        Why there is no plan.
    outside : str
        Why the plan is none of those that were asked for; it is shown, and counts for nothing.
    """

    value: int | None = None
    peaks: tuple[int, ...] = ()
    plan: str = ""
    why: str = ""
    outside: str = ""

    @property
    def peak(self) -> int | None:
        """Bytes of the fullest device; None without a plan."""
        return max(self.peaks, default=None)


@dataclass(frozen=True)
class Record:
    """One row of the table.

    Attributes
    ----------
    model, cluster, job : str
        What rows call them.
    fingerprint : str
        Of everything that was asked; a record with another one is out of date.
    outcome : {'solved', 'infeasible', 'failed'}
        ``infeasible``: proved that nothing fits. ``failed``: an error, whose text is ``error``.
    answer : Figures
    beside : mapping of str to Figures
        By balancer or peer.
    bound : int or None
        Nanoseconds.
    status, stop : str
        See `pipeplan_formulations.common.report`.
    wall : float
        Seconds.
    error : str
    rung : (str, int) or None
        Series and number of the model, if it is a member.
    version : str
        Of pipeplan.
    part : str
        Of the experiment; records of one part make one table.
    """

    model: str
    cluster: str
    job: str
    fingerprint: str
    outcome: Outcome
    answer: Figures = Figures()
    beside: Mapping[str, Figures] = field(default_factory=dict)
    bound: int | None = None
    status: str = ""
    stop: str = ""
    wall: float = 0.0
    error: str = ""
    rung: tuple[str, int] | None = None
    version: str = ""
    part: str = ""

    @property
    def gap(self) -> float | None:
        """(value − bound) / value; None without a plan."""
        value = self.answer.value
        if value is None or self.bound is None:
            return None
        return (value - self.bound) / value if value else 0.0

    @property
    def reason(self) -> str:
        """The first line of the error."""
        return self.error.partition("\n")[0]

    def ratio(self, method: str) -> float | None:
        """How many times as long as the answer's the method's step is; None where either has no plan."""
        other = self.beside.get(method, Figures()).value
        return other / self.answer.value if other is not None and self.answer.value else None

    def peak_ratio(self, method: str) -> float | None:
        """How many times as full as the answer's the method's fullest device is; None where either has no plan."""
        other = self.beside.get(method, Figures()).peak
        return other / self.answer.peak if other is not None and self.answer.peak else None
