"""Published loads, counted from the files themselves, without code of the formulation or the importers."""

import json
from collections import defaultdict
from math import ceil
from pathlib import Path
from typing import Any

Placed = list[tuple[str, tuple[str, ...]]]
"""For every stage in order, its device class and the ids of its operators."""


def dnn_partitioning_loads(path: Path, stages: Placed, factor: float = 1.0) -> list[float]:
    """Milliseconds of each stage; asserts that every operator is placed, the order and the memory."""
    data = json.loads(path.read_text())
    nodes = {node["id"]: node for node in data["nodes"]}
    place = {int(i): s for s, (_, ids) in enumerate(stages) for i in ids}
    assert set(place) == set(nodes)
    by_color: dict[int, int] = {}
    for i, node in nodes.items():
        color = node.get("colorClass")
        assert color is None or place[i] == by_color.setdefault(color, place[i]), f"{i} lies apart from its colour"
    for edge in data["edges"]:
        ends = nodes[edge["sourceId"]], nodes[edge["destId"]]
        if not any(end["isBackwardNode"] for end in ends):
            assert place[edge["sourceId"]] <= place[edge["destId"]]
    loads = []
    for s, (kind, _) in enumerate(stages):
        own = [node for i, node in nodes.items() if place[i] == s]
        if kind == "processor":
            loads.append(sum(node["cpuLatency"] for node in own))
            continue
        assert sum(node["size"] for node in own) <= data["maxSizePerFPGA"] + 1
        crossing = {
            edge["sourceId"]: edge["cost"] * factor
            for edge in data["edges"]
            if (place[edge["sourceId"]] == s) != (place[edge["destId"]] == s)
        }
        loads.append(sum(node["fpgaLatency"] for node in own) + sum(crossing.values()))
    return loads


def pipedream_loads(path: Path, stages: list[tuple[int, tuple[str, ...]]], bandwidth: float = 1e9) -> list[float]:
    """Milliseconds of each stage with its replicas; asserts that every node is placed, in order."""
    nodes, edges = _pipedream(path)
    place = {name: s for s, (_, names) in enumerate(stages) for name in names}
    assert set(place) == set(nodes)
    assert all(place[a] <= place[b] for a, b in edges)
    loads = []
    for s, (m, names) in enumerate(stages):
        time = sum(nodes[name]["forward_compute_time"] + nodes[name]["backward_compute_time"] for name in names)
        gradients = sum(nodes[name]["parameter_size"] for name in names) / bandwidth * 1e3
        before = {a for a, b in edges if place[a] < s <= place[b]}
        behind = {a for a, b in edges if place[a] <= s < place[b]}
        sent = [2e3 * sum(nodes[a]["activation_size"] for a in tensors) / bandwidth for tensors in (before, behind)]
        loads.append(max((time + 4 * (m - 1) * gradients / m) / m, *(each / m for each in sent)))
    return loads


def _pipedream(path: Path) -> tuple[dict[str, dict[str, float]], list[tuple[str, str]]]:
    nodes: dict[str, dict[str, float]] = {}
    edges = []
    for line in path.read_text().splitlines():
        parts = [part.strip() for part in line.split(" -- ")]
        if len(parts) == 2:
            edges.append((parts[0], parts[1]))
        elif not parts[1].startswith("Input"):
            fields = dict(field.strip().split("=") for field in parts[2].split(", "))
            sizes = fields["activation_size"].strip("[]").split(";")
            nodes[parts[0]] = {key: float(value) for key, value in fields.items() if key != "activation_size"}
            nodes[parts[0]]["activation_size"] = sum(map(float, sizes))
    return nodes, [(a, b) for a, b in edges if a in nodes and b in nodes]


def piper_loads(path: Path, stages: list[dict[str, Any]], devices: int, memory: int, bandwidth: float) -> list[float]:
    """Seconds per sample of each stage (``replicas``, ``degree``, ``variants``: name → variant).

    Asserts order, memory, and the number of devices.
    """
    data = json.loads(path.read_text())
    nodes = {str(node["id"]): node["TMPCs"] for node in data["nodes"]}
    place = {name: s for s, stage in enumerate(stages) for name in stage["variants"]}
    assert set(place) == set(nodes)
    assert sum(stage["replicas"] * stage["degree"] for stage in stages) <= devices
    crossing: dict[int, float] = defaultdict(float)
    for edge in data["edges"]:
        a, b = str(edge["sourceId"]), str(edge["destId"])
        assert place[a] <= place[b]
        if place[a] != place[b]:
            one = nodes[a][str(stages[place[a]]["degree"])][0]["syncTimeBw"].get(b, 0.0)
            other = nodes[b][str(stages[place[b]]["degree"])][0]["syncTimeFw"].get(a, 0.0)
            crossing[place[a]] += 2 * (edge["communicationCost"] + one)
            crossing[place[b]] += 2 * (edge["communicationCost"] + other)
    loads, batch = [], data["mbsInBatch"]
    for s, stage in enumerate(stages):
        d = stage["replicas"]
        assert batch % d == 0
        rows = [
            next(row for row in nodes[name][str(stage["degree"])] if row["id"] == variant)
            for name, variant in stage["variants"].items()
        ]
        flying = ceil(sum(later["replicas"] for later in stages[s:]) / d)
        assert sum(flying * row["memoryUsageA"] + row["memoryUsageB"] for row in rows) <= memory + len(rows)
        gradients = sum(4 * (d - 1) * row["parameterSize"] / d / batch for row in rows)
        loads.append(sum(row["timePerSample"] for row in rows) / d + (crossing[s] / d + gradients) / bandwidth)
    return loads
