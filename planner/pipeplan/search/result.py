"""`Result`: the plan, its bound, the searched space and the baselines, as text and as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from pipeplan.core.job import Job, Objective
from pipeplan.core.plan import Plan, PlanStage
from pipeplan.core.searched import Searched
from pipeplan.core.tabular import Table, Tabular
from pipeplan.core.throughput import Throughput
from pipeplan.core.timeline import Timeline
from pipeplan.core.units import format_reserve, format_time
from pipeplan.core.wording import wrapped
from pipeplan.costs.sharding.left_whole import LeftWhole
from pipeplan.costs.sources import Costs
from pipeplan.search.heuristics import ranked
from pipeplan.search.irregular import Irregular
from pipeplan.search.stage_lines import stage_lines
from pipeplan.search.turns import LONG, SHORT, Baseline
from pipeplan.simulate import timeline_of
from pipeplan_formulations.common.report import Status, Stop

if TYPE_CHECKING:
    from pipeplan.search.front_first import FrontFirst

MEANING = {
    Objective.STEP: "step time",
    Objective.PERIOD: "period in a long run",
    Objective.BOTTLENECK: "largest stage load per sample",
}
"""What the value of an answer is."""

REASONS = {
    Stop.OPTIMALITY: "proved for these {costs}",
    Stop.GAP: "the requested gap is reached",
    Stop.EXHAUSTED: "the search is exhausted, and a gap is left",
    Stop.TIME: "time limit reached",
    Stop.INTERRUPT: "interrupted",
    Stop.ERROR: "a solver contradicted itself",
}


class Compared(Protocol):
    """The plans that were compared where times vary: a `pipeplan.solve.robust.choice.Choice`."""

    @property
    def reason(self) -> str:
        """The reason why another plan than the nominal best is chosen; empty if that one is."""

    def as_text(self) -> list[str]:
        """Lines of text."""

    def as_json(self) -> dict[str, object]:
        """Plain data."""


@dataclass(frozen=True, repr=False)
class Result(Tabular):
    """Result of `pipeplan.solve`. ``value`` and ``bound`` are nanoseconds of what the job's objective is.

    ``costs`` is the source of the times: measured, imported, or estimates. ``robust`` holds the comparison of plans
    where times vary. The chosen plan may then have a longer nominal step than another. On large clusters ``layouts``
    has the bound of each layout, the least first; those that reach the value are excluded. ``late`` says that time was
    over before all ways to split layers over teams were known, so that the others are bounded by their work alone.
    ``recut`` is the plan with token slices of unlike lengths, if that was asked for and is faster, ``front_first`` the
    best one found whose sums go on while the next step begins, if that was asked for; no bound covers these.
    ``whole`` is what devices of the largest teams run whole. ``irregular`` is what there is without a job's wish for
    regular plans. ``delayed`` bounds the period with one step of delay, where the period without it was asked for.

    Attributes
    ----------
    plan : Plan
    job : Job
    status : Status
        ``OPTIMAL`` if value and bound are equal, else ``FEASIBLE``.
    stop : Stop
        Why the search ended.
    value, bound : int
        Nanoseconds.
    wall : float
        Seconds of the search.
    baselines : mapping of str to Baseline
        Every heuristic by name.
    runners_up : tuple
        The next best plans that were found.

    Raises
    ------
    ValueError
        If the bound exceeds the value, or a baseline's plan within the searched space beats the answer.

    Notes
    -----
    ``gap`` is (value − bound) / value. The bound is a lower bound on the objective of every plan in the space that
    ``searched`` states; its inequalities and their proofs are those of ``docs/bounds/``.

    Examples
    --------
    >>> result = pipeplan.solve("vgg-16", "4-v100-nvlink", batch=64, depths=2, replicas=1, schedules="gpipe")
    >>> result.value == result.bound, result.gap
    (True, 0.0)
    """

    plan: Plan
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
    robust: Compared | None = None
    layouts: tuple[tuple[str, int], ...] = ()
    late: bool = False
    whole: LeftWhole = field(default_factory=LeftWhole)
    irregular: Irregular | None = None
    recut: Plan | None = None
    front_first: "FrontFirst | None" = None
    delayed: int | None = None

    def __post_init__(self) -> None:
        if self.bound > self.value:
            raise ValueError(f"bound {self.bound} ns lies above the value {self.value} ns")
        for row in self.baselines.values():
            asked = self.robust is None and not row.outside
            if asked and row.value is not None and row.value < self.value:
                raise ValueError(f"baseline {row.name} beats the answer: {row.value} ns against {self.value} ns")

    @cached_property
    def timeline(self) -> Timeline:
        """One simulated step of the plan; of gradients that are late, several batches."""
        return timeline_of(self.plan)

    @property
    def gap(self) -> float:
        """(value − bound) / value."""
        return (self.value - self.bound) / self.value if self.value else 0.0

    @property
    def fastest(self) -> Plan:
        """The plan, or one made of it, or of others, that is faster and that no bound covers."""
        front = None if self.front_first is None else self.front_first.plan
        return min((plan for plan in (self.plan, self.recut, front) if plan), key=lambda plan: plan.value)

    @property
    def throughput(self) -> Throughput:
        """Samples, tokens and operations per second."""
        return self.plan.yardstick.throughput(self.job.objective.samples(self.job.batch), self.value)

    @property
    def headline(self) -> str:
        """The plan's headline, value, bound and gap."""
        return f"{self.plan.headline}; {_figures(self)}"

    def table(self) -> Table:
        """A row per stage of the plan."""
        return self.plan.table()

    def __str__(self) -> str:
        return as_text(self)

    def as_json(self) -> dict[str, object]:
        """The object that ``pipeplan solve --json`` prints. Times are seconds."""
        return as_json(self)


