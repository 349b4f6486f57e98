"""The answer in full: the plan, what was proved, what was searched, and the balancers beside it."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeplan.answer import as_json, in_words
from pipeplan.job import Job
from pipeplan.plan import Plan
from pipeplan.robust.choice import Choice
from pipeplan.search.baselines import Baseline
from pipeplan.searched import Searched
from pipeplan.sources import Costs
from pipeplan.timeline import Timeline
from pipeplan_formulations.report import Status, Stop


@dataclass(frozen=True)
class Result:
    """What `pipeplan.solve` returns. ``value`` and ``bound`` are nanoseconds of an undisturbed step.

    ``costs`` is what the times are: measured, imported, or estimates. ``robust`` is what the plan was compared with
    where times vary. It may then take longer undisturbed than another.

    Raises
    ------
    ValueError
        If the bound exceeds the value, or a balancer's plan beats the answer although it is one that was asked for.
    """

    plan: Plan
    timeline: Timeline
    job: Job
    status: Status
    stop: Stop
    value: int
    bound: int
    wall: float
    backend: str
    searched: Searched
    costs: Costs
    baselines: Mapping[str, Baseline]
    runners_up: tuple[tuple[str, int], ...] = ()
    robust: Choice | None = None

    def __post_init__(self) -> None:
        if self.bound > self.value:
            raise ValueError(f"bound {self.bound} ns lies above the value {self.value} ns")
        for row in self.baselines.values():
            asked = self.robust is None and not row.outside
            if asked and row.value is not None and row.value < self.value:
                raise ValueError(f"balancer {row.name} beats the answer: {row.value} ns against {self.value} ns")

    @property
    def gap(self) -> float:
        """(value − bound) / value."""
        return (self.value - self.bound) / self.value if self.value else 0.0

    def __str__(self) -> str:
        return in_words(self)

    def as_json(self) -> dict[str, object]:
        """The object that ``pipeplan solve --json`` prints. Times are seconds."""
        return as_json(self)
