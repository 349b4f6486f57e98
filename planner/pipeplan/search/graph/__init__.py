"""Models that are graphs: cut into stages along any downsets, not only along the listed order."""

from pipeplan.search.graph.node import applies, graph_nodes

__all__ = ["applies", "graph_nodes"]