def as_text(result: Result) -> str:
    """The text that ``pipeplan solve`` prints."""
    plan = result.plan
    lines = [
        plan.headline,
        f"{_figures(result)} ({result.status}: {reason(result)}, {result.wall:.1f} s with {result.backend})",
        f"throughput {result.throughput}",
        *result.costs.lines(),
        *_reserve(result.job),
        *_delay(result),
        *stage_lines(plan),
        *([] if result.irregular is None else [result.irregular.line(result.value, result.bound)]),
        *_recut(result),
        *([] if result.front_first is None else wrapped(result.front_first.line(result.value))),
        *(line for note in result.whole.as_text() for line in wrapped(note)),
    ]
    others = [entry for entry in result.runners_up if entry[1] > result.value]
    if result.robust is not None:
        lines += result.robust.as_text()
    elif others:
        lines.append("next best plans found:")
        lines += [f"  {format_time(value):>10}  {_more(value, result.value)}  {label}" for label, value in others]
    lines.append("heuristics, same simulator, best micro-batch and schedule for each:")
    late = [row for row in result.baselines.values() if row.untried]
    lines += [
        f"  {_heuristic(row, result)}" for row in ranked(row for row in result.baselines.values() if row not in late)
    ]
    lines += _not_tried(late, result.stop)
    return "\n".join([*lines, *result.searched.lines()])


def _recut(result: Result) -> Iterator[str]:
    """Yield lines on the plan with slices of unlike lengths."""
    if result.recut is not None:
        time, own = result.recut.value, result.recut.slices
        yield from wrapped(
            f"cut again: with {len(own)} slices of {min(own)} to {max(own)} tokens this plan takes {format_time(time)} "
            f"({_more(time, result.value)}); the bound is that of equal slices"
        )


def _not_tried(late: Sequence[Baseline], stop: Stop) -> Iterator[str]:
    """Yield a line for each reason for which nothing is known of some heuristics."""
    ended = REASONS[Stop.INTERRUPT if stop is Stop.INTERRUPT else Stop.TIME]
    reasons = {row.name: row.why if row.why in (SHORT, LONG) else ended for row in late}
    for why in dict.fromkeys(reasons.values()):
        yield f"  not tried ({why}): {', '.join(name for name, own in reasons.items() if own == why)}"


def _more(value: int, best: int) -> str:
    """Return by how much a value exceeds the best; nothing where that is no time at all."""
    return f"{value / best - 1:+.1%}" if best else ""


def _reserve(job: Job) -> list[str]:
    return [f"left free of each device's own memory: {format_reserve(job.reserve)}"] if job.reserve else []


PUBLISHED = "published work needed up to 20 % more iterations for as good a model (GPT-355M, PipeDream-2BW)"


def _delay(result: Result) -> Iterator[str]:
    """Yield what one step of delay costs, or would win."""
    if result.job.staleness:
        yield f"gradients are applied one step late: {PUBLISHED}"
    elif result.delayed is not None and result.value:
        less = max(1 - result.delayed / result.value, 0)
        yield (
            f"one step of delay (--staleness 1) takes {format_time(result.delayed)} at least, at most {less:.0%} less; "
            f"{PUBLISHED}"
        )


def _figures(result: Result) -> str:
    """Value, bound and gap."""
    return (
        f"{MEANING[result.job.objective]} {format_time(result.value)}{_step(result)}, proven bound "
        f"{format_time(result.bound)}, gap {result.gap:.2%}"
    )


