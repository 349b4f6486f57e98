"""Models that are graphs: cut into stages along any downsets, not only along the listed order."""

from pipeplan.graph.node import applies, graph_nodes

__all__ = ["PARTITIONS", "applies", "graph_nodes"]

PARTITIONS = "any layers that read from no later stage, whatever the listed order; every layer once"
"""What is searched where the graph formulation applies."""
