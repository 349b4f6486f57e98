"""Search over models that are graphs: stages are differences of any downsets, not only of the listed order."""

from pipeplan.search.graph.node import applies, graph_nodes

__all__ = ["applies", "graph_nodes"]
