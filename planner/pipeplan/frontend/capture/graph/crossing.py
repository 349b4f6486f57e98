"""Minimum cuts: the fewest bytes that must be sent at a place, from which everything behind it can be computed.

Values of work are sent unchanged. A view, or a value that depends on the batch only, is either sent itself or computed
again from something smaller. So the choice at each place is a minimum cut between the available and the wanted values,
with a capacity of each node equal to its bytes. Of several minimum cuts the one nearest to the source is taken: then
the tensors sent at a later place can always be computed from those sent at an earlier one.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from torch import fx

from pipeplan.frontend.capture.graph.sorts import Sort, Sorted, size_of

Node = TypeVar("Node", bound=Hashable)


class Crossings:
    """Nodes whose values are sent at each place.

    Parameters
    ----------
    results : iterable of torch.fx.Node
        Outputs of the model, wanted behind every place.
    """

    def __init__(self, graph: fx.Graph, nodes: Sorted, results: Iterable[fx.Node]) -> None:
        self._nodes = nodes
        self._first: dict[fx.Node, int] = {}  # the first place behind the node, where its value is available
        self._last: dict[fx.Node, int] = {}  # the last place ahead of a reader of the node
        self._known: dict[int, tuple[fx.Node, ...]] = {}
        returned, unit = set(results), nodes.unit
        for node in graph.nodes:
            if node.op == "output" or nodes.sort[node] in (Sort.CONSTANT, Sort.HELD):
                continue
            made = max((self._first[parent] for parent in nodes.parents(node)), default=0)
            self._first[node] = unit[node] + 1 if node in unit else made
            readers = [unit[user] for user in node.users if user in unit and unit[user] != unit.get(node)]
            self._last[node] = len(nodes.units) if node in returned else max(readers, default=-1)
        self._size = {node: size_of(node) for node in self._first}

    def at(self, place: int) -> tuple[fx.Node, ...]:
        """Nodes to send if the graph is cut ahead of unit ``place``, in the graph's order."""
        if place not in self._known:
            wanted = [node for node in self._first if self._first[node] <= place <= self._last[node]]
            if any(self._nodes.parents(node) for node in wanted):
                chosen = fewest_bytes(wanted, self._nodes.parents, self._size)
                wanted = [node for node in self._first if node in chosen]
            self._known[place] = tuple(wanted)
        return self._known[place]


def fewest_bytes(
    wanted: Collection[Node],
    parents: Callable[[Node], Sequence[Node]],
    size: Mapping[Node, int | None],
) -> set[Node]:
    """Minimum cut, nearest to the source, between nodes without parents and wanted nodes (Ford and Fulkerson).

    Parameters
    ----------
    size : mapping
        Bytes of each node; None for a node that cannot be sent.
    """
    # inside: the wanted nodes and all their ancestors
    inside, waiting = set[Node](), list(wanted)
    while waiting:
        node = waiting.pop()
        if node not in inside:
            inside.add(node)
            waiting += parents(node)
    # room[a][b]: residual capacity; each node is an arc (node, 0) → (node, 1) of its bytes, other arcs are unlimited
    endless = 1 + sum(size[node] or 0 for node in inside)
    room: dict[Hashable, dict[Hashable, int]] = defaultdict(dict)

    def pipe(a: Hashable, b: Hashable, width: int) -> None:
        room[a][b] = width
        room[b].setdefault(a, 0)

    for node in inside:
        width = size[node]
        pipe((node, 0), (node, 1), endless if width is None else width)
        if not parents(node):
            pipe("source", (node, 0), endless)
        for parent in parents(node):
            pipe((parent, 1), (node, 0), endless)
    for node in wanted:
        pipe((node, 1), "sink", endless)
    # augment along shortest paths; the saturated node arcs at the end of the reached part are the minimum cut
    while True:
        before = _reached(room)
        if "sink" not in before:
            return {node for node in inside if (node, 0) in before and (node, 1) not in before}
        steps = []
        point: Hashable = "sink"
        while point != "source":
            steps.append((before[point], point))
            point = before[point]
        flow = min(room[a][b] for a, b in steps)
        for a, b in steps:
            room[a][b] -= flow
            room[b][a] += flow


def _reached(room: Mapping[Hashable, Mapping[Hashable, int]]) -> dict[Hashable, Hashable]:
    """Points that the source reaches in the residual graph, each with its predecessor on a shortest path."""
    before: dict[Hashable, Hashable] = {"source": "source"}
    queue: list[Hashable] = ["source"]
    for point in queue:
        for beyond, left in room[point].items():
            if left > 0 and beyond not in before:
                before[beyond] = point
                queue.append(beyond)
    return before
