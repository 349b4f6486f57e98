"""Changes of an infeasible job under which a plan fits, each with the memory of a plan that was found.

::

    the job ──▶ one option changed ──▶ least memory of some plan ──▶ a partition within it: "--zero 1: …"
                all of them            (searched for `SECONDS`)
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from pipeplan.core.errors import InputError
from pipeplan.core.job import Objective, Order, Recompute
from pipeplan.core.units import format_bytes
from pipeplan.costs.pricing import device_limit
from pipeplan.search.any_order import any_orders
from pipeplan.search.infeasible import (
    explain_infeasible,
    held_memory_shortfall,
    least_sufficient_memory,
    total_memory_shortfall,
)
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.space import ANY
from pipeplan.search.space.spaces import Spaces
from pipeplan_formulations import partition
from pipeplan_formulations.common.report import Limits

SECONDS = 3.0
"""Most seconds for alternatives; each gets an equal share of the time left."""


class Change(NamedTuple):
    """A restriction of a job dropped, or an option added that is off by default.

    Attributes
    ----------
    option : str
        As on the command line.
    label : str
        What it allows, in words.
    changed : dict
        The changed fields of `pipeplan.Job`, the first of which names the kind of change.
    """

    option: str
    label: str
    changed: dict[str, Any]

    @property
    def field(self) -> str:
        """The field of the job that is changed."""
        return next(iter(self.changed))

    @property
    def any_order(self) -> bool:
        """Whether it adds schedules of any order."""
        return ANY in self.changed.get("schedules", ())


@dataclass(frozen=True, slots=True)
class Alternative:
    """A change of the job, and the bytes per device of a plan that was found; ``fits``: the devices have them."""

    option: str
    need: int
    fits: bool

    def __str__(self) -> str:
        if self.fits:
            return f"{self.option}: a plan fits, with {format_bytes(self.need)} per device"
        return f"{self.option}: a plan needs {format_bytes(self.need)} per device"


def why_infeasible(spaces: Spaces, seconds: float = SECONDS) -> str:
    """Explain why no plan of the spaces fits, and name changes under which one does; takes ``seconds`` at most."""
    space, began = spaces.lowest, time.monotonic()
    until = began + min(seconds, SECONDS)
    if why := space.impossible:
        lines, found = [why], alternatives(spaces, None, until)
    elif why := total_memory_shortfall(space):
        lines, found = [why], alternatives(spaces, None, until, memory=True)
    else:
        now = least_sufficient_memory(spaces.lean, began + min(seconds, SECONDS) / 3, latest=began + seconds)
        lines, found = [explain_infeasible(spaces, now)], alternatives(spaces, None if now is None else now[0], until)
        lines += [why] if (why := held_memory_shortfall(space)) else []
    fitting, others = ([each for each in found if each.fits is fits] for fits in (True, False))
    if fitting:
        lines.append(f"Otherwise: {'; '.join(map(str, fitting))}")
    if others:
        lines.append(f"Less memory would do with another option: {'; '.join(map(str, others))}")
    return "\n".join([*lines, "`pipeplan explain` of the same question looks for the smallest change of each kind"])


def alternatives(spaces: Spaces, least: int | None, until: float, memory: bool = False) -> list[Alternative]:
    """Return the changes under which a plan was found that fits or needs less memory.

    If no single change makes a plan fit, all of them are tried together.

    Parameters
    ----------
    least : int or None
        Bytes per device with which some plan of the unchanged space fits, if one is known.
    until : float
        Deadline, as a time of `time.monotonic`.
    memory : bool
        Whether to try the job without its own memory limit; otherwise all other changes are tried.
    """
    given = [change for change in changes(spaces) if (change.field == "memory") == memory]
    found: list[Alternative] = []
    for number, change in enumerate(given):
        share = (until - time.monotonic()) / (len(given) - number + 1)
        found += checked(spaces, change.option, change.changed, share)
    if len(given) > 1 and not any(each.fits for each in found):
        found += _together(spaces, given, until)
    return [each for each in found if each.fits or (least is not None and each.need < least)]


def _together(spaces: Spaces, given: Sequence[Change], until: float) -> list[Alternative]:
    """All changes at once, reduced to those that are needed; empty if no plan is found to fit."""

    def tried(kept: Sequence[Change]) -> Alternative | None:
        whole: dict[str, Any] = {name: value for change in kept for name, value in change.changed.items()}
        option = " and ".join(change.option for change in kept)
        found = checked(spaces, option, whole, (until - time.monotonic()) / 2)
        return next((each for each in found if each.fits), None)

    best = tried(given)
    if best is None:
        return []
    for change in given:
        rest = [each for each in given if each is not change]
        fewer = tried(rest)
        if fewer is not None:
            given, best = rest, fewer
    return [best]


def changes(spaces: Spaces) -> Iterator[Change]:
    """Yield the changes that may help a job: what `solve` names and `remedies` searches for."""
    job, space = spaces.job, spaces.lowest
    kinds = {device.kind.name: device.kind for device in space.cluster.devices}.values()
    shared = any(each.devices[1:] for each in space.classes) and set(job.replicas) != {1}
    larger = any(device_limit(kind, replace(job, memory=None)) > device_limit(kind, job) for kind in kinds)
    smaller = bool(space.model.profiles) and not job.extrapolate and not job.micro_batches and min(space.sizes) > 1
    orders = job.objective is Objective.STEP and not space.any_order and space.deepest > 1
    for option, label, applies, changed in (
        ("without --schedules", "any schedule", bool(set(job.schedules) - {ANY}), {"schedules": ()}),
        ("--schedules any", "actions in any order", orders, {"schedules": (*job.schedules, ANY)}),
        ("--recompute choose", "recomputation", job.recompute is not Recompute.CHOOSE, {"recompute": Recompute.CHOOSE}),
        ("without --zero", "any level of ZeRO", shared and bool(job.zero), {"zero": ()}),
        ("without --depths", "any number of stages", bool(job.depths), {"depths": ()}),
        ("without --replicas", "any replicas", bool(job.replicas), {"replicas": ()}),
        (
            "without --regular",
            "plans that need not be regular",
            job.regular,
            {"regular": False, "equal_replicas": False},
        ),
        (
            "without --equal-replicas",
            "replicas that differ by stage",
            job.equal_replicas and not job.regular,
            {"equal_replicas": False},
        ),
        ("without --micro-batches", "any number of micro-batches", bool(job.micro_batches), {"micro_batches": ()}),
        ("without --reserve", "no memory left free", bool(job.reserve), {"reserve": 0}),
        ("--extrapolate", "micro-batches smaller than any measured one", smaller, {"extrapolate": True}),
        ("--order search", "devices in any order", job.order is Order.GIVEN, {"order": Order.SEARCH}),
        ("without --together", "layers of a set apart", bool(job.together), {"together": ()}),
        ("without --no-cut-after", "a cut behind any layer", bool(job.no_cut_after), {"no_cut_after": ()}),
        ("without --pin", "any layer on any device", bool(job.pin), {"pin": ()}),
        ("without --memory", "all memory of the devices", larger, {"memory": None}),
    ):
        if applies:
            yield Change(option, label, changed)


def checked(spaces: Spaces, option: str, changed: dict[str, Any], seconds: float) -> list[Alternative]:
    """Return the alternative in a list, if a partition within the memory that it names is found; else an empty list."""
    if seconds <= 0:
        return []
    until = time.monotonic() + seconds
    try:
        teams = (1,) if spaces.usual else spaces.job.teams  # to price ways takes long
        other = Spaces(spaces.model, spaces.cluster, replace(spaces.job, **({"teams": teams} | changed)))
        if other.lowest.any_order and next(iter(any_orders(other.lowest)), None) is None:
            return []
        found = least_sufficient_memory(other.lean, until)
    except InputError:  # the changed job is invalid
        return []
    if found is None:
        return []
    need, candidate = found
    limits = [device_limit(group[0].kind, other.job) for group in candidate.chain.groups]
    if not _partition(candidate, need, max(until - time.monotonic(), 1.0)):
        return []
    return [Alternative(option, need, need <= min(limits))]


def _partition(candidate: Candidate, need: int, seconds: float) -> bool:
    """Return True if the exact method finds a partition of the candidate with ``need`` bytes on each device."""
    room = np.maximum(need - candidate.chain.runtime, 0)
    problem = replace(candidate.problem, limit=room)
    return partition.solve(problem, Limits(seconds), backend="exact").solution is not None
