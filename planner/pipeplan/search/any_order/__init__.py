"""Any order of actions at all: what ``--schedule any`` adds to the searched space.

::

    shapes of one width ──▶ AnyOrderNode ──▶ joint formulation: boxes of partitions, orders by CP-SAT
                                 │                  │
                                 ▼                  ▼
                           one bound a shape   orders ──▶ family "found" ──▶ judge (simulator) ──▶ incumbent
"""

from collections.abc import Iterator

from pipeplan.search.any_order.node import AnyOrderNode, equal_device_groups, order_lower_bound
from pipeplan.search.space.space import Space

__all__ = ["AnyOrderNode", "any_orders"]


def any_orders(space: Space) -> Iterator[AnyOrderNode]:
    """Every shape whose stages all have the same number of replicas, at every micro-batch size, under any order."""
    if not space.any_order:
        return
    for size in space.sizes:
        for groups in equal_device_groups(space, size):
            yield AnyOrderNode(order_lower_bound(space, size, groups), space, groups, size)
