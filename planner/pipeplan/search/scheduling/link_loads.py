"""Lower bounds on the makespan by what each wire must carry, one tensor after the other.

::

    card     ─────head─────╢ 0▷1 ║ 0▷1 ║ 1▷0 ║ 0▷1 ║ 1▷0 ║ …  ║ 1▷0 ╟──tail──
              F of stage 0                                        I, W, update of stage 0

A tensor is ready after its head, the forwards and ways before it, and what comes after its arrival takes its tail. The
instance knows the tensors of one row only; this bound, of one machine with heads and tails, those of all rows.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from pipeplan.core.cluster import Overlap
from pipeplan.core.pipeline import Pipeline, Transfer
from pipeplan.search.scheduling.lower_bound import relaxed_problem
from pipeplan.search.scheduling.rows import rows_of, share
from pipeplan_formulations.schedule.bounds import jackson
from pipeplan_formulations.schedule.precedence import heads, tails

Item = tuple[int, int, int]
"""Head, time on the wire, tail. Tensors that have both in common are one item: which of them goes first is one."""


def wire_bound(
    pipeline: Pipeline, micro_batches: int, split: bool | Sequence[bool] = True, *, two_lanes: bool = False
) -> int:
    """A lower bound on the time of every schedule that may split these stages and need not; 0 where nothing travels.

    Of schedules of two lanes with ``two_lanes``, of one without.

    Raises
    ------
    InputError
        As `relaxed_problem`.
    """
    short, rows = _shortest(pipeline), rows_of(pipeline)
    problem = relaxed_problem(short, micro_batches, split, two_lanes=two_lanes)
    before, after = heads(problem), tails(problem)
    carried: dict[str, list[Item]] = defaultdict(list)
    for s in (s for s in range(problem.stages - 1) if rows.crosses(s)):
        first = before["F"][s] + _made(pipeline.overlap, problem.forward[s], short.transfers[s][0])
        first_back = before["I"][s + 1] + _made(pipeline.overlap, problem.backward[s + 1], short.returns[s][0])
        rest = problem.forward[s + 1] + after["F"][s + 1]
        rest_back = problem.backward[s] + after["I"][s]
        for row in range(rows.count):
            count, down, up = share(rows, row, micro_batches), pipeline.transfers[s][row], pipeline.returns[s][row]
            for wire in set(down.resources):
                carried[wire].append((first, count * down.occupancy, down.latency + rest))
            for wire in set(up.resources):
                carried[wire].append((first_back, count * up.occupancy, up.latency + rest_back))
    items = ([item for item in own if item[1]] for own in carried.values())
    return max((jackson(own) for own in items if own), default=0)


def _shortest(pipeline: Pipeline) -> Pipeline:
    """Every boundary as short as it is for any row, on wires that are always free."""

    def least(ways: tuple[Transfer, ...]) -> tuple[Transfer, ...]:
        way = Transfer(0, min(way.occupancy for way in ways), min(way.latency for way in ways))
        return (way,) * len(ways)

    return replace(
        pipeline, transfers=tuple(map(least, pipeline.transfers)), returns=tuple(map(least, pipeline.returns))
    )


def _made(overlap: Overlap, time: int, way: Transfer) -> int:
    """How long after the start of an F or I its tensor may leave: at once where it streams, when it is made elsewhere.

    ``time`` is what the instance has, with the tensor's own way where its device waits for it.
    """
    if overlap is Overlap.STREAM:
        return 0
    return time - way.occupancy if overlap is Overlap.NONE else time
