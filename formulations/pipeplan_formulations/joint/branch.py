"""Branching on one partition: the solution of given orders, and boxes that split the open counts and splits.

With k in flight a stage recomputes for a time c(k). A box of counts is relaxed to the room of its largest count and the
c of its smallest. Orders that solve the relaxation may hold a k with a larger c(k). Let k' be the least count with
c(k') = c(k): either the stage has room for fewer than k', or it recomputes at least c(k').

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
    """Sub-boxes of a partition's box, for orders that solve its relaxation but have a larger value.

    No boxes if nothing is left to choose.
    """
    # held: in-flight counts of the orders; extra: recomputation time that the relaxation leaves out.
    spans = [(s, a, b) for s, (a, b) in enumerate(zip(point.low, point.low[1:], strict=False))]
    held = [
        max(fewest, most_in_flight(order, split is not False))
        for order, fewest, split in zip(orders, point.fewest, point.split, strict=True)
    ]
    extra = [
        problem.recomputation(*span, k) - problem.recomputation(*span, point.fewest[span[0]])
        for span, k in zip(spans, held, strict=True)
    ]
    s = max(range(problem.stages), key=extra.__getitem__)
    if extra[s] > 0:
        count = held[s]
        while problem.recomputation(*spans[s], count - 1) == problem.recomputation(*spans[s], count):
            count -= 1
        yield replace(point, most=put(point.most, s, count - 1))
        yield replace(point, fewest=put(point.fewest, s, count))
        return
    for s, a, b in spans:
        if point.split[s] is None and not problem.split_is_free(s, a, b):
            for own in (True, False):
                yield replace(point, split=(*point.split[:s], own, *point.split[s + 1 :]))
            return


def finished(problem: JointPipeline, boundaries: Boundaries, orders: Orders) -> tuple[int, Solution] | None:
    """Value and solution of a partition with the orders of one data-parallel lane; None if it does not fit.

    The in-flight count of a stage is exactly that of its list, which recomputes least. Its backwards are joined if that
    costs no time.
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
    """Largest number of micro-batches of a device's only stage between a forward's start and the end of W (or B)."""
    last = "W" if split else "I"
    held = most = 0
    for op in order:
        held += (op.kind == "F") - (op.kind == last)
        most = max(most, held)
    return most
