"""The signals that every action of a schedule waits for (see `pipeplan.simulate.numbers`)."""

from itertools import cycle, product
from operator import add

from pipeplan.pipeline import Pipeline
from pipeplan.schedule import Kind, Schedule
from pipeplan.simulate.cells import Cells
from pipeplan.simulate.numbers import NOTHING
from pipeplan_formulations.common.dependencies import OF_MICRO_BATCHES, OF_STEPS


def find_needs(
    schedule: Schedule, pipeline: Pipeline, cells: Cells, crosses: list[list[bool]]
) -> list[tuple[int, ...]]:
    """The signals that each action waits for, besides the end of what stands ahead of it in its lane.

    Parameters
    ----------
    crosses : list of list of bool
        For each boundary and residue: whether the tensor goes to another device.
    """
    n, stages = sum(map(len, schedule.orders)), len(pipeline.stages)
    needs: list[tuple[int, ...]] = [()] * n
    # what to add to the number of an action to get the signal that the neighbouring stage waits for
    shifts = [[n if other else 0 for other in row] for row in crosses]
    for kind, stage, part in product(OF_MICRO_BATCHES, range(stages), range(cells.slices)):
        columns = []  # one for each dependency that exists there, by micro-batch
        for other, away, slices in OF_MICRO_BATCHES[kind]:
            if 0 <= stage + away < stages and 0 <= part + slices < cells.slices:
                column = cells.column(other, stage + away, part + slices)
                shift = shifts[min(stage, stage + away)] if away else [0]
                columns.append(map(add, column, cycle(shift)))
        for i, signals in zip(cells.column(kind, stage, part), zip(*columns, strict=True), strict=False):
            if i != NOTHING:
                needs[i] = signals
    # a replica's backwards end in list order, so the last one in the list stands for all of them
    once = {"I": cells.last_backward, "W": cells.last_backward, "R": cells.reduce, "U": cells.update}
    for what, awaited in OF_STEPS.items():
        for i, *ended in zip(once[what], *(once[other] for other in awaited), strict=True):
            if i != NOTHING:
                needs[i] = tuple(signal for signal in dict.fromkeys(ended) if signal != NOTHING)
    if schedule.two_lanes:
        _wait_for_memory(schedule, needs)
    return needs


def _wait_for_memory(schedule: Schedule, needs: list[tuple[int, ...]]) -> None:
    """Let each forward wait for the last action before it in the list that runs on its device's second lane."""
    i = 0
    for order in schedule.orders:
        last = NOTHING
        for action in order:
            if action.kind is not Kind.FORWARD:
                last = i
            elif last != NOTHING:
                needs[i] = (*needs[i], last)
            i += 1
