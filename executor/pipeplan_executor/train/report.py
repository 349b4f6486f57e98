"""`RunReport`: measurements of a run from all ranks, beside the plan's prediction."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, median

from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Action, Kind
from pipeplan.core.timeline import Span, Step, Timeline
from pipeplan.core.units import format_time
from pipeplan.simulate import memory_of_ranks, timeline_of
from pipeplan_executor.runtime.recorder import host
from pipeplan_executor.sharding.processes import Processes
from pipeplan_executor.train.verdict import Verdict


@dataclass(frozen=True)
class RunReport:
    """Measurements of a run. Times are nanoseconds, sizes bytes.

    Attributes
    ----------
    losses : tuple of float
        One per timed step.
    step_times : tuple of int
        From the first process's start to the last one's end, one per timed step; without a barrier between steps
        (``staleness`` 1, ``priority``) the mean of the processes' own times.
    peaks : tuple of int
        Peak memory of each rank over the timed steps (see `train.memory`); if several processes share a rank, the
        largest of their peaks.
    timelines : tuple of Timeline
        Actions of the ranks in each timed step, those of the first process if several share a rank; memory lines are
        empty.
    verdict : Verdict or None
        Comparison of loss and gradients with the unsplit model's, if verified.
    first : int
        Number of steps of the checkpoint from which the run continued.
    restarts : tuple of str
        The launcher's lines about ranks that were lost during the run.
    tensor_parallel : int
        Number of processes that shared a rank, the largest if they differ.
    repeated : tuple of str
        Layers that each of these processes computed as a whole (see `pipeplan_executor.stages.split.Fitted`).

    Examples
    --------
    >>> report = pipeplan_executor.RunReport((2.5, 2.4), (1_000, 1_200), (2**20,), ())
    >>> report.step_time  # nanoseconds
    1100
    """

    losses: tuple[float, ...]
    step_times: tuple[int, ...]
    peaks: tuple[int, ...]
    timelines: tuple[Timeline, ...]
    verdict: Verdict | None = None
    first: int = 0
    restarts: tuple[str, ...] = ()
    tensor_parallel: int = 1
    repeated: tuple[str, ...] = ()

    @property
    def step_time(self) -> int:
        """Median step time in nanoseconds."""
        return round(median(self.step_times)) if self.step_times else 0

    @property
    def error(self) -> float | None:
        """Largest relative difference of loss and gradients to the unsplit model's, if verified."""
        return None if self.verdict is None else self.verdict.error

    @property
    def spread(self) -> str:
        """The least and the most of the timed steps: ``'9.1 ms to 10.4 ms'``."""
        return f"{format_time(min(self.step_times))} to {format_time(max(self.step_times))}"

    def off(self, predicted: int) -> str:
        """The measured step relative to a prediction, and whether measured steps vary by as much."""
        noise = " (noise)" if min(self.step_times) <= predicted <= max(self.step_times) else ""
        return f"{self.step_time / predicted - 1 if predicted else 0.0:+.1%}{noise}"

    @property
    def timeline(self) -> Timeline:
        """Timeline of the step of median duration; empty if none was timed."""
        if not self.timelines:
            return Timeline((), (), (), ())
        order = sorted(range(len(self.step_times)), key=self.step_times.__getitem__)
        return self.timelines[order[len(order) // 2]]


@dataclass
class Seen:
    """Measurements of one process in the timed steps, by the clock of its host."""

    host: str = field(default_factory=host)
    losses: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    spans: list[list[tuple[Action, int, int]]] = field(default_factory=list)
    peak: int = 0
    verdict: Verdict | None = None
    first: int = 0
    repeated: tuple[str, ...] = ()
    rolling: bool = False

    def encoded(self) -> bytes:
        """Return these measurements as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decoded(cls, data: bytes) -> "Seen":
        """Read what `encoded` wrote."""
        fields = json.loads(data)
        spans = [[(Action(Kind(kind), *rest), *times) for (kind, *rest), *times in step] for step in fields["spans"]]
        verdict = None if fields["verdict"] is None else Verdict(**fields["verdict"])
        repeated = tuple(fields["repeated"])
        return cls(**{**fields, "spans": spans, "verdict": verdict, "repeated": repeated})


def report_of(everyone: Sequence[Seen], processes: Processes | None = None) -> RunReport:
    """Merge the measurements of all processes into one report of the ranks; by default each is one process.

    Each host's clock is set to 0 when the first of its processes begins the step, since all leave one barrier.
    """
    first = everyone[0]
    processes = processes or Processes((1,) * len(everyone))
    ranks = [everyone[own.start : own.stop] for own in map(processes.of_rank, range(len(processes.sizes)))]
    zeros = [_zeros(everyone, number) for number in range(len(first.ends))]
    return RunReport(
        losses=tuple(first.losses),
        step_times=tuple(_step_time(everyone, number, row) for number, row in enumerate(zeros)),
        peaks=tuple(max(one.peak for one in own) for own in ranks),
        timelines=tuple(
            _timeline([own[0] for own in ranks], number, [row[first] for first in processes.firsts])
            for number, row in enumerate(zeros)
        ),
        verdict=first.verdict,
        first=first.first,
        tensor_parallel=max(processes.sizes),
        repeated=first.repeated,
    )


def _step_time(everyone: Sequence[Seen], number: int, zeros: Sequence[int]) -> int:
    if everyone[0].rolling:
        return round(mean(one.ends[number] - one.starts[number] for one in everyone))
    return max(one.ends[number] - zero for one, zero in zip(everyone, zeros, strict=True))


def _zeros(everyone: Sequence[Seen], number: int) -> list[int]:
    """Return the start of a timed step for each process, by its host's clock."""
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


def ranks_text(plan: Plan, tensor_parallel: int = 1) -> str:
    """Return ``'4 ranks of 2 processes'``; of one process each: ``'4 ranks'``."""
    return f"{len(plan.ranks)} ranks{Processes.of(plan, tensor_parallel).as_text()}"


def layers_by_stage(plan: Plan) -> str:
    """Return numbers of layers, like ``8 | 2 × 14``: 8, then 14 on two replicas; ``8 (3 again)`` recomputes 3."""
    return " | ".join(
        (f"{stage.replicas} × " if stage.replicas > 1 else "")
        + str(len(stage.layers))
        + (f" ({len(stage.recompute)} again)" if stage.recompute else "")
        for stage in plan.stages
    )


def write_pictures(
    plan: Plan, report: RunReport, *, trace: str | Path | None = None, plots: Iterable[str | Path] = ()
) -> None:
    """Write predicted and measured time lines as a trace for Perfetto, and as pictures (.svg or .png)."""
    from pipeplan.report.plot.gantt import save_gantt
    from pipeplan.report.plot.labels import device_labels
    from pipeplan.report.trace import write_trace

    lines, labels = (
        {"predicted": timeline_of(plan), "measured": report.timeline},
        device_labels(plan),
    )
    if trace is not None:
        write_trace(trace, lines, labels)
    for path in plots:
        save_gantt(path, lines, limits=plan.pipeline.limits, devices=labels, title=plan.headline)


def write_page(plan: Plan, report: RunReport, path: str | Path, lines: Sequence[str]) -> None:
    """Write a page of the run: predicted beside measured; ``lines`` are the report in words."""
    from pipeplan.report.page.pages import run_page
    from pipeplan.report.page.sections.measured import Measured

    times = report.step_time, report.step_times, report.losses
    measured = Measured(*times, report.peaks, memory_of_ranks(plan), report.timeline, lines)
    run_page(plan, timeline_of(plan), measured).save(path)
