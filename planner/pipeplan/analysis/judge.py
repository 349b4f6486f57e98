"""`judge()`: a hand-written plan, priced, simulated and checked against memory, beside the proved plan."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from pipeplan.core.choices import word
from pipeplan.core.cluster import Cluster, StageDevices
from pipeplan.core.errors import InfeasibleError, InputError, UndecidedError
from pipeplan.core.figures import shown, whole
from pipeplan.core.job import Job, Recompute
from pipeplan.core.model import Model
from pipeplan.core.options import SEED, WORKERS, asked_limits, require_callback
from pipeplan.core.plan import Plan
from pipeplan.core.tabular import Table, Tabular
from pipeplan.core.timeline import Timeline
from pipeplan.core.units import format_bytes, format_time
from pipeplan.core.wording import counted, some
from pipeplan.costs.chain import UNLIMITED, Boundaries
from pipeplan.search.branch_and_bound import OnProgress
from pipeplan.search.build_plan import build_plan
from pipeplan.search.evaluate import EvaluatedPlan, evaluate
from pipeplan.search.result import Result
from pipeplan.search.space.in_flight import FREE
from pipeplan.search.space.space import LEANEST, Space
from pipeplan.solve import solve
from pipeplan.solve.question import asked
from pipeplan_formulations.common.signals import listening


@dataclass(frozen=True, slots=True)
class Overflow:
    """A stage whose devices have too little memory; bytes of each device."""

    stage: int
    devices: tuple[int, ...]
    needed: int
    limit: int

    def __str__(self) -> str:
        devices = some([f"d{device}" for device in self.devices], 8)
        return (
            f"stage {self.stage} on {devices} needs {format_bytes(self.needed)} of {format_bytes(self.limit)}, "
            f"{format_bytes(self.needed - self.limit)} too much"
        )


@dataclass(frozen=True, repr=False)
class Judgement(Tabular):
    """A plan that was written by hand, beside the proved one for the same model, cluster and job.

    Attributes
    ----------
    plan : Plan
    evaluated : EvaluatedPlan
    limits : tuple of (int or None)
        Bytes that a device of each stage has; None is no limit.
    outside : str
        The constraint of the job that the plan breaks, if it breaks one.
    result : Result or None
        The proved plan, if one was found in the time given.
    why : str
        The reason why there is none.
    """

    plan: Plan
    evaluated: EvaluatedPlan
    limits: tuple[int | None, ...]
    outside: str
    result: Result | None
    why: str = ""

    @property
    def value(self) -> int:
        """Nanoseconds of what the job's objective is."""
        return self.evaluated.value

    @property
    def timeline(self) -> Timeline:
        """Time line of one simulated step, as if memory were enough."""
        return self.evaluated.timeline

    @cached_property
    def overflows(self) -> tuple[Overflow, ...]:
        """The stages that do not fit."""
        return tuple(
            Overflow(number, stage.devices, stage.memory.total, limit)
            for number, (stage, limit) in enumerate(zip(self.plan.stages, self.limits, strict=True))
            if limit is not None and stage.memory.total > limit
        )

    @property
    def excess(self) -> float | None:
        """How much longer the plan takes than the proved one, relative to that; None if there is none."""
        return self.value / self.result.value - 1 if self.result is not None and self.result.value else None

    @property
    def headline(self) -> str:
        """The plan, its time, and whether it fits."""
        fits = "; does not fit" if self.overflows else ""
        return f"{self.plan.headline}; {self._figure} {format_time(self.value)}{fits}"

    def table(self) -> Table:
        """A row per stage: those of the plan, with the memory that its devices have."""
        table = self.plan.table()
        rows = ((*row, limit) for row, limit in zip(table.rows, self.limits, strict=True))
        return Table({**table.columns, "limit": "bytes"}, tuple(rows))

    def __str__(self) -> str:
        lines = [f"judged: {self.headline}", *(f"  {each}" for each in self.overflows)]
        if self.outside:
            lines.append(f"  outside what was asked: {self.outside}")
        lines.append(self.table().as_text())
        if self.result is None:
            return "\n".join([*lines, f"proved: {self.why}"])
        return "\n".join([*lines, f"{self._best}: {self.result.headline}", *self._compared(self.result)])

    def as_json(self) -> dict[str, object]:
        """The object that ``pipeplan judge --json`` prints. Times are seconds."""
        return {
            "time_s": self.value / 1e9,
            "fits": not self.overflows,
            "overflows": [
                {
                    "stage": each.stage,
                    "devices": list(each.devices),
                    "needed_bytes": each.needed,
                    "limit_bytes": each.limit,
                }
                for each in self.overflows
            ],
            "outside": self.outside,
            "over_proved": self.excess,
            "proved": None if self.result is None else self.result.as_json(),
            "why": self.why,
        }

    @property
    def _figure(self) -> str:
        return self.evaluated.candidate.objective.figure

    @property
    def _best(self) -> str:
        """What the other plan is."""
        return "best plan found" if self.result is None or self.result.gap else "proved plan"

    def _compared(self, result: Result) -> Iterator[str]:
        if self.excess is None:
            return
        as_if = "if memory were enough, " if self.overflows else ""
        if self.excess < 0:
            yield f"{as_if}the judged plan takes {-self.excess:.1%} less; give the search more time"
            return
        least = f", {self.value / result.bound - 1:.1%} more than its bound" if result.gap and result.bound else ""
        yield f"{as_if}the judged plan takes {self.excess:.1%} more than the {self._best}{least}"


