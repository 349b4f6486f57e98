"""Schedules of all families on a fixed pipeline: the starting points of a search.

A family numbers its devices by stage or by its own placement. Its lists move to those devices of the pipeline that run
the same stages together::

    family's devices       0  1  2  3
    pipeline's devices     2  0  1  3
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from pipeplan.core.pipeline import Pipeline, Placement
from pipeplan.core.schedule import Action, Schedule
from pipeplan.schedules import FAMILIES, PLACED, one_forward_one_backward
from pipeplan.schedules.family import closing


def family_schedules(pipeline: Pipeline, micro_batches: int, split: Sequence[bool]) -> Iterator[Schedule]:
    """Yield every family's schedule of the pipeline's stages on their devices, without regard to memory limits.

    Families that split backwards are left out unless all backwards may be split. Families of two lanes are left out
    unless they suit the pipeline's overlap.
    """
    replicas = pipeline.replicas
    by_stage = tuple(tuple(range(a, b)) for a, b in pairwise(accumulate(replicas, initial=0)))
    if _device_map(by_stage, pipeline.placement) is not None:
        for family in FAMILIES.own.values():
            if not family.two_lanes or pipeline.overlap in family.suits:
                yield from mapped(family.write(replicas, micro_batches), by_stage, pipeline)
        for counts in sorted(set(_fitting_counts(pipeline, micro_batches))):
            yield from mapped(one_forward_one_backward(replicas, micro_batches, counts), by_stage, pipeline)
    devices = len({device for homes in pipeline.placement for device in homes})
    chunks, rest = divmod(len(pipeline.stages), devices)
    for placed in PLACED.values() if not rest else ():
        fits = placed.chunks in (None, chunks) and not (placed.even and devices % 2)
        if fits and (all(split) or not placed.splits):
            homes = placed.placement(devices, chunks)
            if _device_map(homes, pipeline.placement) is not None:
                yield from mapped(placed.write(devices, micro_batches, chunks), homes, pipeline)


def mapped(schedule: Schedule, homes: Placement, pipeline: Pipeline) -> Iterator[Schedule]:
    """Yield a schedule for the placement ``homes`` on the pipeline's devices; nothing if the placements differ.

    The lists get the reductions and updates of searched schedules (`closing`). Those of the families may deadlock where
    several groups of stages are tied.
    """
    names = _device_map(homes, pipeline.placement)
    if names is not None:
        orders: list[tuple[Action, ...]] = [()] * pipeline.devices
        for device, order in enumerate(schedule.orders):
            if device in names:
                actions = (action for action in order if action.kind.per_micro_batch)
                own = pipeline.stages_on[names[device]]
                orders[names[device]] = (*actions, *closing(own, pipeline.replicas, pipeline.tied))
        yield replace(schedule, orders=tuple(orders))


def _device_map(homes: Placement, placement: Placement) -> dict[int, int] | None:
    """Map each device of ``homes`` to the device of ``placement`` that runs the same stages, or None."""
    if [len(own) for own in homes] != [len(own) for own in placement]:
        return None
    pairs = {(a, b) for own, other in zip(homes, placement, strict=True) for a, b in zip(own, other, strict=True)}
    names = dict(pairs)
    return names if len(names) == len(pairs) == len({b for _, b in pairs}) else None


def _fitting_counts(pipeline: Pipeline, micro_batches: int) -> Iterator[tuple[int, ...]]:
    """Yield in-flight counts of 1F1B that fit in memory, up to all, to those that hide transfers, and to SNO's.

    No stage holds more than the stage before it. That gives valid schedules if all stages have equally many replicas;
    otherwise nothing is yielded.
    """
    if len(set(pipeline.replicas)) > 1:
        return
    n, most = len(pipeline.stages), -(-micro_batches // pipeline.replicas[0])
    most_in_flight = []
    for stage, homes in zip(pipeline.stages, pipeline.placement, strict=True):
        left = min(pipeline.limits[d] - pipeline.runtime[d] for d in homes) - stage.resident - stage.workspace
        most_in_flight.append(min(most, left // stage.held) if stage.held else most)
    if min(most_in_flight) < 1:
        return
    for wanted in ([most] * n, [2 * (n - s) - 1 for s in range(n)], [n - s for s in range(n)]):
        counts = (min(a, b) for a, b in zip(most_in_flight, wanted, strict=True))
        yield tuple(accumulate(counts, min))
