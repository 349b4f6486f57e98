"""Searching for the best plan, and proving how good it is.

::

    space ──▶ baselines (every heuristic's plan, by simulation) ──▶ incumbent
      │                                                                │
      ├──▶ prove: shapes ──▶ families ──▶ path cuts ◀──────────────────┤ closes what cannot beat it
      └──▶ bottleneck of a graph: one question a micro-batch size ◀────┘
"""

from collections.abc import Iterator

from pipeplan.job import Objective, Order
from pipeplan.search.prove import Node
from pipeplan.search.shapes import ShapeNode
from pipeplan.search.space import Space

__all__ = ["opened"]


def opened(space: Space) -> Iterator[Node]:
    """What is open at the start: every shape at every micro-batch size, or lumps of shapes where there are many."""
    from pipeplan.graph import applies, graph_nodes

    if applies(space):
        yield from graph_nodes(space)
        return
    if space.few or space.job.order is Order.GIVEN or space.job.objective is Objective.BOTTLENECK:
        for size in space.sizes:
            for groups, bound in space.shapes(size):
                yield ShapeNode(bound, space, groups, size)
        return
    from pipeplan.search.layouts import floor, layouts  # only larger clusters need it
    from pipeplan.search.lumps import LumpNode

    kinds = {name.startswith("1f1b") for name in space.schedules}
    for size in space.sizes:
        for layout in layouts(space, space.job.batch // size):
            least = floor(space, size, layout)
            if least is not None:
                yield from (LumpNode(least, space, layout, size, each) for each in sorted(kinds, reverse=True))