@listening()
def judge(
    model: Model | str | Path | Any,
    cluster: Cluster | str | Path | None = None,
    batch: int | Job | None = None,
    *,
    stages: Sequence[int] | str,
    micro_batches: int,
    schedule: str = FREE,
    replicas: Sequence[int] | str = (),
    recompute: Recompute | str = Recompute.NONE,
    zero: int = 0,
    job: Job | None = None,
    time_limit: float = 60.0,
    gap: float = 0.0,
    backend: str = "cpsat",
    workers: int = WORKERS,
    seed: int = SEED,
    on_progress: OnProgress = lambda *_: None,
    example_inputs: Any = None,
    **options: Any,
) -> Judgement:
    """Price, simulate and check a hand-written plan, and solve the same question for comparison.

    A plan that does not fit is not refused: the answer names the stages that lack memory, and how much.

    Parameters
    ----------
    model, cluster, batch, job, gap, backend, workers, seed, on_progress, example_inputs, **options
        As in `pipeplan.solve`, for the proved plan. What a job says of micro-batches, replicas, recomputation and
        levels of ZeRO is not for the judged one.
    stages : sequence of int or str
        Number of layers of each stage, in order; or as text, ``'5,5,5,6'``.
    micro_batches : int
        Micro-batches of a step.
    schedule : str
        A schedule family; ``'1f1b'`` is the one with the fewest micro-batches in flight.
    replicas : sequence of int or str
        Devices of each stage; one each by default. Stages take devices in the order of the cluster: d0 first.
    recompute : {'none', 'choose', 'full'}
        Layers that the plan recomputes: none, those that it takes to fit, or all.
    zero : int
        Level of ZeRO.
    time_limit : float
        Seconds for the proved plan.

    Raises
    ------
    InputError
        If the plan is no plan for this model and cluster: it has other layers, too many devices, unlike replicas.
    """
    asked_limits(time_limit, gap, backend, workers, seed)
    require_callback(on_progress)
    asking = asked(model, cluster, batch, job=job, example_inputs=example_inputs, asker="judge", **options)
    model, cluster, job = asking.model, asking.cluster, asking.job
    whole(micro_batches, "the number of micro-batches", 1)
    counts = _row(stages, "stages")
    widths = _row(replicas, "replicas") or (1,) * len(counts)
    boundaries = _boundaries(model, counts)
    groups = _groups(cluster, counts, widths)
    own = replace(
        job,
        micro_batches=(micro_batches,),
        schedules=(LEANEST if schedule == FREE else schedule,),
        depths=(),
        replicas=(),
        equal_replicas=False,
        recompute=word(recompute, "recompute", Recompute),
        zero=(zero,),
        teams=(),
        unlike_teams=False,
    )
    space = Space(model, cluster, own)
    size = job.batch // micro_batches
    if max(widths) > micro_batches:
        raise InputError(
            f"{max(widths)} replicas of a stage share {counted(micro_batches, 'micro-batch')}, so that some have none; "
            "take more micro-batches, or fewer replicas"
        )
    unable = space.unable(widths, micro_batches)
    if unable is not None:
        raise InputError(f"no such plan can be run: {unable}")
    candidate = space.candidates_of(space.prices.chain(groups, size), free=False)[0]
    evaluated = evaluate(cluster, candidate, boundaries)
    how = {"gap": gap, "backend": backend, "workers": workers, "seed": seed, "on_progress": on_progress}
    result, why = _proved(model, cluster, job, time_limit, how)
    bound = evaluated.value if result is None else min(result.bound, evaluated.value)
    limits = (int(limit) for limit in candidate.chain.limit)
    return Judgement(
        plan=build_plan(model, cluster, own, evaluated, bound if result is not None else 0),
        evaluated=evaluated,
        limits=tuple(None if limit == UNLIMITED else limit for limit in limits),
        outside=space.unasked(candidate, boundaries) or "",
        result=result,
        why=why,
    )


