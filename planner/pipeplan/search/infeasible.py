"""Explanations of infeasible jobs, and the least memory per device with which a plan was found to fit."""

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from math import inf

import numpy as np

from pipeplan.core.cluster import StageDevices
from pipeplan.core.job import SHARDED, Job
from pipeplan.core.units import format_bytes, format_reserve
from pipeplan.core.wording import counted, wrapped
from pipeplan.costs.chain import UNLIMITED, Array
from pipeplan.costs.pricing import device_limit, usable_memory
from pipeplan.costs.sources import bytes_per_parameter
from pipeplan.search.regimes import REGIMES
from pipeplan.search.scope import narrowing_options, searched
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.in_flight import free_family
from pipeplan.search.space.space import Space
from pipeplan.search.space.spaces import Spaces
from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.layer_tables import distinct
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.partition.parts import has_copy

FEW = REGIMES.least_memory_groups.most
"""Most device groups per micro-batch size that are tried one and all for the least memory."""
THRESHOLDS = 32
"""Most thresholds below which layers are recomputed that are tried for the least memory."""
DEPTHS, EACH = 8, 4
"""Of more, the greatest depths, and the most device groups of each depth or width."""


def least_memory(candidate: Candidate, clock: Clock | None = None) -> int:
    """Bytes per device with which some partition of this candidate fits; `UNLIMITED` if the constraints allow none.

    The minimum over partitions of the largest stage. A stage recomputes nothing, or the layers that it may whose saved
    bytes and workspace together are no more than some threshold: the least is one of these. Of more than `THRESHOLDS`
    some are left out.

    Raises
    ------
    OutOfTimeError
        If the time of ``clock`` is over.
    """
    problem, chain = candidate.problem, candidate.chain
    n, tables = problem.layers, problem.bytes
    again = chain.recomputable
    # Rows of stages with equal tables are computed once; ``row`` has each stage's.
    own, row = np.unique(tables.sort, return_inverse=True)
    saved, workspace, beside = tables.saved[own], tables.workspace[own], tables.beside[own]
    kept, rebuilt = tables.output[own], tables.again[own]
    useful = again & (kept < saved)
    options = [(saved, workspace)]
    for most in _some(distinct(rebuilt[useful])):
        chosen = useful & (rebuilt <= most)
        options.append((np.where(chosen, kept, saved), np.where(chosen, rebuilt, workspace)))
    ends = np.append(candidate.cuts, True)
    count, runtime = problem.in_flight[:, None], chain.runtime[:, None]
    best = np.full((problem.stages + 1, n + 1), UNLIMITED)
    best[0, 0] = 0
    # best[s, b]: least bytes of the largest of the first s stages, if these hold layers 0 to b - 1.
    for a in range(n):
        if clock is not None:
            clock.check()
        # Bytes of each stage with layers a to b - 1, for each b and each choice of recomputation; then the least.
        beyond = np.maximum.accumulate(beside[:, a:], axis=1)
        needs = []
        for held, space in options:
            holds = np.cumsum(held[:, a:], axis=1)[row] + tables.received[:, a, None]
            peaks = np.maximum.accumulate(space[:, a:], axis=1) + beyond
            needs.append(count * holds + peaks[row])
        need = np.minimum.reduce(needs) + np.cumsum(chain.resident[:, a:], axis=1) + runtime
        for shared in chain.shared:
            need += shared.resident[:, None] * has_copy(shared.layers, a, np.arange(a + 1, n + 1))
        need[~(np.logical_and.accumulate(candidate.where[:, a:], axis=1) & ends[a:])] = UNLIMITED
        best[1:, a + 1 :] = np.minimum(best[1:, a + 1 :], np.maximum(need, best[:-1, a, None]))
    return int(best[-1, n])


def _some(values: Array) -> Array:
    """At most `THRESHOLDS` of sorted values, the last one among them."""
    if len(values) <= THRESHOLDS:
        return values
    chosen: Array = values[np.linspace(len(values) - 1, 0, THRESHOLDS).astype(np.int64)]
    return chosen


def promising(spaces: Iterable[Space]) -> list[Space]:
    """Return the spaces of which it is not easily seen that no plan fits."""
    return [
        space
        for space in spaces
        if not (space.impossible or total_memory_shortfall(space) or held_memory_shortfall(space))
    ]


