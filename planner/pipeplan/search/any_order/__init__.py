"""Search over all orders of actions: the part of the searched space that ``--schedules any`` adds.

::

    equal device groups ──▶ AnyOrderNode ──▶ joint formulation: boxes of partitions, orders by CP-SAT
                                 │                  │
                                 ▼                  ▼
                          one bound per node   orders ──▶ family "found" ──▶ simulator ──▶ incumbent
"""

from collections.abc import Iterator

from pipeplan.search.any_order.node import AnyOrderNode, equal_device_groups, order_lower_bound
from pipeplan.search.space.space import Space

__all__ = ["AnyOrderNode", "any_orders"]


def any_orders(space: Space) -> Iterator[AnyOrderNode]:
    """Yield nodes of any order: all device groups with equally many replicas per stage, at every micro-batch size."""
    if not space.any_order:
        return
    for size in space.sizes:
        for groups in equal_device_groups(space, size):
            yield AnyOrderNode(order_lower_bound(space, size, groups), space, groups, size)