def _row(value: Any, name: str) -> tuple[int, ...]:
    """Return whole numbers in order, each as often as it is given."""
    if isinstance(value, str) and value:
        value = [int(each) if each.isdecimal() else each for each in value.split(",")]
    if value == "":
        return ()
    if not isinstance(value, list | tuple | range):
        raise InputError(f"{name} {shown(value)}: a number for each stage is needed, like 4,8,4")
    return tuple(value)


def _proved(
    model: Model, cluster: Cluster, job: Job, time_limit: float, how: dict[str, Any]
) -> tuple[Result | None, str]:
    """The result of the same question, or the reason why there is none."""
    try:
        return solve(model, cluster, job=job, time_limit=time_limit, **how), ""
    except (InfeasibleError, UndecidedError) as error:
        return None, str(error)


def _boundaries(model: Model, stages: Sequence[int]) -> Boundaries:
    """The boundaries of stages with these numbers of layers."""
    counts = [whole(count, "the number of layers of a stage", 1) for count in stages]
    layers = len(model.layers)
    if sum(counts) != layers:
        raise InputError(
            f"the stages hold {' + '.join(map(str, counts))} = {sum(counts)} layers, and {model.name} has {layers}; "
            f"pipeplan show {model.name} lists them"
        )
    return (0, *accumulate(counts))


def _groups(cluster: Cluster, stages: Sequence[int], widths: Sequence[int]) -> StageDevices:
    """The devices of each stage, in the cluster's order."""
    counts = [whole(width, "the number of replicas of a stage", 1) for width in widths]
    devices = cluster.devices
    if len(counts) != len(stages):
        raise InputError(f"{len(stages)} stages have {len(counts)} numbers of replicas; give one number for each stage")
    if sum(counts) > len(devices):
        raise InputError(
            f"the stages take {' + '.join(map(str, counts))} = {sum(counts)} devices, and {cluster.name} has "
            f"{len(devices)}; take fewer"
        )
    ends = (0, *accumulate(counts))
    groups = tuple(devices[a:b] for a, b in pairwise(ends))
    for s, group in enumerate(groups):
        kinds = dict.fromkeys(device.kind.name for device in group)
        if len(kinds) > 1:
            raise InputError(
                f"the replicas of stage {s}, d{group[0].index} to d{group[-1].index}, are of unlike kinds "
                f"({', '.join(kinds)}); replicas of a stage are of one kind"
            )
    return groups
