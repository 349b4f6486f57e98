"""Orders on a partition: the solution that they make, and boxes that branch on what its relaxation leaves open.

With k in flight a stage recomputes c(k), and a box of counts is relaxed to the room of its most and the c of its
fewest. Orders that solve that may hold k for which c(k) is more. Let k' be the least count that costs as much: either
the stage has room for fewer than k', or it recomputes c(k') at least.

::

    c(k)              ┌──────
              ┌───────┘ k
         ─────┘ k'              fewest … k' − 1  │  k' … most
"""

from collections.abc import Iterator
from dataclasses import replace

from pipeplan_formulations.joint.box import Box, put
from pipeplan_formulations.joint.instance import Choice, JointPipeline, Solution
from pipeplan_formulations.joint.relaxed import scheduled
from pipeplan_formulations.partition import Boundaries
from pipeplan_formulations.schedule import Op, Orders, evaluate


def branches(problem: JointPipeline, point: Box, orders: Orders) -> Iterator[Box]:
    """Boxes that make up that of a partition, where the orders that solve its relaxation are worth more than it says.

    None if there is nothing left to choose.
    """
    spans = [(s, a, b) for s, (a, b) in enumerate(zip(point.low, point.low[1:], strict=False))]
    held = [
        max(fewest, most_in_flight(order, split is not False))
        for order, fewest, split in zip(orders, point.fewest, point.split, strict=True)
    ]
    extra = [
        problem.again(*span, k) - problem.again(*span, point.fewest[span[0]])
        for span, k in zip(spans, held, strict=True)
    ]
    s = max(range(problem.stages), key=extra.__getitem__)
    if extra[s] > 0:
        count = held[s]
        while problem.again(*spans[s], count - 1) == problem.again(*spans[s], count):
            count -= 1
        yield replace(point, most=put(point.most, s, count - 1))
        yield replace(point, fewest=put(point.fewest, s, count))
        return
    for s, a, b in spans:
        if point.split[s] is None and not problem.costless(s, a, b):
            for own in (True, False):
                yield replace(point, split=(*point.split[:s], own, *point.split[s + 1 :]))
            return


def finished(problem: JointPipeline, boundaries: Boundaries, orders: Orders) -> tuple[int, Solution] | None:
    """The solution that orders of one micro-batch row make of a partition, and its value.

    A stage gets room for the micro-batches that its list holds, no more: that recomputes least. Its backwards are
    joined where that costs nothing. None if it does not fit.
    """
    split = tuple(any(op.kind == "W" for op in order) for order in orders)
    best = _valued(problem, boundaries, orders, split)
    for s, own in enumerate(split):
        if not own:
            continue
        joined = tuple(
            tuple(op for op in order if op.kind != "W") if d == s else order for d, order in enumerate(orders)
        )
        other = _valued(problem, boundaries, joined, (*split[:s], False, *split[s + 1 :]))
        if other is not None and (best is None or other[0] <= best[0]):
            best, orders, split = other, joined, other[1][0].split
    return best


def _valued(
    problem: JointPipeline, boundaries: Boundaries, orders: Orders, split: tuple[bool, ...]
) -> tuple[int, Solution] | None:
    choice = Choice(boundaries, tuple(map(most_in_flight, orders, split)), split)
    instance = scheduled(problem, choice)
    value = None if instance is None else evaluate(instance, orders)
    return None if value is None else (value, (choice, orders))


def most_in_flight(order: tuple[Op, ...], split: bool) -> int:
    """The most micro-batches of a device's one stage between a forward's start and the end of their W (or B)."""
    last = "W" if split else "I"
    held = most = 0
    for op in order:
        held += (op.kind == "F") - (op.kind == last)
        most = max(most, held)
    return most
