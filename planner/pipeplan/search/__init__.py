"""Search for the best plan, with a proven bound.

::

    space ──▶ baselines (every heuristic's plan, by simulation) ──▶ incumbent
      │                                                                │
      ├──▶ device groups ──▶ families ──▶ path cuts ◀──────────────────┤ fathoms nodes that cannot beat it
      └──▶ bottleneck of a graph: one node per micro-batch size ◀──────┘
"""

from collections.abc import Iterator
from itertools import groupby

from pipeplan.core.job import Order
from pipeplan.schedules.family import alternates
from pipeplan.search.branch_and_bound import Node
from pipeplan.search.nodes.device_groups import DeviceGroupsNode, RemainingGroupsNode
from pipeplan.search.space.space import Space

__all__ = ["enumerates_groups", "root_nodes"]


def enumerates_groups(space: Space) -> bool:
    """Return True if the search enumerates all device groups; else it searches those of `nodes.aggregate_problem`."""
    return space.few or space.job.order is Order.GIVEN


def root_nodes(space: Space) -> Iterator[Node]:
    """Yield the root nodes: one per device groups and micro-batch size, or aggregate nodes where groups are many."""
    from pipeplan.search.graph import applies, graph_nodes

    if applies(space):
        yield from graph_nodes(space)
        return
    if space.few:
        for size in space.sizes:
            for groups, bound in space.device_groups(size):
                yield DeviceGroupsNode(bound, space, groups, size)
        return
    if space.job.order is Order.GIVEN:
        for size in space.sizes:
            yield RemainingGroupsNode(space.lower_bounds(size).evenly_shared(space.cluster), space, size)
        return
    from pipeplan.search.nodes.aggregate import AggregateNode, PlacementsNode  # only larger clusters need it
    from pipeplan.search.nodes.aggregate_problem import layout_lower_bound, layouts

    layers = len(space.model.layers)
    kinds = sorted({alternates(name) for name in space.schedules}, reverse=True)
    covered = True in kinds and space.phased  # 1F1B's problem bounds the others too, so large nodes solve it alone
    for size in space.sizes:
        for _, alike in groupby(layouts(space, space.job.batch // size), key=lambda layout: layout.unit):
            bounds = {layout: layout_lower_bound(space, size, layout) for layout in alike}
            known = {layout: bound for layout, bound in bounds.items() if bound is not None}
            for each in kinds:
                selected = [layout for layout in known if each or not covered or layout.small(layers)]
                placed = tuple(layout for layout in selected if len(layout.widths) == 1 and not layout.small(layers))
                if len(placed) > 1:
                    yield PlacementsNode(min(known[layout] for layout in placed), space, placed, size, each)
                rest = [layout for layout in selected if len(placed) < 2 or layout not in placed]
                yield from (AggregateNode(known[layout], space, layout, size, each) for layout in rest)
