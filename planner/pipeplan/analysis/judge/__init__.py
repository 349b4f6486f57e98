"""`judge()`: a hand-written plan, priced, simulated and checked against memory, beside the proved plan.

::

    stages, teams, schedule … ─▶ HandWritten ─▶ settings: a space for each way to split layers ─▶ priced ─▶ the best
    model, cluster, job ──────────────────────▶ solve ────────────────────────────────────────▶ the proved plan
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeplan.analysis.judge.hand_written import HandWritten
from pipeplan.analysis.judge.judgement import Judgement, Overflow
from pipeplan.analysis.judge.outside import outside
from pipeplan.analysis.judge.priced import Priced, in_best_order, least_rank, priced
from pipeplan.analysis.judge.remedies import remedies
from pipeplan.analysis.judge.settings import Setting, settings
from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InfeasibleError, InputError, UndecidedError
from pipeplan.core.figures import shown
from pipeplan.core.job import Job, Recompute
from pipeplan.core.model import Model
from pipeplan.core.options import SEED, WORKERS, asked_limits, require_callback
from pipeplan.core.wording import hint
from pipeplan.costs.sharding.usual import usual_teams
from pipeplan.search.branch_and_bound import OnProgress
from pipeplan.search.result import Result
from pipeplan.search.space.in_flight import FREE
from pipeplan.solve import solve
from pipeplan.solve.question import asked
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.common.signals import listening

__all__ = ["Judgement", "Overflow", "judge"]

BEST = "best"
"""The way of teams that fits and takes least time."""
ALONE: Mapping[str, Mapping[str, Any]] = {
    "plain": {"sequence_parallel": False, "context_parallel": False, "mesh_axes": 0},
    "sequence": {"context_parallel": False, "mesh_axes": 0},
    "context": {"mesh_axes": 0},
}
"""Fields of a job that leave out the ways to split layers that the search may prefer to the named one."""


@listening()
def judge(
    model: Model | str | Path | Any,
    cluster: Cluster | str | Path | None = None,
    batch: int | Job | None = None,
    *,
    stages: Sequence[int] | str,
    micro_batches: int,
    schedule: str = FREE,
    replicas: Sequence[int] | int | str = (),
    team: Sequence[int] | int | str = (),
    way: str = BEST,
    chunks: int | None = None,
    recompute: Recompute | str = Recompute.NONE,
    zero: int = 0,
    token_slices: int = 1,
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
        As in `pipeplan.solve`, for the proved plan. What a job says of micro-batches, replicas, teams, recomputation
        and levels of ZeRO is not for the judged one. If it names no ``teams``, the proved plan may have those of the
        judged one.
    stages : sequence of int or str
        Number of layers of each stage, in order; or as text, ``'5,5,5,6'``.
    micro_batches : int
        Micro-batches of a step.
    schedule : str
        A schedule family; ``'1f1b'`` is the one with the fewest micro-batches in flight. Families that give a device
        several stages (`pipeplan.schedules.PLACED`, like ``'interleaved'``) place the stages themselves. ``'found'``
        searches for the best order of these stages' actions, each with as many replicas.
    replicas : sequence of int, int or str
        Devices of each stage, or of all; one each by default. Stages take devices in the order of the cluster: d0
        first.
    team : sequence of int, int or str
        Devices that share every layer of a stage (tensor parallelism), for each stage or for all; one by default.
        Replicas then count teams.
    way : str
        How teams split layers: ``'plain'`` (what passes between layers is whole), ``'sequence'`` (it is split along
        tokens), ``'context'`` (products and attention run on parts of the tokens too), axes of a mesh like ``'2x4'``,
        or ``'best'`` of those worth searching. Of several of one name the best counts. The first three are judged
        also where the search leaves them out.
    chunks : int, optional
        Stages per device under a schedule that places several; by default the family's own number, or two.
    recompute : {'none', 'choose', 'full'}
        Layers that the plan recomputes: none, those that it takes to fit, or all.
    zero : int
        Level of ZeRO.
    token_slices : int
        Equal slices of a sequence, which ``'1f1b'`` (then ``'1f1b-slices'``), ``'terapipe'`` or ``'zb-h1-slices'``
        runs.
    time_limit : float
        Seconds for the proved plan, and before it as many for an order to be found.

    Raises
    ------
    InputError
        If the plan is no plan for this model and cluster: it has other layers, too many devices, unlike replicas.

    Examples
    --------
    >>> judgement = pipeplan.judge(
    ...     "vgg-16", "4-v100-nvlink", 64, stages=(10, 11), micro_batches=4, depths=2, replicas=1
    ... )
    >>> judgement.value >= judgement.result.bound, judgement.overflows
    (True, ())
    """
    asked_limits(time_limit, gap, backend, workers, seed)
    require_callback(on_progress)
    asking = asked(model, cluster, batch, job=job, example_inputs=example_inputs, asker="judge", **options)
    model, cluster, job = asking.model, asking.cluster, asking.job
    written = HandWritten.read(
        stages,
        replicas,
        team,
        recompute,
        micro_batches=micro_batches,
        schedule=schedule,
        way=way,
        chunks=chunks,
        zero=zero,
        token_slices=token_slices,
    )
    best = _best(model, cluster, job, written)
    if written.is_found:
        within = Limits(time=time_limit, gap=gap, workers=workers, seed=seed)
        best = in_best_order(best, model, written.job(job), written, within)
    best.evaluated.check()
    searched = written.compared(job, usual_teams(model, cluster, job))
    beyond = outside(best, written, searched)
    how = {"gap": gap, "backend": backend, "workers": workers, "seed": seed, "on_progress": on_progress}
    result, why = _proved(model, cluster, searched, time_limit, how)
    proves = result is not None and not beyond
    return Judgement(
        plan=replace(best.plan, bound=min(result.bound, best.evaluated.value) if result and proves else 0),
        value=best.evaluated.value,
        objective=job.objective,
        limits=best.limits,
        overflows=best.overflows,
        outside=beyond,
        remedies=remedies(model, cluster, job, written) if best.overflows else (),
        result=result,
        why=why,
        order_bound=best.order_bound,
    )


