"""What each wire must carry, one tensor after the other, whatever the order.

::

    card     ─────head─────╢ 0▷1 ║ 0▷1 ║ 1▷0 ║ 0▷1 ║ 1▷0 ║ …  ║ 1▷0 ╟──tail──
              F of stage 0                                        I, W, update of stage 0

A tensor is ready after its head, the forwards and ways before it, and what comes after its arrival takes its tail. The
formulation knows no wires; this bound, of one machine with heads and tails, does.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from pipeplan.cluster import Overlap
from pipeplan.found.floor import floor_problem
from pipeplan.found.rows import rows_of, share
from pipeplan.pipeline import Pipeline, Transfer
from pipeplan_formulations.schedule import PipelineSchedule
from pipeplan_formulations.schedule.packing import jackson

Item = tuple[int, int, int]
"""Head, time on the wire, tail. Tensors that have both in common are one item: which of them goes first is one."""


def wire_bound(pipeline: Pipeline, micro_batches: int, split: bool | Sequence[bool] = True) -> int:
    """A lower bound on the time of every schedule that may split these stages and need not; 0 where nothing travels.

    Raises
    ------
    InputError
        As `floor_problem`.
    """
    problem = floor_problem(_shortest(pipeline), micro_batches, split)
    rows = rows_of(pipeline)
    forwards, backwards = _heads(problem)
    onward, back = _tails(problem)
    ready, ready_back = _made(pipeline, problem)
    carried: dict[str, list[Item]] = defaultdict(list)
    for s in (s for s in range(problem.stages - 1) if rows.crosses(s)):
        for row in range(rows.count):
            count, down, up = share(rows, row, micro_batches), pipeline.transfers[s][row], pipeline.returns[s][row]
            for wire in set(down.resources):
                head, tail = forwards[s] + ready[s], down.latency + onward[s + 1]
                carried[wire].append((head, count * down.occupancy, tail))
            for wire in set(up.resources):
                head, tail = backwards[s + 1] + ready_back[s + 1], up.latency + back[s]
                carried[wire].append((head, count * up.occupancy, tail))
    items = ([item for item in own if item[1]] for own in carried.values())
    return max((jackson(own) for own in items if own), default=0)


def _shortest(pipeline: Pipeline) -> Pipeline:
    """Every boundary as short as it is for any row."""

    def least(ways: tuple[Transfer, ...]) -> tuple[Transfer, ...]:
        way = Transfer(0, min(way.occupancy for way in ways), min(way.latency for way in ways))
        return (way,) * len(ways)

    return replace(
        pipeline, transfers=tuple(map(least, pipeline.transfers)), returns=tuple(map(least, pipeline.returns))
    )


def _heads(problem: PipelineSchedule) -> tuple[list[int], list[int]]:
    """When the first F and the first I of each stage may start, if nothing but their inputs counted."""
    forwards = [0]
    for time, lag in zip(problem.forward, problem.lag, strict=False):
        forwards.append(forwards[-1] + time + lag)
    backwards = [forwards[-1] + problem.forward[-1]]
    for s in reversed(range(problem.stages - 1)):
        backwards.insert(0, backwards[0] + problem.backward[s + 1] + problem.lag_back[s])
    return forwards, backwards


def _tails(problem: PipelineSchedule) -> tuple[list[int], list[int]]:
    """From the start of an F and of an I of each stage to the end of the step, over the first stage's update."""
    back = [problem.backward[0] + problem.weight[0] + problem.ending[0]]
    for s in range(problem.stages - 1):
        back.append(problem.backward[s + 1] + problem.lag_back[s] + back[-1])
    onward = [problem.forward[-1] + back[-1]]
    for s in reversed(range(problem.stages - 1)):
        onward.insert(0, problem.forward[s] + problem.lag[s] + onward[0])
    return onward, back


def _made(pipeline: Pipeline, problem: PipelineSchedule) -> tuple[list[int], list[int]]:
    """How long after the start of an F and of an I its tensor may leave: at once where it streams, when it is made
    elsewhere."""
    stages = range(problem.stages)
    if pipeline.overlap is Overlap.STREAM:
        return [0 for _ in stages], [0 for _ in stages]
    inputs = [
        min(stage.input_gradient, stage.backward) if cut else stage.backward
        for stage, cut in zip(pipeline.stages, problem.split, strict=True)
    ]
    return [stage.forward for stage in pipeline.stages], inputs
