"""What every action of a schedule waits for, as signals (see `pipeplan.simulate.numbers`)."""

from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.simulate.cells import Cells
from pipeplan.simulate.numbers import NOTHING


def find_needs(
    schedule: Schedule, pipeline: Pipeline, actions: list[Action], cells: Cells, crosses: list[list[bool]]
) -> list[tuple[int, ...]]:
    """The signals that each action waits for, besides the end of what stands ahead of it in its lane.

    Parameters
    ----------
    crosses : list of list of bool
        For each boundary and residue: whether the tensor goes to another device.
    """
    n, stages = len(actions), len(pipeline.stages)
    forward, backward, stride = cells.forward, cells.backward, cells.stride
    # what to add to a number of stage s to get the signal that stage s + 1 (or, on the way back, s - 1) waits for
    shift = [[n if other else 0 for other in row] for row in crosses]
    periods = pipeline.periods
    ahead = _backwards_ahead(schedule) if schedule.two_lanes else None

    needs: list[tuple[int, ...]] = []
    for i, action in enumerate(actions):
        kind, stage, micro_batch, part = action
        wanted: list[int] = []
        if kind is Kind.FORWARD:
            cell = cells.cell(action)
            if stage > 0:
                wanted.append(forward[cell - stride] + shift[stage - 1][micro_batch % periods[stage - 1]])
            if part > 0:
                wanted.append(forward[cell - 1])
            if ahead is not None and ahead[i] != NOTHING:
                wanted.append(ahead[i])
        elif kind is Kind.BACKWARD or kind is Kind.INPUT_GRADIENT:
            cell = cells.cell(action)
            wanted.append(forward[cell])
            if stage < stages - 1:
                wanted.append(backward[cell + stride] + shift[stage][micro_batch % periods[stage]])
            if part < cells.slices - 1:
                wanted.append(backward[cell + 1])
        elif kind is Kind.WEIGHT_GRADIENT:
            wanted.append(backward[cells.cell(action)])
        else:
            # a replica's backwards end in list order, so the last one in the list stands for all of them
            replica = cells.replica_of[i]
            wanted.append(cells.last_backward[replica])
            if kind is Kind.UPDATE:
                wanted.append(cells.reduce[replica])
            wanted = [signal for signal in wanted if signal != NOTHING]
        needs.append(tuple(wanted))
    return needs


def _backwards_ahead(schedule: Schedule) -> list[int]:
    """For every action, the last one of the device's second lane that stands before it in the list."""
    result = []
    i = 0
    for order in schedule.orders:
        last = NOTHING
        for action in order:
            result.append(last)
            if action.kind is not Kind.FORWARD:
                last = i
            i += 1
    return result
