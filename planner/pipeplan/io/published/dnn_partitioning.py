"""dnn-partitioning's throughput problem (Tarnawski et al., NeurIPS 2020, section 5.1.2).

An accelerator's load is the time of its operators, and of every tensor that enters or leaves it, once per source. A
processor's load is the time of its operators, without transfers. Accelerators have a memory limit. Backward operators
are on the device of their forward operators, and their tensors (gradients) count like all others.
"""

from collections import defaultdict
from pathlib import Path

import numpy as np

from pipeplan.core.searched import DOWNSETS
from pipeplan.core.wording import counted
from pipeplan.io.importers.dag import topological
from pipeplan.io.importers.dnn_partitioning import WorkloadFile, group_operators, verify
from pipeplan.io.published.workload import INTERLEAVED, REPEATED, REPLICAS, SCHEDULES, SPLIT, Published
from pipeplan.io.schema import check
from pipeplan.io.text import parse_data, read_text
from pipeplan_formulations.graph import GraphMode, GraphPartition, Line, Star

PICOSECOND = 1e-12
_PER_MILLISECOND = 10**9


def dnn_partitioning(
    path: Path, *, corrected: bool = False, accelerators: int | None = None, processors: int | None = None
) -> Published:
    """Build the problem in a file.

    Parameters
    ----------
    path : Path
    corrected : bool
        Make transfers a thousand times slower; see `pipeplan.io.importers.dnn_partitioning`.
    accelerators, processors : int, optional
        Numbers to use instead of the file's.
    """
    file = check(WorkloadFile, parse_data(read_text(path), str(path)), str(path))
    verify(file, str(path))
    groups, edges = group_operators(file)
    order = topological(groups, edges, rank=lambda group: min(node.id for node in group.members))
    index = {group: i for i, group in enumerate(order)}
    owner = {node.id: index[group] for group in order for node in group.members}
    stars, cost = _stars(file, owner, 1000 if corrected else 1)
    accelerators = file.accelerators if accelerators is None else accelerators
    processors = file.processors if processors is None else processors

    def table(values: list[float]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        return np.array([[round(value) for value in values]], np.int64)

    on_accelerator = table([sum(node.fpga_latency for node in g.members) * _PER_MILLISECOND for g in order])
    on_processor = table([sum(node.cpu_latency for node in g.members) * _PER_MILLISECOND for g in order])
    size = table([sum(node.size for node in g.members) for g in order])
    modes = [
        GraphMode("accelerator", (1, 0), (Line(on_accelerator, cost, cost),), fixed=size, limit=round(file.max_size)),
        GraphMode("processor", (0, 1), (Line(on_processor, 0 * cost, 0 * cost),)),
    ]
    return Published(
        name=path.name.split(".")[0],
        problem=GraphPartition(
            groups=len(order),
            edges=tuple((index[a], index[b]) for a, b in edges),
            stars=stars,
            pools=(accelerators, processors),
            modes=tuple(modes if processors else modes[:1]),
        ),
        names=tuple(group.name for group in order),
        members=tuple(tuple(str(node.id) for node in group.members) for group in order),
        unit=PICOSECOND,
        rule="compute and every tensor in or out, once a source; a processor pays for no transfer (dnn-partitioning)",
        searched=f"{DOWNSETS}; at most {counted(accelerators, 'accelerator')} and {counted(processors, 'processor')}",
        not_searched=(SPLIT, REPLICAS, INTERLEAVED, REPEATED, SCHEDULES),
        costs=f"imported from {path.name} (dnn-partitioning)",
        replicas=(1, 1),
        devices=(1, 1),
    )


def _stars(
    file: WorkloadFile, owner: dict[int, int], factor: int
) -> tuple[tuple[Star, ...], np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    """Return the tensors between groups, merged by equal groups, and the cost of each in picoseconds."""
    readers: dict[int, set[int]] = defaultdict(set)
    cost: dict[int, float] = {}
    for edge in file.edges:
        if owner[edge.source] != owner[edge.target] and edge.cost:
            readers[edge.source].add(owner[edge.target])
            cost[edge.source] = max(edge.cost, cost.get(edge.source, 0.0))
    total: dict[Star, int] = defaultdict(int)
    for source, found in readers.items():
        total[Star(owner[source], tuple(sorted(found)))] += round(cost[source] * factor * _PER_MILLISECOND)
    return tuple(total), np.array(list(total.values()), np.int64)
