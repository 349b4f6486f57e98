"""Critical paths of 1F1B as visits to devices, and path cuts that hold for all in-flight counts of a box.

::

    k = 2       F0 F1 B0 F2 B1 F3 B2 F4 B3 B4        B0 … B2: for k = 2 they include F2 and F3,
    k = 3       F0 F1 F2 B0 F3 B1 F4 B2 B3 B4        for k = 3 F3 and F4, so for both F3

A path enters a device with an action, leaves it with a later one, and goes on with a tensor: a *visit*. Tensors do not
depend on in-flight counts, but the order of a device's actions does: F(i) comes after B(i − k), and B(j) after
F(j + k − 1). What lies between the ends of a visit for every k of a box is certain to run there. A path that counts
these actions only is an inequality for all partitions and all counts of the box. If the order of a visit's ends
depends on k, there is none.

Index: path cuts in a box → `VisitedPath.within`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Kind, Schedule
from pipeplan.core.timeline import Span, TransferSpan
from pipeplan.search.path_cuts import Surplus, as_cut
from pipeplan.simulate import longest_path
from pipeplan_formulations.partition import PathCut


class Visit(NamedTuple):
    """A path's actions on one device, from the first to the last.

    Attributes
    ----------
    stage : int
    many : int
        Micro-batches of the replica. ``start`` and ``end`` count these from 0.
    from_forward, to_forward : bool
        Whether the first and the last action are forwards.
    start, end : int
        Their micro-batches.
    """

    stage: int
    many: int
    from_forward: bool
    start: int
    to_forward: bool
    end: int

    def certain(self, low: int, high: int) -> tuple[int, int] | None:
        """Return the forwards and backwards of the visit with any ``low`` ≤ k ≤ ``high``; None if it may not exist."""
        low, high = min(low, self.many), min(high, self.many)
        last = self.many - 1
        if self.from_forward and not self.to_forward and self.start > min(self.end + low - 1, last):
            return None
        if not self.from_forward and self.to_forward and self.end < self.start + high:
            return None
        # The first and the last forward and backward that lie in the visit for every k.
        first_forward = self.start if self.from_forward else self.start + high
        last_forward = self.end if self.to_forward else min(self.end + low - 1, last)
        first_backward = max(0, self.start - low + 1) if self.from_forward else self.start
        last_backward = self.end - high if self.to_forward else self.end
        return max(0, last_forward - first_forward + 1), max(0, last_backward - first_backward + 1)


@dataclass(frozen=True)
class VisitedPath:
    """The critical path of a 1F1B schedule: its visits, and ``cut`` with everything else that it counts."""

    visits: tuple[Visit, ...]
    cut: PathCut

    def within(self, low: Sequence[int], high: Sequence[int]) -> PathCut | None:
        """Return the path cut for all counts between ``low`` and ``high``, per stage; None if there is none."""
        forward, backward = list(self.cut.forward), list(self.cut.backward)
        for visit in self.visits:
            counts = visit.certain(low[visit.stage], high[visit.stage])
            if counts is None:
                return None
            forward[visit.stage] += counts[0]
            backward[visit.stage] += counts[1]
        return replace(self.cut, forward=tuple(forward), backward=tuple(backward))


def find_visited_path(
    schedule: Schedule, pipeline: Pipeline, surplus: Surplus, *, to: int | None = None
) -> VisitedPath:
    """Simulate 1F1B lists with ``share=False`` and return the critical path; devices must compute while they send.

    ``surplus`` and ``to``: see `path_cuts.find_path_cut`.
    """
    pipeline = pipeline.without_gathers()
    critical = longest_path(schedule, pipeline, share=False, to=to)
    cut = as_cut(critical, pipeline, schedule, surplus)
    shares = [sum(action.kind is Kind.FORWARD for action in order) for order in schedule.orders]
    visits = []
    for computes, group in groupby(critical, key=_computes):
        if not computes:
            continue
        spans = [item for item in group if isinstance(item, Span)]
        stage, replicas = spans[0].action.stage, pipeline.replicas[spans[0].action.stage]
        (forward, start), (to_forward, end) = (
            (each.action.kind is Kind.FORWARD, each.action.micro_batch // replicas) for each in (spans[0], spans[-1])
        )
        visits.append(Visit(stage, shares[spans[0].device], forward, start, to_forward, end))
    nothing = (0,) * len(pipeline.stages)
    return VisitedPath(tuple(visits), replace(cut, forward=nothing, backward=nothing))


def _computes(item: Span | TransferSpan) -> bool:
    return isinstance(item, Span) and item.action.kind.per_micro_batch
