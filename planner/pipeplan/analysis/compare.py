"""Comparison of every partitioner and the solver under every schedule family, in one table."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeplan.analysis.plug_ins import PlugIn, plugged_in
from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InfeasibleError, InputError, UndecidedError
from pipeplan.core.job import SHARDED, Job
from pipeplan.core.model import Model
from pipeplan.core.options import SEED, WORKERS, asked_limits, require_callback
from pipeplan.core.perturbation import Robust
from pipeplan.core.searched import Searched
from pipeplan.core.tabular import Table, Tabular, Unit
from pipeplan.core.throughput import Throughput
from pipeplan.core.units import format_time
from pipeplan.core.wording import counted, team_suffix, zero_suffix
from pipeplan.costs.sources import Costs
from pipeplan.fpga import with_divided_layers
from pipeplan.schedules import FAMILIES, JOINED, SLICED
from pipeplan.search.alternatives import why_infeasible
from pipeplan.search.branch_and_bound import OnProgress
from pipeplan.search.heuristics import ranked
from pipeplan.search.proposals import Proposals
from pipeplan.search.result import Result
from pipeplan.search.scope import searched
from pipeplan.search.space.space import default_schedules
from pipeplan.search.space.spaces import Spaces
from pipeplan.solve import solve
from pipeplan.solve.question import Question, asked
from pipeplan_formulations.common.report import Stop
from pipeplan_formulations.common.signals import listening, received

SOLVER = "pipeplan"
"""The solver's name in the table."""
NOT_REACHED = "the search was stopped before its turn"
"""Reason shown for a family that was not solved."""


@dataclass(frozen=True, slots=True)
class Row:
    """One method under one family. Times in nanoseconds, peaks in bytes.

    ``at_least`` is a lower bound on the method's best plan where it was not simulated: then ``value`` is None.
    ``excess`` is the relative distance of either to the bound over all families. ``outside`` gives the reason why the
    plan lies outside the searched space; it may then be below the bound.
    """

    method: str
    family: str
    value: int | None
    peaks: tuple[int, ...]
    excess: float | None
    label: str
    why: str = ""
    outside: str = ""
    at_least: int | None = None


@dataclass(frozen=True, repr=False)
class Comparison(Tabular):
    """The table, best row first, the solver's results by family, the space that all of them searched, and its costs."""

    model: str
    cluster: str
    bound: int
    rows: tuple[Row, ...]
    results: dict[str, Result]
    searched: Searched
    costs: Costs

    @property
    def headline(self) -> str:
        """Model, cluster and the bound over all families."""
        return f"{self.model} on {self.cluster}: proven bound {format_time(self.bound)}"

    def table(self) -> Table:
        """A row per method and family, the best first."""
        columns: dict[str, Unit] = {"method": "", "schedule": "", "time": "ns", "at least": "ns", "over bound": "share"}
        columns |= {"peak memory": "bytes", "plan": "", "why": ""}
        rows = (
            (
                row.method,
                row.family,
                row.value,
                row.at_least,
                row.excess,
                max(row.peaks, default=None),
                row.label,
                row.why or row.outside,
            )
            for row in self.rows
        )
        return Table(columns, tuple(rows))

    @property
    def best(self) -> Result:
        """The best result over all families; of equally fast ones, the one with the least peak memory."""
        return min(self.results.values(), key=lambda result: (result.value, max(result.timeline.peaks)))

    def throughput(self, row: Row) -> Throughput:
        """Samples, tokens and operations per second of a row; nothing is known of it without a plan."""
        job, of = self.best.job, self.best.plan.yardstick
        return of.throughput(job.objective.samples(job.batch), row.value or 0)

    def lines(self, top: int | None = None, *, every: bool = False) -> tuple[Row, ...]:
        """Return the best row of each method, or every row; only the ``top`` fastest of them."""
        by_merit = sorted(self.rows, key=lambda row: (row.value is None, _order(row)), reverse=True)
        firsts = {row.method: row for row in by_merit}
        return tuple(row for row in self.rows if every or firsts[row.method] is row)[:top]


@listening()
def compare(
    model: Model | str | Path | Any,
    cluster: Cluster | str | Path | None = None,
    batch: int | Job | None = None,
    *,
    job: Job | None = None,
    time_limit: float = 60.0,
    gap: float = 0.0,
    backend: str = "cpsat",
    workers: int = WORKERS,
    seed: int = SEED,
    robust: Robust | float | str | None = None,
    on_progress: OnProgress = lambda *_: None,
    on_family: Callable[[str], None] = lambda _: None,
    example_inputs: Any = None,
    plug_ins: Sequence[PlugIn] = (),
    **options: Any,
) -> Comparison:
    """Solve once for each schedule family, and list the partitioners beside each result.

    Parameters
    ----------
    time_limit : float
        Seconds for all families together.
    model, cluster, batch, job, gap, backend, workers, seed, robust, on_progress, example_inputs, **options
        As in `pipeplan.solve`.
    on_family : callable
        Called with the name of each family before it is searched.
    plug_ins : sequence
        Partitioners, planners (or their functions), schedule families and collectives of your own, for this call: see
        `pipeplan.analysis.plug_ins`.

    Raises
    ------
    InfeasibleError
        If no family has a plan that fits.
    UndecidedError
        If none was found in the time given.

    Examples
    --------
    >>> found = pipeplan.compare("vgg-16", "4-v100-nvlink", 64, depths=2, replicas=1, schedules="gpipe")
    >>> found.best.plan.schedule.family
    'gpipe'
    """
    asked_limits(time_limit, gap, backend, workers, seed, draws=robust is not None)
    require_callback(on_progress)
    require_callback(on_family, "on_family")
    question = asked(model, cluster, batch, job=job, example_inputs=example_inputs, asker="compare", **options)
    how = {"robust": robust, "gap": gap, "backend": backend, "workers": workers, "seed": seed}
    with plugged_in(plug_ins) as (_, handed):
        families = question.job.schedules or _default_families(question)
        if handed:
            families = tuple(dict.fromkeys((*families, *handed)))
            question = replace(question, job=replace(question.job, schedules=families))
        spaces = Spaces(question.model, question.cluster, question.job)
        return _table(question, spaces, _solved(question, spaces, families, time_limit, on_family, on_progress, how))


