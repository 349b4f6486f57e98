"""What the families would run on a pipeline: where a search for something better begins.

::

    family's devices     0  1  2  3        stage by stage, or as its placement says
    pipeline's           2  0  1  3        the same stages together, under whatever numbers
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Action, Schedule
from pipeplan.schedules import FAMILIES, PLACED, one_forward_one_backward
from pipeplan.schedules.family import closing
from pipeplan.schedules.placed import Placement


def written(pipeline: Pipeline, micro_batches: int, split: Sequence[bool]) -> Iterator[Schedule]:
    """Every family's schedule of these stages where they lie, whether its memory is there or not.

    Those that split backwards are left out unless all may be; two lanes, unless they suit the pipeline's overlap.
    """
    replicas = pipeline.replicas
    by_stage = tuple(tuple(range(a, b)) for a, b in pairwise(accumulate(replicas, initial=0)))
    if _renamed(by_stage, pipeline.placement) is not None:
        for family in FAMILIES.values():
            if not family.two_lanes or pipeline.overlap in family.suits:
                yield from moved(family.write(replicas, micro_batches), by_stage, pipeline)
        for counts in sorted(set(_free_counts(pipeline, micro_batches))):
            yield from moved(one_forward_one_backward(replicas, micro_batches, counts), by_stage, pipeline)
    devices = len({device for homes in pipeline.placement for device in homes})
    chunks, rest = divmod(len(pipeline.stages), devices)
    for placed in PLACED.values() if not rest else ():
        fits = placed.chunks in (None, chunks) and not (placed.even and devices % 2)
        if fits and (all(split) or not placed.splits):
            homes = placed.placement(devices, chunks)
            if _renamed(homes, pipeline.placement) is not None:
                yield from moved(placed.write(devices, micro_batches, chunks), homes, pipeline)


def moved(schedule: Schedule, homes: Placement, pipeline: Pipeline) -> Iterator[Schedule]:
    """The schedule of a family that places stages on ``homes``, on the pipeline's devices; nothing if they differ.

    Its lists end as found ones do: where several groups of stages are tied, families' own ends may wait for each other.
    """
    names = _renamed(homes, pipeline.placement)
    if names is not None:
        orders: list[tuple[Action, ...]] = [()] * pipeline.devices
        for device, order in enumerate(schedule.orders):
            if device in names:
                actions = (action for action in order if action.kind.per_micro_batch)
                own = pipeline.stages_on[names[device]]
                orders[names[device]] = (*actions, *closing(own, pipeline.replicas, pipeline.tied))
        yield replace(schedule, orders=tuple(orders))


def _renamed(homes: Placement, placement: Placement) -> dict[int, int] | None:
    """For each device of the one the device of the other that runs the same replicas; None if there is none."""
    if [len(own) for own in homes] != [len(own) for own in placement]:
        return None
    pairs = {(a, b) for own, other in zip(homes, placement, strict=True) for a, b in zip(own, other, strict=True)}
    names = dict(pairs)
    return names if len(names) == len(pairs) == len({b for _, b in pairs}) else None


def _free_counts(pipeline: Pipeline, micro_batches: int) -> Iterator[tuple[int, ...]]:
    """1F1B's counts where memory decides: as many as fit, and no more than hide what travels.

    Never more than the stage before holds, which ends for stages of one width; for others 1F1B's own counts remain.
    """
    if len(set(pipeline.replicas)) > 1:
        return
    n, most = len(pipeline.stages), -(-micro_batches // pipeline.replicas[0])
    rooms = []
    for stage, homes in zip(pipeline.stages, pipeline.placement, strict=True):
        left = min(pipeline.limits[d] - pipeline.runtime[d] for d in homes) - stage.resident - stage.workspace
        rooms.append(min(most, left // stage.held) if stage.held else most)
    if min(rooms) < 1:
        return
    for wanted in ([most] * n, [2 * (n - s) - 1 for s in range(n)], [n - s for s in range(n)]):
        counts = (min(a, b) for a, b in zip(rooms, wanted, strict=True))
        yield tuple(accumulate(counts, min))
