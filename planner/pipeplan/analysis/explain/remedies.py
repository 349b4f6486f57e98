"""Smallest changes with which an infeasible job fits, each one searched for and proved.

The search of `pipeplan.solve` decides if a changed problem has a plan. Numbers are found by bisection: a job that fits
also fits with more memory, with fewer micro-batches of the same size, and mostly with more devices.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pipeplan.analysis.explain.changes import (
    has_limits,
    largest_team,
    more_never_hurt,
    with_devices,
    with_memory,
    without_limits,
)
from pipeplan.analysis.explain.feasible import Fit, fit
from pipeplan.core.cluster import Cluster, DeviceKind
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.options import SEED, WORKERS, asked_limits, require_callback
from pipeplan.core.plan import Plan
from pipeplan.core.searched import Searched
from pipeplan.core.units import format_bytes
from pipeplan.core.wording import counted, listed, wrapped
from pipeplan.costs.layers import available_micro_batches, profiles_for
from pipeplan.costs.sharding.usual import usual_teams
from pipeplan.search.alternatives import Change, changes, checked
from pipeplan.search.infeasible import total_memory_shortfall
from pipeplan.search.space.spaces import Spaces
from pipeplan.simulate import memory_of_ranks
from pipeplan.solve.question import asked
from pipeplan.solve.reach import searched_for
from pipeplan_formulations.common.bisection import least
from pipeplan_formulations.common.signals import listening

ORDERS = 5.0
"""Seconds to look for a plan under a schedule of any order."""
Ask = Callable[[Cluster, Job], Fit]
"""Function that decides if a changed cluster and job have a plan."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """One way to make the job fit.

    Attributes
    ----------
    kind : str
        ``'memory'``, ``'batch'``, ``'devices'``, or the field of `pipeplan.Job` that changes.
    fits : bool or None
        None: not decided in the time given.
    text : str
        The change with its number, or why it does not help.
    number : int or None
        Additional bytes per device, samples of a batch, or additional devices.
    smallest : bool
        True if it is proved that no smaller change of this kind fits.
    """

    kind: str
    fits: bool | None
    text: str
    number: int | None = None
    smallest: bool = False

    def __str__(self) -> str:
        mark = {True: "fits", False: "does not help", None: "undecided"}[self.fits]
        proof = ""
        if self.number is not None:
            proof = "; a smaller change is proved not to" if self.smallest else "; a smaller change was not ruled out"
        return f"{mark}: {self.text}{proof}"


@dataclass(frozen=True)
class Remedies:
    """The remedies of every kind, and the searched space; ``proved`` is true if no plan of that space can fit."""

    proved: bool
    remedies: tuple[Remedy, ...]
    searched: Searched

    def __str__(self) -> str:
        proved, not_proved = (
            "No plan fits among those searched, proved.",
            "No plan was found; that none fits is not proved.",
        )
        verdict = proved if self.proved else not_proved
        helpful_first = sorted(self.remedies, key=lambda remedy: [True, None, False].index(remedy.fits))
        reach = wrapped(f"searched: {self.searched.as_text()}")
        return "\n".join([verdict, *(f"  {remedy}" for remedy in helpful_first), *reach])

    def as_json(self) -> dict[str, object]:
        """Plain data."""
        rows = [
            {"kind": r.kind, "fits": r.fits, "text": r.text, "number": r.number, "smallest": r.smallest}
            for r in self.remedies
        ]
        return {"fits": False, "proved": self.proved, "remedies": rows, "searched": self.searched.as_json()}


@listening()
def remedies(
    model: Model | str | Path | Any,
    cluster: Cluster | str | Path | None = None,
    batch: int | Job | None = None,
    *,
    job: Job | None = None,
    time_limit: float = 20.0,
    backend: str = "cpsat",
    workers: int = WORKERS,
    seed: int = SEED,
    on_progress: Callable[[str], None] = lambda _: None,
    example_inputs: Any = None,
    **options: Any,
) -> Remedies | None:
    """The smallest change of each kind that makes a job fit; None if it fits as it is.

    Parameters
    ----------
    time_limit : float
        Seconds for each changed problem; there are a few dozen.
    on_progress : callable
        Called with each kind of change before it is tried.
    model, cluster, batch, job, backend, workers, seed, example_inputs, **options
        As in `pipeplan.solve`.

    Examples
    --------
    >>> found = pipeplan.remedies(
    ...     "vgg-16", "4-v100-nvlink", 64, memory="2GiB", depths=2, replicas=1, micro_batches=4, schedules="gpipe"
    ... )
    >>> [remedy.kind for remedy in found.remedies if remedy.fits][:1]
    ['memory']
    """
    asked_limits(time_limit, 0.0, backend, workers, seed)
    require_callback(on_progress)
    question = asked(model, cluster, batch, job=job, example_inputs=example_inputs, asker="remedies", **options)

    def ask(cluster: Cluster, job: Job) -> Fit:
        return fit(question.model, cluster, job, time_limit=time_limit, backend=backend, workers=workers, seed=seed)

    model, cluster, job = question.model, question.cluster, question.job
    now = ask(cluster, job)
    if now.verdict:
        return None
    found: list[Remedy] = []
    ways: tuple[tuple[str, Callable[..., Iterator[Remedy]]], ...] = (
        ("memory", _memory),
        ("constraints", partial(_constraints, model)),
        ("batch", partial(_batch, model)),
        ("devices", partial(_devices, model)),
    )
    with suppress(KeyboardInterrupt):  # after Ctrl-C, return what is known so far
        for title, way in ways:
            on_progress(title)
            for remedy in way(cluster, job, ask):
                found.append(remedy)
    # a change is the smallest one only if the unchanged job is proved not to fit
    found = [replace(remedy, smallest=remedy.smallest and now.proved) for remedy in found]
    return Remedies(now.proved, tuple(found), searched_for(model, cluster, job))


def _memory(cluster: Cluster, job: Job, ask: Ask) -> Iterator[Remedy]:
    """Least number of additional bytes per device with which a plan fits."""
    if not has_limits(cluster, job):
        return
    free = ask(*without_limits(cluster, job))
    if free.plan is None:
        yield Remedy("memory", free.verdict, "any memory: another constraint excludes every plan")
        return

    def fits(more: int) -> tuple[bool | None, int]:
        answer = ask(*with_memory(cluster, job, more))
        return answer.verdict, more if answer.plan is None else min(more, _shortage(answer.plan, cluster, job))

    found = least(fits, 0, _shortage(free.plan, cluster, job))
    have = sorted({limit for limit in _limits(cluster, job) if limit is not None})
    enough = " and ".join(_exact(limit + found.number) for limit in have)
    yield Remedy("memory", True, f"{enough} a device, {_exact(found.number)} more", found.number, found.proved)


def _limits(cluster: Cluster, job: Job) -> list[int | None]:
    """Bytes that a plan may use of each device; None without limit."""
    known = [
        [limit for limit in (job.usable(device.kind.memory), job.memory) if limit is not None]
        for device in cluster.devices
    ]
    return [min(limits, default=None) for limits in known]


def _shortage(plan: Plan, cluster: Cluster, job: Job) -> int:
    """Largest number of bytes by which the plan exceeds the limit of a device; with teams, the least limit."""
    limits = _limits(cluster, job)
    if plan.team > 1:
        limits = [min((limit for limit in limits if limit is not None), default=None)] * len(plan.device_kinds)
    over = [
        needed - limit
        for needed, device in zip(memory_of_ranks(plan), plan.ranks, strict=True)
        if (limit := limits[device]) is not None
    ]
    return max(over, default=0)


def _constraints(model: Model, cluster: Cluster, job: Job, ask: Ask) -> Iterator[Remedy]:
    """Each constraint of the job dropped by itself, then teams and schedules of any order allowed."""
    spaces = Spaces(model, cluster, job)
    every = [change for change in changes(spaces) if change.field != "memory"]
    for change in [each for each in every if not each.any_order] + _teams(model, cluster, job):
        try:
            answer = ask(cluster, replace(job, **change.changed))
        except InputError as error:
            yield Remedy(change.field, False, f"{change.label}: {error}")
            continue
        like = "" if answer.plan is None else f" (like {_shape(answer.plan)})"
        yield Remedy(change.field, answer.verdict, change.label + like)
    # The order that holds one micro-batch per stage needs the least memory.
    if total_memory_shortfall(spaces.lowest) is None:
        for change in every:
            for other in checked(spaces, change.option, change.changed, ORDERS) if change.any_order else ():
                text = f"{change.option} (a plan with {_exact(other.need)} a device)"
                yield Remedy(change.field, other.fits or None, text)


def _teams(model: Model, cluster: Cluster, job: Job) -> list[Change]:
    """Teams of more sizes, if the model has some, in a list."""
    largest, known = largest_team(model, cluster, job), job.teams or usual_teams(model, cluster, job) or (1,)
    more = [size for size in (2**k for k in range(1, largest.bit_length())) if size not in known]
    allowed = Change("--teams", f"teams of {listed(more)} devices too", {"teams": (*known, *more)})
    return [allowed] if more else []


def _shape(plan: Plan) -> str:
    many = counted(plan.micro_batches, "micro-batch")
    return f"{many} of {plan.micro_batch} through {plan.shape}"


def _batch(model: Model, cluster: Cluster, job: Job, ask: Ask) -> Iterator[Remedy]:
    """Largest batch below the job's, of micro-batches of a known size."""
    kinds = [device.kind for device in cluster.devices]
    sizes = available_micro_batches(model, kinds, job.batch, extrapolate=job.extrapolate)
    least_size, only = _least_size(model, kinds, job)
    best: tuple[int, int, int] | None = None
    # fewer micro-batches allow fewer replicas, which matters if these are fixed or share out what they hold
    shared = Spaces(model, cluster, job).levels != (0,)
    proved = not (shared or job.equal_replicas or set(job.replicas) - {1}) and only
    for size in sorted({*sizes, least_size}):

        def fits(fewer: int, size: int = size) -> tuple[bool | None, int]:
            count = job.batch // size - fewer
            answer = ask(cluster, replace(job, batch=size * count, micro_batches=(count,)))
            return answer.verdict, fewer

        most = job.batch // size - 1
        if most < 0:
            continue
        ends, _ = fits(most)
        proved &= ends is not None
        if not ends:
            continue
        found = least(fits, 0 if size in sizes else -1, most)
        proved &= found.proved
        batch = size * (job.batch // size - found.number)
        best = max(best or (0, 0, 0), (batch, batch // size, size))
    if best is None:
        yield Remedy(
            "batch", False if proved else None, f"a smaller batch: not even one micro-batch of {least_size} fits"
        )
        return
    batch, count, size = best
    text = f"a batch of {batch} instead of {job.batch} ({counted(count, 'micro-batch')} of {size})"
    yield Remedy("batch", True, text, batch, proved)


def _least_size(model: Model, kinds: Sequence[DeviceKind], job: Job) -> tuple[int, bool]:
    """The least size of micro-batches of any batch, and whether no batch has others that no batch of it has."""
    measured = [sorted(sizes) for kind in kinds if (sizes := profiles_for(model, kind))]
    if job.extrapolate or not measured:
        return 1, True
    low, high = max(sizes[0] for sizes in measured), min(sizes[-1] for sizes in measured)
    return low, low in (1, high)


def _devices(model: Model, cluster: Cluster, job: Job, ask: Ask) -> Iterator[Remedy]:
    """For each kind, the fewest additional devices: at most one device per layer, or twice the present number.

    Where more devices may hurt, nothing is proved of numbers that are not tried.
    """
    gradual = more_never_hurt(cluster, job)
    most = max(len(model.layers) - len(cluster.devices), len(cluster.devices))
    for kind in dict.fromkeys(device.kind.name for device in cluster.devices):

        def fits(more: int, kind: str = kind) -> tuple[bool | None, int]:
            try:
                answer = ask(*with_devices(cluster, job, kind, more))
            except InputError:  # more choices of devices than any order of actions is searched for
                return None, more
            return answer.verdict, more

        tried, more = 0, 1
        answer, _ = fits(more)
        undecided = answer is None or not gradual
        while not answer and more < most:
            tried, more = more, min(2 * more, most)
            answer, _ = fits(more)
            undecided |= answer is None
        if answer:
            found = least(fits, tried, more)
            yield Remedy("devices", True, f"{found.number} more {kind}", found.number, found.proved and not undecided)
        else:
            yield Remedy("devices", None if undecided else False, f"up to {most} more {kind}")


def _exact(size: int) -> str:
    return f"{format_bytes(size)}" if size < 1024 else f"{format_bytes(size)} ({size} B)"