def total_memory_shortfall(space: Space) -> str | None:
    """Explain that static bytes exceed the memory of all devices together; None if they do not.

    Parameters, gradients and optimiser state of every layer are held at least once, however layers are partitioned,
    replicated or, under ZeRO-1, sharded.
    """
    resident, there = _resident(space), _memory(space)
    if resident <= there:
        return None
    kinds = [kind for kind, _ in space.cluster.counts]
    count = len(space.cluster.devices)
    larger = format_bytes(-(-resident // count) + max(kind.runtime for kind in kinds))
    more = f"{counted(-(-resident * count // there) - count, 'more such device')} at least, or " if there else ""
    return (
        f"No plan fits: {static_parts(space)} take {format_bytes(resident)} "
        f"({bytes_per_parameter(space.model, space.job)}), and {_together(count, there)}"
        f"{_left_free(space.job)}. That holds for every plan, searched or not, that keeps so many bytes for "
        f"each parameter on some device (--state-bytes and --gradient-bytes state others).\nWhat it takes: {more}"
        f"devices of at least {larger}{' beside that' * bool(space.job.reserve)}; activations come on top."
    )


def held_memory_shortfall(space: Space) -> str | None:
    """Explain that static bytes and activations exceed the memory of all devices together; None if they need not.

    Where every schedule runs all forwards of a step before its backwards, the activations of every layer are held for
    all micro-batches at once, or its output if it is recomputed.
    """
    held, resident, there = _held_by_all(space), _resident(space), _memory(space)
    if held is None or resident + held <= there:
        return None
    return (
        f"Under {' and '.join(space.schedules)} all micro-batches of a step are in flight at once: their activations "
        f"take {format_bytes(held)} at least, whatever is recomputed; with {static_parts(space)} "
        f"that is {format_bytes(resident + held)}, and the devices have {format_bytes(there)} together"
        f"{_left_free(space.job)}."
    )


def _together(count: int, there: int) -> str:
    return (
        f"the device has {format_bytes(there)}"
        if count == 1
        else f"the {count} devices have {format_bytes(there)} together"
    )


def _left_free(job: Job) -> str:
    return f" beside the {format_reserve(job.reserve)} that are left free (--reserve)" if job.reserve else ""


def _resident(space: Space) -> int:
    """Least bytes of weights, gradients and optimiser state of all layers."""
    kept = space.prices.kept
    kinds = [own.kind for own in space.classes]
    parts = kept.parameters, kept.whole_gradients, kept.optimizer, kept.frozen
    return min(sum(int(part(kind).sum()) for part in parts) for kind in kinds)


def static_parts(space: Space) -> str:
    """Name what takes static bytes: frozen weights only where there are some."""
    frozen = any(layer.frozen for layer in space.model.layers)
    return f"parameters, {'frozen weights, ' * frozen}gradients and optimiser state"


def _memory(space: Space) -> int:
    """Bytes that a plan may use on all devices together; `UNLIMITED` if some device has no limit."""
    usable = [(usable_memory(kind, space.job), count) for kind, count in space.cluster.counts]
    limited = all(own != UNLIMITED for own, _ in usable)
    return sum(own * count for own, count in usable) if limited else UNLIMITED


def _held_by_all(space: Space) -> int | None:
    """Least bytes of the activations of all micro-batches; None if some schedule does not hold all of them at once."""
    if space.any_order or space.free or not all(each.phases for each in space.families):
        return None
    kinds = [kind for kind, _ in space.cluster.counts]
    found = []
    for size in space.sizes:
        tables = [space.prices.table(kind, size) for kind in kinds]
        again = space.prices.recomputable
        least = [np.where(again, np.minimum(table.saved, table.output), table.saved) for table in tables]
        found.append(space.job.batch // size * int(np.minimum.reduce(least).sum()))
    return min(found)


def explain_infeasible(spaces: Spaces, found: "tuple[int, Candidate] | None") -> str:
    """Message for spaces without a feasible plan: limits, searched plans, and memory with which one of them fits.

    ``found`` is the result of `least_sufficient_memory`.
    """
    space = spaces.lowest
    if found is None:
        return f"No plan fits: {_none_at_all(space, spaces.job)}."
    reach = "\n".join(wrapped(f"searched: {searched(spaces).as_text()}"))
    least, easiest = found
    limits = sorted({device_limit(kind, space.job) for kind, _ in space.cluster.counts})
    have = " and ".join("no limit" if limit == UNLIMITED else format_bytes(limit) for limit in limits)
    usable = (space.job.usable(kind.memory) for kind, _ in space.cluster.counts)
    owned = min((UNLIMITED if size is None else size for size in usable), default=UNLIMITED)
    option = "--memory " if space.job.memory is not None and owned >= least else "devices of "
    return (
        f"No plan fits among those searched: the devices have {have} each{_left_free(space.job)}, and the "
        f"least that was found to be enough is {format_bytes(least)} on each ({easiest.label}).\n{reach}\n"
        f"What would fit: {option}{_rounded_up(least)}{' beside that' * bool(space.job.reserve)}"
    )


def least_sufficient_memory(
    spaces: Iterable[Space], until: float = inf, latest: float | None = None
) -> tuple[int, Candidate] | None:
    """Return the least bytes per device with which a plan of some space was found to fit, and that plan's candidate.

    None if no device groups are allowed, or none with a partition within the constraints. ``until`` is a time of
    `time.monotonic`, and ``latest`` that of the first plan, without which nothing is known; by default the same.
    """
    needs, ends = list[tuple[int, int, Candidate]](), until if latest is None else latest
    with suppress(OutOfTimeError):
        for candidate in _in_turn([_low_memory_candidates(space, until) for space in spaces]):
            needs.append((least_memory(candidate, Clock(Limits(time=ends - time.monotonic()))), len(needs), candidate))
            ends = ends if needs[-1][0] >= UNLIMITED else until
    least, _, easiest = min(needs, key=lambda entry: entry[:2], default=(UNLIMITED, 0, None))
    return None if easiest is None or least >= UNLIMITED else (least, easiest)


def _in_turn(rows: list[Iterator[Candidate]]) -> Iterator[Candidate]:
    """Yield the first candidate of each row, then the second ones, and so on: time may end on the way."""
    while rows:
        left = []
        for row in rows:
            candidate = next(row, None)
            if candidate is not None:
                left.append(row)
                yield candidate
        rows = left


def _none_at_all(space: Space, job: Job) -> str:
    """Explain why no plan of a job fits with any memory."""
    devices, layers = len(space.cluster.devices), len(space.model.layers)
    if next(_low_memory_candidates(space), None) is not None:
        given = " and ".join(narrowing_options(job))
        return f"no cut of the layers keeps to {given}" if given else "the time was over before the memory was found"
    restricted = [("--depths", job.depths), ("--replicas", job.replicas)]
    given = " and ".join(f"{name} {','.join(map(str, numbers))}" for name, numbers in restricted if numbers)
    most = job.batch // min(space.sizes)
    equal = f", shared equally at level {space.job.level} of ZeRO" if space.job.level >= SHARDED else ""
    return (
        f"{given or 'the job'} leaves no device groups for stages on {counted(devices, 'device')}, "
        f"with {counted(layers, 'layer')} and at most {counted(most, 'micro-batch')}{equal}; ask for fewer stages or "
        "replicas"
    )


def _low_memory_candidates(space: Space, until: float = inf) -> Iterator[Candidate]:
    """Yield candidates that need little memory per device: small micro-batches and many stages first, few in flight."""
    for size in _lean_sizes(space):
        for number, groups in enumerate(_deep(space, size)):
            if number and time.monotonic() >= until:
                return
            every = space.candidates(groups, size)
            if space.any_order and len({len(group) for group in groups}) == 1:  # some order holds one per stage
                yield replace(every[0], family=free_family((1,) * len(groups)))
                continue
            for lanes in (False, True):
                own = [each for each in every if each.family.two_lanes is lanes]
                if own:
                    yield min(own, key=lambda candidate: sum(candidate.in_flight))


def _lean_sizes(space: Space) -> Iterator[int]:
    """Yield the micro-batch sizes, but for multiples of the least one at which layers take as much for each sample.

    A schedule holds at least as many samples in such micro-batches as in small ones, so no plan needs less.
    """
    least = min(space.sizes)
    for size in space.sizes:
        tables = [[space.prices.table(own.kind, each) for own in space.classes] for each in (least, size)]
        saves = all(
            (large.saved * least >= small.saved * size).all()
            and (large.output * least >= small.output * size).all()
            and (large.workspace >= small.workspace).all()
            for small, large in zip(*tables, strict=True)
        )
        if size == least or size % least or not saves:
            yield size


def _deep(space: Space, size: int) -> Iterator[StageDevices]:
    """Yield all device groups, deepest first, if they are at most `FEW`; else the deepest of each width, and mixed."""
    job, layers, count = space.job, len(space.model.layers), space.job.batch // size
    listed = list(islice(space.all_groups(job, count), FEW + 1))
    if len(listed) <= FEW:
        yield from sorted(listed, key=len, reverse=True)
        return

    def allowed(most: int) -> list[int]:
        return [depth for depth in range(most, 0, -1) if not job.depths or depth in job.depths]

    devices = len(space.cluster.devices)
    powers = [2**k for k in range(devices.bit_length())]
    for width in job.replicas or powers:
        most = min(devices // width, layers)
        for depth in allowed(most)[: DEPTHS if width <= min(count, devices) else 0]:
            narrow = replace(job, replicas=(width,), depths=(depth,))
            found = list(islice(space.all_groups(narrow, count), EACH))
            yield from found
            if found:
                break
    for depth in allowed(min(devices, layers))[:DEPTHS]:
        yield from islice(space.all_groups(replace(job, depths=(depth,)), count), EACH)


def _rounded_up(size: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{-(-size * 100 // factor) / 100:.2f}{unit}"
    return f"{size}B"
