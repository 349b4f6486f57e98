"""A partition whose relaxation is solved, but not exact: two boxes that tell its choices apart.

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
from pipeplan_formulations.joint.finished import most_in_flight
from pipeplan_formulations.joint.instance import JointPipeline
from pipeplan_formulations.schedule import Orders


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
