"""Search for the best plan, with a proven bound.

::

    space ──▶ baselines (every heuristic's plan, by simulation) ──▶ incumbent
      │                                                                │
      ├──▶ device groups ──▶ families ──▶ path cuts ◀──────────────────┤ fathoms nodes that cannot beat it
      └──▶ bottleneck of a graph: one node per micro-batch size ◀──────┘
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import TYPE_CHECKING

from pipeplan.core.job import SHARDED, Order
from pipeplan.schedules.family import alternates
from pipeplan.search.branch_and_bound import Node
from pipeplan.search.graph.reach import applies
from pipeplan.search.nodes.device_groups import RemainingGroupsNode
from pipeplan.search.nodes.row_tables import bounds_rows
from pipeplan.search.nodes.rows import RowsNode
from pipeplan.search.nodes.shapes import ShapesNode
from pipeplan.search.regimes import REGIMES
from pipeplan.search.space.mixed import MixedSpace
from pipeplan.search.space.space import Space

if TYPE_CHECKING:
    from pipeplan.search.nodes.layouts import Layout

__all__ = [
    "any_order_nodes",
    "enumerates_groups",
    "least_shared",
    "mixed_nodes",
    "nodes_of",
    "root_nodes",
    "searches_locally",
]


def enumerates_groups(space: Space) -> bool:
    """Return True if the search enumerates all device groups; else it searches those of `nodes.layouts`.

    No aggregate node bounds split backwards, whose weight gradients delay no other stage.
    """
    whole = space.unfolding is None
    return _lists_shapes(space) or space.few or space.splits or space.job.order is Order.GIVEN or not whole


def _lists_shapes(space: Space) -> bool:
    """Return True if all pairs of a shape and a partition are listed; sharded stages have few shapes as it is."""
    turns = space.unfolding is not None and space.unfolding.laid.turns  # whose services have times of their own
    return space.small and space.job.level < SHARDED and not space.splits and not turns


def searches_locally(space: Space) -> bool:
    """Return True if shapes and partitions are so many that plans near those found are tried as well."""
    listed = (space.small and not space.splits) or space.job.order is Order.GIVEN
    return space.job.objective.simulated and not listed and not applies(space) and space.unfolding is None


def root_nodes(space: Space) -> Iterator[Node]:
    """Yield the root nodes: one per device groups and micro-batch size, or aggregate nodes where groups are many."""
    if applies(space):
        from pipeplan.search.graph.node import graph_nodes  # only graphs need it

        yield from graph_nodes(space)
        return
    if space.unfolding is not None and (bounds_rows(space) or not _lists_shapes(space)):
        for size in space.sizes:
            least = least_shared(space, size)
            rows = space.few or bounds_rows(space)
            yield RowsNode(least, space, size) if rows else RemainingGroupsNode(least, space, size, early=False)
        return
    if _lists_shapes(space):
        for size in space.sizes:
            yield ShapesNode(space.lower_bounds(size).evenly_shared(space.cluster), space, size)
        return
    if space.few:
        for size in space.sizes:
            yield RowsNode(space.lower_bounds(size).of_any(space.cluster), space, size)
        if space.job.objective.simulated and not space.small:  # of whose rows the best one is tried at once
            yield from _first_plans(space, _bounds_of_layouts(space))
        return
    if space.splits or space.job.order is Order.GIVEN:
        for size in space.sizes:
            yield RemainingGroupsNode(space.lower_bounds(size).evenly_shared(space.cluster), space, size)
        return
    bound = _bounds_of_layouts(space)
    yield from _first_plans(space, bound)
    yield from _aggregate_nodes(space, bound)


def least_shared(space: Space, size: int) -> int:
    """A cheap lower bound in nanoseconds on plans with several stages of a device, or of any number of replicas."""
    bounds = space.lower_bounds(size)
    if not space.evenly or not space.listed.replicas or len(space.classes) > 1:
        return bounds.evenly_shared(space.cluster)
    name, many = space.classes[0].kind.name, len(space.cluster.devices)
    return min(bounds.of_equal_stages({name: many // r}, r) for r in space.listed.replicas)


def any_order_nodes(space: Space) -> Iterator[Node]:
    """Yield the nodes of any order of actions, if a job asks for them."""
    if space.any_order:
        from pipeplan.search.any_order import any_orders  # few jobs do

        yield from any_orders(space)


def mixed_nodes(space: MixedSpace) -> Iterator[Node]:
    """Yield the root nodes of all mixes: aggregate nodes of pooled layouts."""
    if space.ways != ():
        yield from _aggregate_nodes(space, _bounds_of_layouts(space))


def _bounds_of_layouts(space: Space) -> "Callable[[int, Layout], int | None]":
    """Return a function of micro-batch size and layout: their cheap lower bound, made once."""
    from pipeplan.search.nodes.aggregate_problem import layout_lower_bound  # only larger clusters need it

    return cache(partial(layout_lower_bound, space))


def _aggregate_nodes(space: Space, bound: "Callable[[int, Layout], int | None]") -> Iterator[Node]:
    """Yield the aggregate nodes of all layouts, for each kind of families."""
    from pipeplan.search.nodes.aggregate import AggregateNode, TargetSchedule  # only larger clusters need it
    from pipeplan.search.nodes.layouts import layouts

    layers = len(space.model.layers)
    kinds = sorted({alternates(name) for name in space.schedules}, reverse=True)
    covered = True in kinds and space.phased  # 1F1B's problem bounds the others too, so it is solved alone
    for size in space.sizes:
        bounds = {layout: bound(size, layout) for layout in layouts(space, space.job.batch // size)}
        small = all(layout.small(layers) for layout in bounds)
        for each in kinds:
            for layout, least in bounds.items():
                if least is not None and (each or not covered or layout.by_family(layers)):
                    targets = None if small else TargetSchedule()
                    yield AggregateNode(least, space, layout, size, each, targets=targets)


def nodes_of(spaces: Iterable[Space]) -> Iterator[Node]:
    """Yield the root nodes of all spaces; those that are bounded together first (`Node.joins`) come last."""
    alike = []
    for space in spaces:
        for node in root_nodes(space):
            if node.joins:
                alike.append(node)
            else:
                yield node
    if alike:
        from pipeplan.search.nodes.joined_spaces import joined  # only teams on larger clusters need it

        yield from joined(alike)


def _first_plans(space: Space, bound: "Callable[[int, Layout], int | None]") -> Iterator[Node]:
    """Yield the nodes that only find plans, unless the cluster is so large that each takes seconds."""
    from pipeplan.search.nodes.first_plans import FirstPlansNode
    from pipeplan.search.nodes.layouts import packed_layouts

    if len(space.cluster.devices) > REGIMES.first_plans_devices.most:
        return
    alternating = any(map(alternates, space.schedules))
    for size in space.sizes:
        for layout in packed_layouts(space, space.job.batch // size):
            least = bound(size, layout)
            if least is not None:
                yield FirstPlansNode(least, space, size, layout, alternating)
