"""Parser of PipeDream's ``graph.txt`` to a graph (Narayanan et al., SOSP 2019, and its published profiler).

::

    node2 -- Conv2d(3, 64, …) -- forward_compute_time=22.307, backward_compute_time=24.613, activation_size=…, …
    <tab>node1 -- node2

Lines come in any order. Times are milliseconds for the whole profiled mini-batch, sizes are bytes; a module with
several outputs lists their sizes as ``[x; y]``. The activation size is that of the output.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from pipeplan.core.errors import InputError
from pipeplan.core.figures import LARGEST
from pipeplan.io.schema import listing
from pipeplan_formulations.common.sentinels import UNLIMITED

_DIGITS = 18
"""Number of digits of a creation number that are used."""
_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")


@dataclass(frozen=True)
class GraphNode:
    """One line of the file: nanoseconds for the mini-batch, bytes; ``outputs`` holds one size for each output."""

    name: str
    what: str
    forward: int
    backward: int
    outputs: tuple[int, ...]
    parameters: int

    @property
    def number(self) -> tuple[int, str]:
        """Creation number, ``k`` of ``node<k>``: the tie-breaker of the topological order."""
        match = re.search(r"(\d+)$", self.name)
        return (int(match[1][:_DIGITS]) if match else UNLIMITED, self.name)


@dataclass(frozen=True)
class Graph:
    """Nodes and edges of a file."""

    nodes: dict[str, GraphNode]
    edges: tuple[tuple[str, str], ...]

    def readers(self, name: str) -> list[str]:
        """Return the nodes that read ``name``."""
        return [b for a, b in self.edges if a == name]

    def without(self, names: Iterable[str]) -> "Graph":
        """Return the graph without some nodes and their edges."""
        gone = set(names)
        return Graph(
            {name: node for name, node in self.nodes.items() if name not in gone},
            tuple((a, b) for a, b in self.edges if a not in gone and b not in gone),
        )


def parse_graph(text: str, name: str) -> Graph:
    """Parse the nodes and edges of the text; raise an InputError that names every invalid line."""
    nodes: dict[str, GraphNode] = {}
    edges: list[tuple[str, str]] = []
    complaints: list[str] = []
    where: dict[tuple[str, str], int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        parts = [part.strip() for part in line.split(" -- ")]
        try:
            if not line.strip():
                continue
            if len(parts) == 2:
                edge = (parts[0], parts[1])
                where.setdefault(edge, number)
                edges.append(edge)
            elif len(parts) in (3, 4):
                node = _node(*parts[:3])
                if node.name in nodes:
                    raise InputError(f"{node.name} was described before")
                nodes[node.name] = node
            else:
                raise InputError("neither 'node -- what -- costs' nor '<tab>node -- node'")
        except InputError as error:
            complaints.append(f"line {number}: {error}")
    complaints += [
        f"line {where[edge]}: no line describes {end}"
        for edge in dict.fromkeys(edges)
        for end in edge
        if end not in nodes
    ]
    if complaints or not nodes:
        raise InputError(listing(name, complaints or ["no line describes a node"]))
    return Graph(nodes, tuple(dict.fromkeys(edges)))


def _node(name: str, what: str, costs: str) -> GraphNode:
    fields = dict(field.strip().partition("=")[::2] for field in costs.split(","))
    missing = [field for field in _FIELDS if field not in fields]
    if missing:
        raise InputError(f"{name} has no {', '.join(missing)}")
    sizes = fields["activation_size"].strip("[] ").split(";")
    return GraphNode(
        name=name,
        what=what,
        forward=_whole(fields["forward_compute_time"], 10**6),
        backward=_whole(fields["backward_compute_time"], 10**6),
        outputs=tuple(_whole(size, 1) for size in sizes),
        parameters=_whole(fields["parameter_size"], 1),
    )


def _whole(text: str, factor: int) -> int:
    try:
        value = Decimal(text.strip()) * factor
        if value < 0:
            raise InputError(f"{text.strip()!r} is below zero")
        if value > LARGEST:
            raise InputError(f"{text.strip()[:40]!r} is too large")
        return round(value)
    except (InvalidOperation, ValueError, OverflowError):
        raise InputError(f"{text.strip()!r} is not a number") from None
