"""Any order of actions at all: what ``--schedule any`` adds to the searched space.

::

    shapes of one width ──▶ AnyOrderNode ──▶ joint formulation: boxes of partitions, orders by CP-SAT
                                 │                  │
                                 ▼                  ▼
                           one bound a shape   orders ──▶ family "found" ──▶ judge (simulator) ──▶ incumbent
"""

from collections.abc import Iterator

from pipeplan.search.any_order.node import AnyOrderNode
from pipeplan.search.any_order.shapes import floor, shapes
from pipeplan.search.space import Space

__all__ = ["ANY_ORDER", "UNEQUAL", "AnyOrderNode", "any_orders"]

ANY_ORDER = (
    "any order, one width: every order of one lane a device, backwards split or joined stage by stage, where all "
    "stages have the same number of replicas; elsewhere the other schedules listed"
)
"""What is searched."""
UNEQUAL = "orders outside the listed families on stages of unequal widths, or of several stages a device"
"""What is not."""


def any_orders(space: Space) -> Iterator[AnyOrderNode]:
    """Every shape whose stages all have the same number of replicas, at every micro-batch size, under any order."""
    if not space.any_order:
        return
    for size in space.sizes:
        for groups in shapes(space, size):
            yield AnyOrderNode(floor(space, size, groups), space, groups, size)
