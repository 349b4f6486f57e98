"""Rows of PipeDream's ``graph.txt`` as a plain chain, for figures known of all rows except the inputs."""

from pathlib import Path

from helpers.chains import make_chain
from pipeplan.costs.chain import Chain
from pipeplan.io.importers.dag import topological
from pipeplan.io.importers.pipedream_graph import parse_graph


def raw_chain(path: Path, devices: int, bandwidth: int | None = None) -> Chain:
    """Chain of every node except the inputs, zero-time nodes too, in topological order, smallest number first."""
    graph = parse_graph(path.read_text(encoding="utf-8"), path.name)
    graph = graph.without(name for name, node in graph.nodes.items() if node.what.startswith("Input"))
    order = topological(graph.nodes, graph.edges, rank=lambda name: graph.nodes[name].number)
    nodes = [graph.nodes[name] for name in order]
    place = {name: i for i, name in enumerate(order)}
    last_reader = [max((place[reader] for reader in graph.readers(name)), default=0) for name in order]
    size = [sum(node.outputs) for node in nodes]
    return make_chain(
        [node.forward for node in nodes],
        [node.backward for node in nodes],
        devices,
        parameters=[node.parameters for node in nodes],
        boundary=[sum(size[i] for i in range(c + 1) if last_reader[i] > c) for c in range(len(nodes) - 1)],
        bandwidth=bandwidth,
    )
