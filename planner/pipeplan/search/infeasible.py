"""Explanations of infeasible questions, and the least memory with which a plan fits."""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice, takewhile
from math import inf

import numpy as np

from pipeplan.core.cluster import StageDevices
from pipeplan.core.units import format_bytes
from pipeplan.core.wording import counted, wrapped
from pipeplan.costs.chain import UNLIMITED
from pipeplan.costs.pricing import device_limit, device_room
from pipeplan.search.scope import narrowing, searched
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.in_flight import free_family
from pipeplan.search.space.space import Space
from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.partition.parts import has_copy

LOOKED_AT = 400
"""Shapes that are tried for the least memory: those with the most stages, at the smallest micro-batch sizes."""
LISTING = 0.2
"""The part of the time that is left in which they are listed."""
LISTED = 2_000
"""Shapes of a micro-batch size among which these are chosen; where there are more, deep ones are listed first."""


def least_memory(candidate: Candidate, clock: Clock | None = None) -> int:
    """Bytes with which every device has enough for some partition of this candidate; `UNLIMITED` if wishes allow none.

    The least over partitions of the largest stage, if each stage recomputes either nothing or all that it may.

    Raises
    ------
    OutOfTimeError
        If the clock says so.
    """
    problem, chain = candidate.problem, candidate.chain
    n = problem.layers
    again = chain.recomputable
    tables = problem.bytes
    ways = [(tables.saved, tables.workspace)]
    if again.any():
        kept = np.where(again, np.minimum(tables.output, tables.saved), tables.saved)
        ways.append((kept, np.where(again, tables.again, tables.workspace)))
    ends = np.append(candidate.cuts, True)
    best = np.full(n + 1, UNLIMITED)
    best[0] = 0
    for s in range(problem.stages):
        resident = np.concatenate([[0], np.cumsum(chain.resident[s])])
        flight, runtime = int(problem.in_flight[s]), int(chain.runtime[s])
        then = np.full(n + 1, UNLIMITED)
        for a in range(s, n):
            if clock is not None:
                clock.check()
            needs = []
            for saved, workspace in ways:
                held = np.cumsum(saved[s, a:]) + tables.received[s, a]
                peaks = np.maximum.accumulate(workspace[s, a:]) + np.maximum.accumulate(tables.beside[s, a:])
                needs.append(flight * held + peaks)
            need = resident[a + 1 :] - resident[a] + runtime + np.minimum.reduce(needs)
            for shared in chain.shared:
                need += int(shared.resident[s]) * has_copy(shared.layers, a, np.arange(a + 1, n + 1))
            need[~(np.logical_and.accumulate(candidate.where[s, a:]) & ends[a:])] = UNLIMITED
            then[a + 1 :] = np.minimum(then[a + 1 :], np.maximum(need, best[a]))
        best = then
    return int(best[n])


def overfull(space: Space) -> str | None:
    """Why no plan can fit if what stays for the whole step is more than all devices hold together; else None.

    Parameters, gradients and optimiser state of every layer lie somewhere at least once, however they are cut,
    replicated or, under ZeRO-1, shared out.
    """
    kinds = [device.kind for device in space.cluster.devices]
    rooms = [device_room(kind, space.job) for kind in kinds]
    if UNLIMITED in rooms:
        return None
    there = sum(rooms)
    resident = int((2 * space.prices.parameters + space.prices.optimizer).sum())
    if resident <= there:
        return None
    count = len(rooms)
    larger = format_bytes(-(-resident // count) + max(kind.runtime for kind in kinds))
    more = f"{counted(-(-resident * count // there) - count, 'more such device')} at least, or " if there else ""
    return (
        f"No plan fits: parameters, gradients and optimiser state take {format_bytes(resident)}, and the {count} "
        f"devices have {format_bytes(there)} together. That holds for every plan, searched or not, that keeps each of "
        f"them on some device.\nWhat it takes: {more}devices of {larger} and more."
    )


def explain_infeasible(space: Space, found: "tuple[int, Candidate] | None") -> str:
    """What none of the plans searched fits into, what these are, and memory (`enough`) that lets one of them fit."""
    if found is None:
        return f"No plan fits: {_none_at_all(space)}."
    reach = "\n".join(wrapped(f"searched: {searched(space).in_words()}"))
    least, easiest = found
    limits = sorted({device_limit(device.kind, space.job) for device in space.cluster.devices})
    have = " and ".join("no limit" if limit == UNLIMITED else format_bytes(limit) for limit in limits)
    owned = min((device.kind.memory or UNLIMITED for device in space.cluster.devices), default=UNLIMITED)
    option = "--memory " if space.job.memory is not None and owned >= least else "devices of "
    return (
        f"No plan fits among those searched: the devices have {have} each, and the least that was found to be enough "
        f"is {format_bytes(least)} on each ({easiest.label}).\n{reach}\n"
        f"What would fit: {option}{_rounded_up(least)}"
    )


def enough(space: Space, until: float = inf) -> tuple[int, Candidate] | None:
    """The least memory a device with which some plan of the space was found to fit, and the candidate that it is of.

    None if no shape is left, or none that keeps to the wishes. ``until`` is a moment of `time.monotonic`.
    """
    clock = Clock(Limits(time=until - time.monotonic()))
    needs: list[tuple[int, int, Candidate]] = []
    with suppress(OutOfTimeError):
        for candidate in _frugal(space, until):
            needs.append((least_memory(candidate, clock), len(needs), candidate))
    least, _, easiest = min(needs, key=lambda entry: entry[:2], default=(UNLIMITED, 0, None))
    return None if easiest is None or least >= UNLIMITED else (least, easiest)


def _none_at_all(space: Space) -> str:
    """Why no memory would do."""
    job, devices, layers = space.job, len(space.cluster.devices), len(space.model.layers)
    if next(_frugal(space), None) is not None:
        return f"no cut of the layers keeps to {' and '.join(narrowing(job))}"
    asked = [("--depths", job.depths), ("--replicas", job.replicas)]
    given = " and ".join(f"{name} {','.join(map(str, numbers))}" for name, numbers in asked if numbers)
    most = job.batch // min(space.sizes)
    return (
        f"{given or 'what is asked'} leaves no shape of the pipeline on {counted(devices, 'device')}, with "
        f"{counted(layers, 'layer')} and at most {counted(most, 'micro-batch')}; ask for fewer stages or replicas"
    )


def _frugal(space: Space, until: float = inf) -> Iterator[Candidate]:
    """The shapes that need little memory a device: many stages, small micro-batches, few in flight."""
    for size in space.sizes[:2]:
        shapes = sorted(_listed(space, size, until), key=lambda shape: -len(shape[0]))
        for number, (groups, _) in enumerate(shapes[:LOOKED_AT]):
            if number and time.monotonic() >= until:
                return
            least = min(space.candidates(groups, size), key=lambda candidate: sum(candidate.in_flight))
            if space.any_order and len(set(least.replicas)) == 1:  # some order holds one micro-batch a stage
                least = replace(least, family=free_family((1,) * least.depth))
            yield least


def _listed(space: Space, size: int, until: float) -> Iterator[tuple[StageDevices, int]]:
    """The first shapes, as many as part of the time allows."""
    began = time.monotonic()
    end = began + LISTING * (until - began)
    return takewhile(lambda _: time.monotonic() < end, islice(space.shapes(size), LISTED))


def _rounded_up(size: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{-(-size * 100 // factor) / 100:.2f}{unit}"
    return f"{size}B"
