"""`RunReport`: measurements of a run from all ranks, beside the plan's prediction."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Action
from pipeplan.core.timeline import Span, Step, Timeline
from pipeplan_executor.runtime.recorder import host


@dataclass(frozen=True)
class RunReport:
    """What a run showed. Times are nanoseconds, sizes bytes.

    Attributes
    ----------
    losses : tuple of float
        One a timed step.
    step_times : tuple of int
        From the first process's start to the last one's end, one a timed step.
    peaks : tuple of int
        Peak memory of each rank over the timed steps (see `train.memory`): that of the process that needed
        most, where several share a rank.
    timelines : tuple of Timeline
        What ranks did in each timed step, where several processes share one its first; memory lines are empty.
    error : float or None
        Largest relative difference of loss and gradients to the unsplit model in float64, if that was asked for.
    first : int
        Steps that were done before: those of the checkpoint that the run went on from.
    restarts : tuple of str
        What the launcher told of ranks that were lost before the run came to its end.
    tensor_parallel : int
        Processes that shared a rank.
    """

    losses: tuple[float, ...]
    step_times: tuple[int, ...]
    peaks: tuple[int, ...]
    timelines: tuple[Timeline, ...]
    error: float | None = None
    first: int = 0
    restarts: tuple[str, ...] = ()
    tensor_parallel: int = 1

    @property
    def step_time(self) -> int:
        """The median."""
        return round(median(self.step_times)) if self.step_times else 0

    @property
    def timeline(self) -> Timeline:
        """The step of median duration as it really ran; empty if none was timed."""
        if not self.timelines:
            return Timeline((), (), (), ())
        order = sorted(range(len(self.step_times)), key=self.step_times.__getitem__)
        return self.timelines[order[len(order) // 2]]


@dataclass
class Seen:
    """What one process saw of the timed steps, by the clock of its host."""

    host: str = field(default_factory=host)
    losses: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    spans: list[list[tuple[Action, int, int]]] = field(default_factory=list)
    peak: int = 0
    error: float | None = None
    first: int = 0


def report_of(everyone: Sequence[Seen], members: int = 1) -> RunReport:
    """What all processes saw, so many of each rank behind one another, as one report.

    Every host has a clock of its own, which says 0 when the first of its processes begins the step: all come from one
    barrier.
    """
    first = everyone[0]
    zeros = [_zeros(everyone, number) for number in range(len(first.losses))]
    return RunReport(
        losses=tuple(first.losses),
        step_times=tuple(
            max(one.ends[number] - zero for one, zero in zip(everyone, row, strict=True))
            for number, row in enumerate(zeros)
        ),
        peaks=tuple(max(one.peak for one in everyone[i : i + members]) for i in range(0, len(everyone), members)),
        timelines=tuple(_timeline(everyone[::members], number, row[::members]) for number, row in enumerate(zeros)),
        error=first.error,
        first=first.first,
        tensor_parallel=members,
    )


def _zeros(everyone: Sequence[Seen], number: int) -> list[int]:
    """When a timed step begins, for each process by its host's clock."""
    begins: dict[str, int] = {}
    for one in everyone:
        begins[one.host] = min(one.starts[number], begins.get(one.host, one.starts[number]))
    return [begins[one.host] for one in everyone]


def _timeline(everyone: Sequence[Seen], number: int, zeros: Sequence[int]) -> Timeline:
    spans = [
        Span(rank, 0, action, start - zero, end - zero)
        for rank, (one, zero) in enumerate(zip(everyone, zeros, strict=True))
        for action, start, end in one.spans[number]
    ]
    empty: tuple[Step, ...] = ()
    return Timeline(tuple(sorted(spans, key=lambda span: span.start)), (), (empty,) * len(everyone), ())


def predicted_peak(plan: Plan, rank: int) -> int:
    """Bytes that the plan promised for a rank."""
    return sum(stage.memory.total for stage in plan.stages if plan.ranks[rank] in stage.devices)


def layers_by_stage(plan: Plan) -> str:
    """``8 | 2 × 14``: 8 layers, then 14 on two replicas; ``8 (3 again)`` recomputes three of them."""
    return " | ".join(
        (f"{stage.replicas} × " if stage.replicas > 1 else "")
        + str(len(stage.layers))
        + (f" ({len(stage.recompute)} again)" if stage.recompute else "")
        for stage in plan.stages
    )


def write_pictures(
    plan: Plan, report: RunReport, *, trace: str | Path | None = None, plots: Iterable[str | Path] = ()
) -> None:
    """Predicted above measured: a trace for Perfetto, and pictures (.svg or .png)."""
    from pipeplan.report.plot.gantt import save_gantt
    from pipeplan.report.plot.labels import device_labels
    from pipeplan.report.trace import write_trace
    from pipeplan.simulate import simulate

    lines, labels = (
        {"predicted": simulate(plan.schedule, plan.pipeline), "measured": report.timeline},
        device_labels(plan),
    )
    if trace is not None:
        write_trace(trace, lines, labels)
    for path in plots:
        save_gantt(path, lines, limits=plan.pipeline.limits, devices=labels)
