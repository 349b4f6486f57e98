"""`frontier`: compute step time against memory, devices or price for a model, cluster and job."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pipeplan.analysis.frontier import over_devices, over_memory, subsets
from pipeplan.analysis.frontier.answers import Answer, Answers, Verdict, answers_path
from pipeplan.analysis.frontier.curve import AXES, Frontier, Over, Point, not_dominated
from pipeplan.core.choices import known
from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InfeasibleError, PipeplanError
from pipeplan.core.figures import whole
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.options import SEED, WORKERS, asked_limits, require_callback
from pipeplan.core.searched import FIRST_DEVICES
from pipeplan.costs.sources import sources
from pipeplan.solve.question import asked
from pipeplan.solve.reach import searched_for
from pipeplan_formulations.common.signals import listening

Item = TypeVar("Item")


@listening()
def frontier(
    model: Model | str | Path | Any,
    cluster: Cluster | str | Path | None = None,
    batch: int | Job | None = None,
    over: Over = "memory",
    *,
    job: Job | None = None,
    points: int | None = None,
    time_limit: float = 60.0,
    gap: float = 0.0,
    backend: str = "cpsat",
    workers: int = WORKERS,
    seed: int = SEED,
    path: str | Path | None = None,
    on_progress: Callable[[str, Answer], None] = lambda *_: None,
    example_inputs: Any = None,
    **options: Any,
) -> Frontier:
    """Compute the Pareto frontier of step time against memory, number of devices or price.

    Parameters
    ----------
    over : {'memory', 'devices', 'price'}
        Bytes of the fullest device; number of devices; sum of the devices' prices per hour. A part of the cluster has
        a number of devices of each kind, the first of them in the cluster's order.
    points : int, optional
        Number of limits to solve, each in the widest unsolved range. Over devices and price: number of different
        device counts of each kind, evenly spaced.
    time_limit, gap, backend, workers, seed
        Limits for each point, see `pipeplan.solve`; an open gap shows in the point's bound.
    model, cluster, batch, job, example_inputs, **options
        As in `pipeplan.solve`.
    path : str or Path, optional
        File to which answers are written one by one. A second call for the same problem goes on from there.
    on_progress : callable
        Called with the key and the answer of each problem that was solved.

    Raises
    ------
    InfeasibleError
        If nothing fits at all. (`PipeplanError`, its base, if that is not decided in the time given.)
    InputError
        If the problem makes no sense, or ``path`` belongs to another one.
    KeyboardInterrupt
        If it was interrupted before the first answer; after that, the answers so far are returned.

    Examples
    --------
    >>> found = pipeplan.frontier("vgg-16", "4-v100-nvlink", 64, points=1, depths=2, replicas=1, micro_batches=4)
    >>> [(point.memory > 2**30, point.gap) for point in found.points]
    [(True, 0.0)]
    """
    known(over, "over", AXES)
    if points is not None:
        whole(points, "points (a frontier has at least one point)", 1)
    where = answers_path(path)
    limits = asked_limits(time_limit, gap, backend, workers, seed)
    require_callback(on_progress)
    question = asked(model, cluster, batch, job=job, example_inputs=example_inputs, asker="frontier", **options)
    model, cluster, job = question.model, question.cluster, question.job
    answers = Answers(model, cluster, job, over, limits, backend, where, on_progress)
    # solve the budgets one by one; an interrupt keeps those that were solved
    if over == "memory":
        visits: list[over_memory.Visit] = []
        every = _collected(
            over_memory.sweep(answers) if points is None else over_memory.sample(answers, points), visits
        )
        if not visits and answers.interrupted is not None:
            visits = [over_memory.Visit(job.memory, answers.interrupted)]
        visits.sort(key=lambda visit: -math.inf if visit.limit is None else -visit.limit)
        given, every = [visit.answer for visit in visits], every and not over_memory.unsolved_ranges(visits)
        found, floors = over_memory.read(answers, visits)
    else:
        each = over_devices.prices(answers, by_price=over == "price")
        parts: list[tuple[subsets.Part, Answer]] = []
        every = _collected(over_devices.sweep(answers, each, points), parts) and points is None
        if not parts and answers.interrupted is not None:
            parts = [(subsets.parts(cluster, each, points)[-1], answers.interrupted)]
        by_part = dict(parts)
        given = list(by_part.values())
        found, floors = over_devices.read(answers, by_part, each, points)
    # errors without any plan: interrupted, undecided or infeasible
    if not given:
        raise KeyboardInterrupt
    if not found:
        undecided = [answer.why for answer in given if answer.verdict is Verdict.OPEN]
        raise PipeplanError(undecided[0]) if undecided else InfeasibleError(given[0].why)
    if over == "memory":
        reach = searched_for(model, cluster, replace(job, memory=max(point.memory for point in found)))
    else:
        reach = searched_for(model, cluster, job).without(FIRST_DEVICES)
    return Frontier(
        model=model.name,
        cluster=cluster.name,
        over=over,
        objective=job.objective,
        batch=job.batch,
        points=not_dominated(found),
        floors=floors,
        complete=every and _all_proved(given, found),
        asked=len(given),
        searched=reach,
        costs=question.stated(sources(model, cluster, reach.micro_batch_sizes, job)),
    )


def _collected(answers: Iterator[Item], into: list[Item]) -> bool:
    """Append all items to ``into``; False if Ctrl-C ended that early, with the items so far kept."""
    try:
        for answer in answers:
            into.append(answer)
    except KeyboardInterrupt:
        return False
    return True


def _all_proved(given: list[Answer], found: tuple[Point, ...]) -> bool:
    """True if no answer is open, and every non-dominated point meets its bound."""
    decided = all(answer.verdict is not Verdict.OPEN for answer in given)
    return decided and all(point.value == point.bound for point in not_dominated(found))
