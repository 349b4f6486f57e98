"""The rows of PipeDream's ``graph.txt`` as a plain chain, nothing merged: for figures known of the raw rows."""

import heapq
from pathlib import Path

from chains import make_chain
from pipeplan.chain import Chain


def raw_chain(path: Path, devices: int, bandwidth: int | None = None) -> Chain:
    """Every node but the inputs, in topological order, the smallest node number first; times to the nanosecond."""
    rows: dict[str, dict[str, str]] = {}
    edges: list[tuple[str, str]] = []
    inputs = set()
    for line in path.read_text().splitlines():
        fields = line.strip().split(" -- ")
        if line.startswith("\t"):
            edges.append((fields[0], fields[1]))
        elif fields[1].startswith("Input"):
            inputs.add(fields[0])
        else:
            rows[fields[0]] = dict(part.split("=") for part in fields[2].split(", "))
    edges = [(a, b) for a, b in edges if a not in inputs]
    order = _topological(list(rows), edges)
    place = {node: i for i, node in enumerate(order)}
    reach = [max([place[b] for a, b in edges if a == node], default=i) for i, node in enumerate(order)]
    size = [_bytes(rows[node]["activation_size"]) for node in order]
    return make_chain(
        [_ns(rows[node]["forward_compute_time"]) for node in order],
        [_ns(rows[node]["backward_compute_time"]) for node in order],
        devices,
        parameters=[_bytes(rows[node]["parameter_size"]) for node in order],
        boundary=[sum(size[i] for i in range(c + 1) if reach[i] > c) for c in range(len(order) - 1)],
        bandwidth=bandwidth,
    )


def _topological(nodes: list[str], edges: list[tuple[str, str]]) -> list[str]:
    waiting = {node: sum(b == node for _, b in edges) for node in nodes}
    ready = [(int(node.removeprefix("node")), node) for node in nodes if waiting[node] == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        _, node = heapq.heappop(ready)
        order.append(node)
        for a, b in edges:
            if a == node:
                waiting[b] -= 1
                if waiting[b] == 0:
                    heapq.heappush(ready, (int(b.removeprefix("node")), b))
    return order


def _ns(milliseconds: str) -> int:
    return round(float(milliseconds) * 10**6)


def _bytes(text: str) -> int:
    return round(sum(float(part) for part in text.strip("[]").split("; ")))
