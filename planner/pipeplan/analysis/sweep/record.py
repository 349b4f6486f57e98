"""`Record` of one cell of a sweep: the figures of the answer, or the reason why there is none."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pipeplan.analysis.sweep.experiment import Search
from pipeplan.core.job import Job
from pipeplan.core.machine import Machine
from pipeplan.io.job_file import job_data

Outcome = Literal["solved", "infeasible", "failed", "missing"]


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one method's plan, in nanoseconds and bytes.

    Attributes
    ----------
    value : int or None
        Step time, or the largest stage load; None without a plan.
    peaks : tuple of int
        Peak bytes of each device of the plan.
    plan : str
        Depth, replicas, micro-batches and schedule, as text.
    why : str
        The reason why there is no plan.
    outside : str
        The reason why the plan lies outside the searched space; it is shown, and never counts as best.
    at_least : int or None
        Lower bound on the value, if the method has a plan that fits and none was simulated.
    """

    value: int | None = None
    peaks: tuple[int, ...] = ()
    plan: str = ""
    why: str = ""
    outside: str = ""
    at_least: int | None = None

    @property
    def peak(self) -> int | None:
        """Bytes of the fullest device; None without a plan."""
        return max(self.peaks, default=None)


@dataclass(frozen=True)
class Record:
    """One row of the table.

    Attributes
    ----------
    model, cluster : str
        Names in the table.
    job : Job
    search : Search
    fingerprint : str
        Hash of the cell's problem; a record with another one is out of date.
    outcome : {'solved', 'infeasible', 'failed', 'missing'}
        ``infeasible``: proved that nothing fits. ``failed``: an error, whose text is ``error``. ``missing``: not solved
        in any of the merged folders.
    answer : Figures
    beside : mapping of str to Figures
        By name of the partitioner or baseline planner.
    bound : int or None
        Nanoseconds.
    status, stop : str
        See `pipeplan_formulations.common.report`.
    wall, processor : float or None
        Seconds; those of the processor are of all processes of the cell, and None if its process was killed.
    plan_file : str
        Path of the plan in the sweep's folder; empty without a plan.
    error : str
    rung : (str, int) or None
        Series and number of the model, if it is a member of a series.
    machine : Machine
        The computer, and the versions of what it ran.
    part : str
        Part of the experiment; records of one part make one table.
    """

    model: str
    cluster: str
    job: Job
    search: Search
    fingerprint: str
    outcome: Outcome
    answer: Figures = Figures()
    beside: Mapping[str, Figures] = field(default_factory=dict)
    bound: int | None = None
    status: str = ""
    stop: str = ""
    wall: float | None = None
    processor: float | None = None
    plan_file: str = ""
    error: str = ""
    rung: tuple[str, int] | None = None
    machine: Machine = field(default_factory=Machine)
    part: str = ""

    @property
    def gap(self) -> float | None:
        """(value − bound) / value; None without a plan."""
        value = self.answer.value
        if value is None or self.bound is None:
            return None
        return (value - self.bound) / value if value else 0.0

    @property
    def job_label(self) -> str:
        """The job in words."""
        return job_label(self.job)

    @property
    def reason(self) -> str:
        """The first line of the error."""
        return self.error.partition("\n")[0]

    def ratio(self, method: str) -> float | None:
        """Step time of the method, relative to the answer's; None if either has no plan."""
        other = self.beside.get(method, Figures()).value
        return other / self.answer.value if other is not None and self.answer.value else None

    def least_ratio(self, method: str) -> float | None:
        """Lower bound on the method's step time, relative to the answer; None if a plan was simulated, or none fits."""
        other = self.beside.get(method, Figures())
        if other.value is not None or other.at_least is None or not self.answer.value:
            return None
        return other.at_least / self.answer.value

    def peak_ratio(self, method: str) -> float | None:
        """Largest peak memory of the method, relative to the answer's; None if either has no plan."""
        other = self.beside.get(method, Figures()).peak
        return other / self.answer.peak if other is not None and self.answer.peak else None


def job_label(job: Job) -> str:
    """The batch, and all options that differ from the defaults: ``'batch 256, adam, 1f1b-so'``."""
    plain, own = job_data(Job(job.batch)), job_data(job)
    parts = [f"batch {job.batch}"]
    for field_name, value in own.items():
        if plain.get(field_name) != value:
            said = " ".join(map(str, value)) if isinstance(value, list) else value
            parts.append(field_name if said is True else f"{field_name} {said}")
    return ", ".join(parts)