def _best(model: Model, cluster: Cluster, job: Job, written: HandWritten) -> Priced:
    """The plan in the best way to split layers, or the best of the asked name."""
    written.boundaries(model)
    own = written.job(job)
    if not own.teams and written.way != BEST:
        raise InputError(
            f"way {shown(written.way)} is how teams split layers, and there are none; give their size (team)"
        )
    found = _priced(model, own, [*settings(model, cluster, own, written)], written)
    if not found:
        raise InputError(f"teams of {' and '.join(map(str, own.teams))} have no way to split {model.name} together")
    named = [each for each in found if written.way in (BEST, each.way)] or _left_out(model, cluster, own, written)
    if not named:
        ways = [BEST, *sorted({each.way for each in found})]
        raise InputError(
            f"way {shown(written.way)} is none of these teams; choose from {', '.join(ways)}"
            f"{hint(str(written.way), ways)}"
        )
    return min(named, key=lambda each: each.rank)


def _priced(model: Model, job: Job, every: Sequence[Setting], written: HandWritten) -> list[Priced]:
    """The plan in all settings; if the best one is asked for, not in those that are seen to be worse than another."""
    if len(every) == 1 or written.way != BEST or not job.objective.simulated:
        return [priced(model, job, setting, written) for setting in every]
    least = [least_rank(model, setting, written) for setting in every]
    found: dict[int, Priced] = {}
    for number in sorted(range(len(every)), key=least.__getitem__):
        if min((each.rank for each in found.values()), default=least[number]) < least[number]:
            break
        found[number] = priced(model, job, every[number], written)
    return [found[number] for number in sorted(found)]


def _left_out(model: Model, cluster: Cluster, job: Job, written: HandWritten) -> list[Priced]:
    """The plan in the ways of the asked name that the search leaves out."""
    alone = ALONE.get(written.way)
    if alone is None:
        return []
    narrow = replace(job, **{name: value and getattr(job, name) for name, value in alone.items()})
    every = (setting._replace(left_out=True) for setting in settings(model, cluster, narrow, written))
    return [own for own in (priced(model, narrow, setting, written) for setting in every) if own.way == written.way]


def _proved(
    model: Model, cluster: Cluster, job: Job, time_limit: float, how: dict[str, Any]
) -> tuple[Result | None, str]:
    """The result of the same question, or the reason why there is none."""
    try:
        return solve(model, cluster, job=job, time_limit=time_limit, price_regular=False, **how), ""
    except (InfeasibleError, UndecidedError) as error:
        return None, str(error)
