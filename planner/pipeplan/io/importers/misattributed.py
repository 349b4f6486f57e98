"""Backward time that a profiler booked on the wrong layer, as happens around recurrent layers of PipeDream's profiles.

The profiler takes the time between the gradient hooks of neighbouring modules. Around fused recurrent layers a hook
fires early or late, so part of one module's backward is booked on the next. The sums are right, the parts are not:

* a bidirectional LSTM with next to no backward time, behind an embedding with far too much;
* a last LSTM with several times its twins' backward time, ahead of a classifier with too little.
"""

from dataclasses import dataclass
from statistics import median

from pipeplan.io.importers.dag import reachable
from pipeplan.io.importers.pipedream_graph import Graph, GraphNode

STARVED = 0.25
"""A recurrent layer whose backward takes less than this fraction of its forward has lost backward time."""
GORGED = 2.0
"""One whose backward takes more than this many times its twins' median has gained some."""


@dataclass(frozen=True)
class Misbooked:
    """Two nodes between which time was booked wrongly, and all nodes on the ways between them, themselves included."""

    first: str
    last: str
    between: tuple[str, ...]
    why: str


def find_misbooked(graph: Graph) -> tuple[Misbooked, ...]:
    """Every such pair in a graph."""
    found = []
    for node in sorted(graph.nodes.values(), key=lambda node: node.number):
        if not _recurrent(node):
            continue
        if node.forward and node.backward < STARVED * node.forward:
            found += [_pair(graph, source, node) for source in _embeddings(graph, node)]
        ordinary = _twins(graph, node)
        if ordinary and node.backward > GORGED * ordinary:
            found += [_pair(graph, node, head) for head in _heads(graph, node)[:1]]
    return tuple(found)


def _recurrent(node: GraphNode) -> bool:
    head = node.what.partition("(")[0]
    return any(word in head for word in ("LSTM", "GRU", "RNN"))


def _embeddings(graph: Graph, node: GraphNode) -> list[GraphNode]:
    sources = [graph.nodes[a] for a, b in graph.edges if b == node.name]
    return [source for source in sources if source.what.startswith("Embedding") and source.backward > source.forward]


def _twins(graph: Graph, node: GraphNode) -> float:
    """Median backward time of the other nodes that are described by the same words; 0 where there are under two."""
    times = [other.backward for other in graph.nodes.values() if other.what == node.what and other is not node]
    return median(times) if len(times) > 1 else 0


def _heads(graph: Graph, node: GraphNode) -> list[GraphNode]:
    """Classifiers behind ``node`` whose backward takes less time than their forward, which it never does."""
    after: dict[str, list[str]] = {name: graph.readers(name) for name in graph.nodes}
    found = reachable(node.name, after)
    behind = [graph.nodes[name] for name in found]
    heads = [
        other
        for other in behind
        if other.what.startswith(("Classifier", "Linear")) and other.parameters and other.backward < other.forward
    ]
    return sorted(heads, key=lambda other: other.number)


def _pair(graph: Graph, first: GraphNode, last: GraphNode) -> Misbooked:
    after: dict[str, list[str]] = {name: graph.readers(name) for name in graph.nodes}
    before: dict[str, list[str]] = {name: [] for name in graph.nodes}
    for a, b in graph.edges:
        before[b].append(a)
    behind, ahead = reachable(first.name, after), reachable(last.name, before)
    ordered = tuple(sorted(behind & ahead, key=lambda name: graph.nodes[name].number))
    times = " and ".join(
        f"{node.name} ({node.what.partition('(')[0]}: forward {node.forward / 1e6:.3f} ms, "
        f"backward {node.backward / 1e6:.3f} ms)"
        for node in (first, last)
    )
    return Misbooked(first.name, last.name, ordered, f"between {times}")