def _step(result: Result) -> str:
    """The time of a step by itself, beside a period."""
    return f" (one step alone {format_time(result.plan.step_time)})" if result.plan.period is not None else ""


def as_json(result: Result) -> dict[str, object]:
    """The object that ``pipeplan solve --json`` prints. Times are seconds."""
    time = "step_time_s" if result.plan.period is None else "period_s"
    return {
        "status": result.status.value,
        "stop": result.stop.value,
        "step_time_s": result.plan.step_time / 1e9,
        time: result.value / 1e9,
        "bound_s": result.bound / 1e9,
        "gap": result.gap,
        "throughput": result.throughput.as_json(),
        "wall_s": result.wall,
        "backend": result.backend,
        "micro_batch": result.plan.micro_batch,
        "micro_batches": result.plan.micro_batches,
        "slices": list(result.plan.slices),
        "schedule": result.plan.schedule.family,
        "zero": result.plan.zero,
        "stages": [_stage_json(stage) for stage in result.plan.stages],
        "runners_up": [{"plan": label, time: value / 1e9} for label, value in result.runners_up],
        "balancers": {name: _heuristic_json(row, time) for name, row in result.baselines.items()},
        "costs": result.costs.as_json(),
        "searched": {"objective": result.job.objective.value} | result.searched.as_json(),
    } | _beside(result)


def _beside(result: Result) -> dict[str, object]:
    """JSON keys that only some results have."""
    tied, found = result.plan.pipeline.tied, dict[str, object]()
    if result.job.reserve:
        found["reserve"] = result.job.reserve
    if result.job.staleness:
        found["staleness"] = result.job.staleness
    if result.delayed is not None:
        found["delayed_bound_s"] = result.delayed / 1e9
    if result.irregular is not None:
        found["irregular"] = result.irregular.as_json(result.value, result.bound)
    if tied:
        found["tied_stages"] = [list(group) for group in tied]
    if result.recut is not None:
        found["recut"] = {"slices": list(result.recut.slices), "time_s": result.recut.value / 1e9}
    if result.front_first is not None:
        found["front_first"] = result.front_first.as_json()
    if result.whole.operators or result.whole.lengths:
        found["whole_in_teams"] = result.whole.as_json()
    if result.layouts:
        found["layouts"] = [{"layout": name, "bound_s": bound / 1e9} for name, bound in result.layouts]
    if result.robust is not None:
        found["robust"] = result.robust.as_json()
    return found


def reason(result: Result) -> str:
    """Return why the search ended."""
    if result.robust is not None and result.robust.reason:
        return result.robust.reason
    more = ", not all ways to split layers over teams are known" if result.late else ""
    return REASONS[result.stop].format(costs=result.costs.name) + more


def _heuristic(row: Baseline, result: Result) -> str:
    if row.bound is not None:
        told = f"{row.bounded}{beyond(row.outside)}; not simulated"
        return f"{row.name:24} at least {format_time(row.bound)}  ({told})"
    if row.value is None:
        return f"{row.name:24} no plan: {row.why}"
    over = f"{row.value / result.bound - 1:+.1%} over the bound  " if result.bound else ""  # of a bound of 0, no share
    return f"{row.name:24} {format_time(row.value):>10}  {over}({row.label}{beyond(row.outside)})"


def beyond(why: str) -> str:
    """Suffix of the label of a plan that is no answer to the job; empty for other plans."""
    return f"; outside what was asked: {why}" if why else ""


def _stage_json(stage: PlanStage) -> dict[str, object]:
    memory = stage.memory
    return {
        "layers": list(stage.layers),
        "devices": list(stage.devices),
        "replicas": stage.replicas,
        "team": stage.team,
        "recompute": list(stage.recompute),
        "forward_s": stage.forward / 1e9,
        "backward_s": stage.backward / 1e9,
        "memory_bytes": {
            "total": memory.total,
            "weights": memory.weights,
            "gradients": memory.gradients,
            "optimizer": memory.optimizer,
            "frozen": memory.frozen,
            "activations": memory.activations,
            "workspace": memory.workspace,
            "runtime": memory.runtime,
        },
    } | ({"shares": dict(stage.shares)} if stage.shares else {})


def _heuristic_json(row: Baseline, time: str) -> dict[str, object]:
    if row.value is not None:
        found: dict[str, object] = {time: row.value / 1e9, "plan": row.label}
    elif row.bound is not None:
        found = {time: None, "at_least_s": row.bound / 1e9, "plan": row.label, "why": row.why}
    else:
        return {time: None, "why": row.why}
    return found | ({"outside": row.outside} if row.outside else {})
