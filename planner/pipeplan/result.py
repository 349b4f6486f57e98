"""The answer in full: the plan, what was proved, what was searched, and the balancers beside it."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeplan.answer import as_json, in_words
from pipeplan.job import Job
from pipeplan.plan import Plan
from pipeplan.robust.choice import Choice
from pipeplan.search.baselines import Baseline
from pipeplan.timeline import Timeline
from pipeplan_formulations.report import Status, Stop


@dataclass(frozen=True, slots=True)
class Searched:
    """The space over which the bound holds, and what lies outside it."""

    micro_batch_sizes: tuple[int, ...]
    schedules: tuple[str, ...]
    opened: int
    recompute: str
    order: str
    partitions: str = "contiguous layers in the listed order, every layer once"
    in_flight: str = "where counts are a choice: from those of SNO to those of SO, falling along the pipeline"
    schedules_reach: str = "the listed families, as each writes its lists"
    replicas: str = "devices of one kind and one kind of node; packed in the cluster's order, or equal tiles of nodes"
    not_searched: tuple[str, ...] = (
        "replicas of unlike kinds in one stage",
        "other choices among like devices of several nodes",
        "schedules outside the listed families",
    )


@dataclass(frozen=True)
class Result:
    """What `pipeplan.solve` returns. ``value`` and ``bound`` are nanoseconds of an undisturbed step.

    ``robust`` is what the plan was compared with where times vary. It may then take longer undisturbed than another.

    Raises
    ------
    ValueError
        If the bound exceeds the value, or a balancer's plan beats the answer.
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
    baselines: Mapping[str, Baseline]
    runners_up: tuple[tuple[str, int], ...] = ()
    robust: Choice | None = None

    def __post_init__(self) -> None:
        if self.bound > self.value:
            raise ValueError(f"bound {self.bound} ns lies above the value {self.value} ns")
        for row in self.baselines.values():
            if self.robust is None and row.value is not None and not row.outside and row.value < self.value:
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
