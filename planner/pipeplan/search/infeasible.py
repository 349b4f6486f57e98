"""Explanations of infeasible jobs, and the least memory per device with which a plan was found to fit."""

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
from pipeplan.costs.pricing import device_limit, usable_memory
from pipeplan.search.scope import narrowing_options, searched
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.in_flight import free_family
from pipeplan.search.space.space import Space
from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.partition.parts import has_copy

MOST_TRIED = 400
"""Device groups that are tried for the least memory: those with the most stages, at the smallest micro-batch sizes."""
LISTING_SHARE = 0.2
"""Share of the remaining time for listing device groups."""
MOST_LISTED = 2_000
"""Most device groups listed per micro-batch size, from which these are chosen."""


def least_memory(candidate: Candidate, clock: Clock | None = None) -> int:
    """Bytes per device with which some partition of this candidate fits; `UNLIMITED` if the constraints allow none.

    The minimum over partitions of the largest stage, where each stage recomputes either nothing or all that it may.

    Raises
    ------
    OutOfTimeError
        If the time of ``clock`` is over.
    """
    problem, chain = candidate.problem, candidate.chain
    n = problem.layers
    again = chain.recomputable
    tables = problem.bytes
    options = [(tables.saved, tables.workspace)]
    if again.any():
        kept = np.where(again, np.minimum(tables.output, tables.saved), tables.saved)
        options.append((kept, np.where(again, tables.again, tables.workspace)))
    ends = np.append(candidate.cuts, True)
    best = np.full(n + 1, UNLIMITED)
    best[0] = 0
    # best[b]: least bytes of the largest of the stages so far, if these hold layers 0 to b - 1.
    for s in range(problem.stages):
        resident = np.concatenate([[0], np.cumsum(chain.resident[s])])
        count, runtime = int(problem.in_flight[s]), int(chain.runtime[s])
        then = np.full(n + 1, UNLIMITED)
        for a in range(s, n):
            if clock is not None:
                clock.check()
            needs = []
            # Bytes of stage s for each end b > a, without and with recomputation; then the lesser of both.
            for saved, workspace in options:
                held = np.cumsum(saved[s, a:]) + tables.received[s, a]
                peaks = np.maximum.accumulate(workspace[s, a:]) + np.maximum.accumulate(tables.beside[s, a:])
                needs.append(count * held + peaks)
            need = resident[a + 1 :] - resident[a] + runtime + np.minimum.reduce(needs)
            for shared in chain.shared:
                need += int(shared.resident[s]) * has_copy(shared.layers, a, np.arange(a + 1, n + 1))
            need[~(np.logical_and.accumulate(candidate.where[s, a:]) & ends[a:])] = UNLIMITED
            then[a + 1 :] = np.minimum(then[a + 1 :], np.maximum(need, best[a]))
        best = then
    return int(best[n])


def total_memory_shortfall(space: Space) -> str | None:
    """Explain that static bytes exceed the memory of all devices together; None if they do not.

    Parameters, gradients and optimiser state of every layer are held at least once, however layers are partitioned,
    replicated or, under ZeRO-1, sharded.
    """
    kinds = [device.kind for device in space.cluster.devices]
    usable = [usable_memory(kind, space.job) for kind in kinds]
    if UNLIMITED in usable:
        return None
    there = sum(usable)
    resident = int((2 * space.prices.parameters + space.prices.optimizer).sum())
    if resident <= there:
        return None
    count = len(usable)
    larger = format_bytes(-(-resident // count) + max(kind.runtime for kind in kinds))
    more = f"{counted(-(-resident * count // there) - count, 'more such device')} at least, or " if there else ""
    return (
        f"No plan fits: parameters, gradients and optimiser state take {format_bytes(resident)}, and the {count} "
        f"devices have {format_bytes(there)} together. That holds for every plan, searched or not, that keeps each of "
        f"them on some device.\nWhat it takes: {more}devices of {larger} and more."
    )


def explain_infeasible(space: Space, found: "tuple[int, Candidate] | None") -> str:
    """Message for a space without a feasible plan: limits, searched plans, and memory with which one of them fits.

    ``found`` is the result of `least_sufficient_memory`.
    """
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


def least_sufficient_memory(space: Space, until: float = inf) -> tuple[int, Candidate] | None:
    """Return the least bytes per device with which a plan of the space was found to fit, and that plan's candidate.

    None if no device groups are allowed, or none with a partition within the constraints. ``until`` is a time of
    `time.monotonic`.
    """
    clock = Clock(Limits(time=until - time.monotonic()))
    needs: list[tuple[int, int, Candidate]] = []
    with suppress(OutOfTimeError):
        for candidate in _low_memory_candidates(space, until):
            needs.append((least_memory(candidate, clock), len(needs), candidate))
    least, _, easiest = min(needs, key=lambda entry: entry[:2], default=(UNLIMITED, 0, None))
    return None if easiest is None or least >= UNLIMITED else (least, easiest)


def _none_at_all(space: Space) -> str:
    """Explain why no plan fits with any memory."""
    job, devices, layers = space.job, len(space.cluster.devices), len(space.model.layers)
    if next(_low_memory_candidates(space), None) is not None:
        return f"no cut of the layers keeps to {' and '.join(narrowing_options(job))}"
    restricted = [("--depths", job.depths), ("--replicas", job.replicas)]
    given = " and ".join(f"{name} {','.join(map(str, numbers))}" for name, numbers in restricted if numbers)
    most = job.batch // min(space.sizes)
    return (
        f"{given or 'the job'} leaves no device groups for stages on {counted(devices, 'device')}, "
        f"with {counted(layers, 'layer')} and at most {counted(most, 'micro-batch')}; ask for fewer stages or replicas"
    )


def _low_memory_candidates(space: Space, until: float = inf) -> Iterator[Candidate]:
    """Yield candidates that need little memory per device: many stages, small micro-batches, few in flight."""
    for size in space.sizes[:2]:
        deepest = sorted(_listed(space, size, until), key=lambda entry: -len(entry[0]))
        for number, (groups, _) in enumerate(deepest[:MOST_TRIED]):
            if number and time.monotonic() >= until:
                return
            least = min(space.candidates(groups, size), key=lambda candidate: sum(candidate.in_flight))
            if space.any_order and len(set(least.replicas)) == 1:  # some order holds one micro-batch per stage
                least = replace(least, family=free_family((1,) * least.depth))
            yield least


def _listed(space: Space, size: int, until: float) -> Iterator[tuple[StageDevices, int]]:
    """Yield the first device groups with their bounds, for `LISTING_SHARE` of the time left."""
    began = time.monotonic()
    end = began + LISTING_SHARE * (until - began)
    return takewhile(lambda _: time.monotonic() < end, islice(space.device_groups(size), MOST_LISTED))


def _rounded_up(size: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{-(-size * 100 // factor) / 100:.2f}{unit}"
    return f"{size}B"
