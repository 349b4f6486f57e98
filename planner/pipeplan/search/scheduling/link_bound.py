"""Lower bounds on the makespan from the load of each link resource, which carries one tensor at a time.

::

    card     ─────head─────╢ 0▷1 ║ 0▷1 ║ 1▷0 ║ 0▷1 ║ 1▷0 ║ …  ║ 1▷0 ╟──tail──
              F of stage 0                                        I, W, update of stage 0

A tensor is ready after its head, the forwards and transfers before it. The work after its arrival takes its tail. The
scheduling instance holds the tensors of one replica only. This bound, of one machine with heads and tails, holds those
of all replicas.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from pipeplan.core.cluster import Overlap
from pipeplan.core.pipeline import Pipeline, Transfer
from pipeplan.search.scheduling.lower_bound import relaxed_problem
from pipeplan.search.scheduling.replica_pipelines import micro_batches_of, replica_pipelines
from pipeplan_formulations.schedule.bounds import jackson
from pipeplan_formulations.schedule.precedence import heads, tails

Item = tuple[int, int, int]
"""Head, time on the resource, tail. Tensors with equal heads and tails are one item: their order is free."""


def link_bound(
    pipeline: Pipeline, micro_batches: int, split: bool | Sequence[bool] = True, *, two_lanes: bool = False
) -> int:
    """Nanoseconds: a lower bound on all schedules that split the backwards of none, some or all of these stages.

    It is 0 without transfers. With ``two_lanes`` it is over schedules of two lanes, otherwise over those of one.

    Raises
    ------
    InputError
        As `relaxed_problem`.
    """
    short, pipelines = _fastest_transfers(pipeline), replica_pipelines(pipeline)
    problem = relaxed_problem(short, micro_batches, split, two_lanes=two_lanes)
    before, after = heads(problem), tails(problem)
    carried: dict[str, list[Item]] = defaultdict(list)
    # For each resource: the tensors that it carries, those of one boundary, direction and replica as one item.
    for s in (s for s in range(problem.stages - 1) if pipelines.crosses(s)):
        first = before["F"][s] + _departure_delay(pipeline.overlap, problem.forward[s], short.transfers[s][0])
        first_back = before["I"][s + 1] + _departure_delay(
            pipeline.overlap, problem.backward[s + 1], short.returns[s][0]
        )
        rest = problem.forward[s + 1] + after["F"][s + 1]
        rest_back = problem.backward[s] + after["I"][s]
        for replica in range(pipelines.count):
            count = micro_batches_of(pipelines, replica, micro_batches)
            down, up = pipeline.transfers[s][replica], pipeline.returns[s][replica]
            for resource in set(down.resources):
                carried[resource].append((first, count * down.occupancy, down.latency + rest))
            for resource in set(up.resources):
                carried[resource].append((first_back, count * up.occupancy, up.latency + rest_back))
    items = ([item for item in own if item[1]] for own in carried.values())
    return max((jackson(own) for own in items if own), default=0)


def _fastest_transfers(pipeline: Pipeline) -> Pipeline:
    """The pipeline with each boundary's shortest transfer for all replicas, on resources that are always free."""

    def least(transfers: tuple[Transfer, ...]) -> tuple[Transfer, ...]:
        shortest = Transfer(0, min(each.occupancy for each in transfers), min(each.latency for each in transfers))
        return (shortest,) * len(transfers)

    return replace(
        pipeline, transfers=tuple(map(least, pipeline.transfers)), returns=tuple(map(least, pipeline.returns))
    )


def _departure_delay(overlap: Overlap, time: int, transfer: Transfer) -> int:
    """Nanoseconds from the start of an F or I until its tensor may leave: 0 where it streams, else its duration.

    ``time`` is the instance's. Where devices wait while they send, it includes the tensor's occupancy.
    """
    if overlap is Overlap.STREAM:
        return 0
    return time - transfer.occupancy if overlap is Overlap.NONE else time
