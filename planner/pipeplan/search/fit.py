"""Why nothing fits, and memory that would."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import islice, takewhile

import numpy as np

from pipeplan.chain import UNLIMITED
from pipeplan.pricing import device_room
from pipeplan.search.candidates import Candidate
from pipeplan.search.flights import free_family
from pipeplan.search.space import Space
from pipeplan.units import format_bytes
from pipeplan_formulations.clock import Clock, OutOfTimeError
from pipeplan_formulations.partition.tie import copied
from pipeplan_formulations.report import Limits

LOOKED_AT = 400
"""Shapes that are tried for the least memory: those with the most stages, at the smallest micro-batch sizes."""
LISTED = 2_000
"""Shapes of a micro-batch size among which these are chosen; where there are more, deep ones are listed first."""
SECONDS, LISTING = 1.0, 0.2
"""Seconds for all of them, and the part of what is left in which they are listed."""


def least_memory(candidate: Candidate, clock: Clock | None = None) -> int:
    """Bytes with which every device has enough for some partition of this candidate.

    The least over partitions of the largest stage, if each stage recomputes either nothing or all that it may.

    Raises
    ------
    OutOfTimeError
        If the clock says so.
    """
    problem, chain = candidate.problem, candidate.chain
    n = problem.layers
    again = chain.recomputable
    ways = [(chain.saved, problem.workspace)]
    if again.any():
        kept = np.where(again, np.minimum(chain.output, chain.saved), chain.saved)
        ways.append((kept, np.where(again, problem.workspace + chain.saved, problem.workspace)))
    received = np.concatenate([[0], chain.boundary])
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
                held = np.cumsum(saved[a:]) + received[a]
                needs.append(flight * held + np.maximum.accumulate(workspace[a:]))
            need = resident[a + 1 :] - resident[a] + runtime + np.minimum.reduce(needs)
            for shared in chain.shared:
                need += int(shared.resident[s]) * copied(shared.layers, a, np.arange(a + 1, n + 1))
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
    more = -(-resident * count // there) - count if there else None
    larger = format_bytes(-(-resident // count) + max(kind.runtime for kind in kinds))
    return (
        f"No plan fits: parameters, gradients and optimiser state take {format_bytes(resident)}, and the {count} "
        f"devices have {format_bytes(there)} together.\n"
        f"What would fit: {f'{more} more such devices at least, or ' if more else ''}devices of {larger} and more."
    )


def explain_infeasible(space: Space, seconds: float = SECONDS) -> str:
    """The numbers, and a change of memory that lets some plan fit, as far as so many seconds go."""
    clock = Clock(Limits(time=seconds))
    candidates: list[Candidate] = []
    needs: list[tuple[int, int]] = []
    with suppress(OutOfTimeError):
        for candidate in _frugal(space, clock):
            candidates.append(candidate)
            needs.append((least_memory(candidate, clock), len(needs)))
    if candidates and not needs:
        return "No plan fits: the devices do not have the memory. There was no time to find out how much is enough."
    if not candidates:
        return (
            "No candidate is left: the depths or replicas asked for exceed the devices, the layers or the "
            "micro-batches. Ask for fewer stages or replicas."
        )
    least, number = min(needs)
    easiest = candidates[number]
    limits = sorted({int(limit) for candidate in candidates for limit in candidate.chain.limit})
    have = " and ".join("no limit" if limit == UNLIMITED else format_bytes(limit) for limit in limits)
    if least <= limits[-1] and space.wishes.any:
        return "No plan fits with these wishes: without them one would. Drop a pin, or allow more cuts."
    lines = [
        f"No plan fits: the devices have {have} each, and the least that was found to be enough is "
        f"{format_bytes(least)} a device (with {easiest.label}).",
        f"What would fit: --memory {_rounded_up(least)} on such devices, or more of them, or smaller micro-batches.",
    ]
    return "\n".join(lines)


def _frugal(space: Space, clock: Clock) -> Iterable[Candidate]:
    """The shapes that need little memory a device: many stages, small micro-batches, few in flight."""
    for size in space.sizes[:2]:
        until = clock.left * (1 - LISTING)
        listed = takewhile(lambda _: clock.left > until, islice(space.shapes(size), LISTED))
        shapes = sorted(listed, key=lambda shape: -len(shape[0]))
        for groups, _ in shapes[:LOOKED_AT]:
            least = min(space.candidates(groups, size), key=lambda candidate: sum(candidate.in_flight))
            if space.any_order and len(set(least.replicas)) == 1:  # some order holds one micro-batch a stage
                least = replace(least, family=free_family((1,) * least.depth))
            yield least


def _rounded_up(size: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{-(-size * 100 // factor) / 100:.2f}{unit}"
    return f"{size}B"
