"""From orders on a box's relaxation to a solution: what they really hold, and which backwards need not be split."""

from pipeplan_formulations.joint.instance import Choice, JointPipeline, Solution
from pipeplan_formulations.joint.relaxed import scheduled
from pipeplan_formulations.partition import Boundaries
from pipeplan_formulations.schedule import Op, Orders, evaluate


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