@dataclass
class _Found:
    """Results by family, and reasons of those without one."""

    results: dict[str, Result] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    undecided: list[UndecidedError] = field(default_factory=list)


def _solved(
    question: Question,
    spaces: Spaces,
    families: tuple[str, ...],
    time_limit: float,
    on_family: Callable[[str], None],
    on_progress: OnProgress,
    how: Mapping[str, Any],
) -> _Found:
    """Solve under each family, with an equal share of the remaining time for each."""
    end, found = time.monotonic() + time_limit, _Found()
    proposals = Proposals(None if spaces.usual else spaces.questions)
    for number, name in enumerate(families):
        if received():
            found.refusals[name] = NOT_REACHED
            found.undecided.append(UndecidedError(Stop.INTERRUPT, spaces.least))
            continue
        try:
            share = max(end - time.monotonic(), 0.0) / (len(families) - number)
            on_family(name)
            found.results[name] = solve(
                question.model,
                question.cluster,
                job=_under(question.job, name),
                time_limit=share,
                proposals=proposals,
                price_regular=False,
                on_progress=on_progress,
                **how,
            )
        except InfeasibleError as error:
            found.refusals[name] = str(error)
        except UndecidedError as error:
            found.refusals[name] = str(error)
            found.undecided.append(error)
        except InputError as error:
            if len(families) == 1:
                raise
            found.refusals[name] = str(error)  # beside others `solve` leaves it out
    return found


def _table(question: Question, spaces: Spaces, found: _Found) -> Comparison:
    """Return the bound over all families, and all rows by step time, those without plan last."""
    if not found.results:
        if found.undecided:
            raise found.undecided[0]
        refused = next(iter(found.refusals.values()))
        raise InfeasibleError(refused if question.job.intra_layer else why_infeasible(spaces))
    bounds = [result.bound for result in found.results.values()] + [error.bound for error in found.undecided]
    rows = [row for name, result in found.results.items() for row in _rows(name, result, min(bounds))]
    rows += [Row(SOLVER, name, None, (), None, "", why.splitlines()[0]) for name, why in found.refusals.items()]
    rows.sort(key=_order)
    reach = with_divided_layers(searched(spaces)) if question.job.intra_layer else searched(spaces)
    costs = question.stated(next(iter(found.results.values())).costs)
    names = question.model.name, question.cluster.name
    return Comparison(*names, min(bounds), tuple(rows), found.results, reach, costs)


def _under(job: Job, name: str) -> Job:
    """The job under one family, at those levels of ZeRO that run it, as where `solve` has several families."""
    lanes = name in FAMILIES and FAMILIES[name].two_lanes
    levels = tuple(level for level in job.zero if not lanes or level < SHARDED)
    slices = tuple(count for count in job.slices if (count > 1) == (name in SLICED))
    return replace(job, schedules=(name,), zero=levels or job.zero, slices=slices)


def _default_families(question: Question) -> tuple[str, ...]:
    """The families that suit the cluster, and those of token slices if some are asked for."""
    slices = question.job.slices or (1,)
    whole = default_schedules(question.cluster, question.job) if 1 in slices else ()
    return (*whole, *(JOINED if max(slices) > 1 else ()))


def _order(row: Row) -> tuple[bool, int, bool]:
    """Fastest rows first, those without a plan last."""
    value = row.at_least if row.value is None else row.value
    return value is None, value or 0, row.method != SOLVER


def _rows(family: str, result: Result, bound: int) -> list[Row]:
    def excess(value: int) -> float | None:
        return value / bound - 1 if bound else None

    plan = result.plan
    label = f"{plan.shape}, {counted(plan.micro_batches, 'micro-batch')} of {plan.micro_batch}{plan.cut}"
    label += zero_suffix(plan.zero) + team_suffix(plan.teams, plan.parallelism, mesh=plan.mesh)
    rows = [Row(SOLVER, family, result.value, result.timeline.peaks, excess(result.value), label)]
    for baseline in ranked(result.baselines.values()):
        value = baseline.bound if baseline.value is None else baseline.value
        distance = None if value is None else excess(value)
        label = baseline.label.removesuffix(f", {family}")
        figures = baseline.value, baseline.peaks, distance, label, baseline.why, baseline.outside
        rows.append(Row(baseline.name, family, *figures, at_least=baseline.bound))
    return rows
