"""PipeDream's partition problem with replicated stages (Narayanan et al., SOSP 2019, section 3.1, and its code).

Let T be the time of a stage's layers, P the bytes of their parameters, A the bytes over its boundary before or after
it, and bw the bandwidth. A stage on m devices costs the largest of

    (T + 4 (m − 1) P / (bw m)) / m,     2 A_before / (bw m),     2 A_behind / (bw m).

Every device sums its gradients after each mini-batch. Tensors are sent forward and their gradients back, from stage to
stage. Input nodes are left out, as their time is that of loading data.
"""

from collections import defaultdict
from pathlib import Path

import numpy as np

from pipeplan.core.searched import DOWNSETS
from pipeplan.core.wording import counted, listed
from pipeplan.io.importers.dag import topological
from pipeplan.io.importers.pipedream_graph import parse_graph
from pipeplan.io.published.workload import INTERLEAVED, REPEATED, REPLICAS, SCHEDULES, SPLIT, Published
from pipeplan.io.text import read_text
from pipeplan_formulations.graph import GraphMode, GraphPartition, Line, Star


def pipedream(path: Path, devices: int, *, bandwidth: int = 10**9, replicate: bool = True) -> Published:
    """Build the problem of a ``graph.txt`` on ``devices`` devices with links of ``bandwidth`` bytes per second."""
    graph = parse_graph(read_text(path), path.name)
    graph = graph.without(name for name, node in graph.nodes.items() if node.what.startswith("Input"))
    names = topological(graph.nodes, graph.edges, rank=lambda name: graph.nodes[name].number)
    index = {name: i for i, name in enumerate(names)}
    readers: dict[int, set[int]] = defaultdict(set)
    for a, b in graph.edges:
        readers[index[a]].add(index[b])
    stars = tuple(Star(source, tuple(sorted(found))) for source, found in sorted(readers.items()))

    def sending(sizes: list[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        return np.array([size * 10**9 // bandwidth for size in sizes], np.int64)

    nodes = [graph.nodes[name] for name in names]
    time = np.array([[node.forward + node.backward for node in nodes]], np.int64)
    parameters = sending([node.parameters for node in nodes])
    crossing = 2 * sending([sum(nodes[star.source].outputs) for star in stars])
    counts = tuple(range(1, devices + 1)) if replicate else (1,)
    modes = tuple(
        GraphMode(
            "1 replica" if m == 1 else f"{m} replicas",
            (m,),
            (
                Line(m * time + 4 * (m - 1) * parameters, 0 * crossing, 0 * crossing, share=m * m),
                Line(0 * time, crossing, 0 * crossing, share=m),
                Line(0 * time, 0 * crossing, crossing, share=m),
            ),
        )
        for m in counts
    )
    return Published(
        name=path.name.split(".")[0],
        problem=GraphPartition(
            len(names), tuple((index[a], index[b]) for a, b in graph.edges), stars, (devices,), modes, "relay"
        ),
        names=tuple(names),
        members=tuple((name,) for name in names),
        unit=1e-9,
        rule="compute and gradients per replica, or the traffic on either border, there and back (PipeDream)",
        searched=f"{DOWNSETS}; {counted(devices, 'device')}, {listed(counts)} of them per stage; no memory limit",
        not_searched=(SPLIT, *(() if replicate else (REPLICAS,)), INTERLEAVED, REPEATED, SCHEDULES),
        costs=f"imported from {path.name} (PipeDream's profiler)",
        replicas=counts,
        devices=(1,) * len(counts),
    )
