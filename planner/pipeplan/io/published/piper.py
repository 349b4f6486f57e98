"""Piper's problem (Tarnawski et al., NeurIPS 2021): tensor-parallel degree, replicas and recomputation of each stage.

A stage on d replicas of degree t uses d t devices. For its layers at that degree, under the variant chosen for each,
let p be times, w parameters, a bytes per sample and b fixed bytes. Let N be the micro-batches in a batch, and for its
cut edges c the bytes sent and s the bytes synchronised inside the stage. The cost per sample is

    Σ p / d + (Σ_{cut edges} 2 (c + s) / d + Σ 4 (d − 1) w / (d N)) / bandwidth,

and the memory is Σ a ⌈D / d⌉ + Σ b, where D counts the replicas of this and all later stages. d divides N.
"""

from pathlib import Path

import numpy as np

from pipeplan.core.errors import InputError
from pipeplan.core.searched import DOWNSETS
from pipeplan.core.wording import counted, listed
from pipeplan.io.importers.dag import topological
from pipeplan.io.importers.piper import VariantEntry, WorkloadFile
from pipeplan.io.published.workload import INTERLEAVED, SCHEDULES, Published
from pipeplan.io.schema import check
from pipeplan.io.text import parse_data, read_text
from pipeplan_formulations.graph import GraphMode, GraphPartition, Line, Star

Table = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


def piper(
    path: Path, *, devices: int | None = None, memory: int | None = None, bandwidth: float | None = None
) -> Published:
    """Build the problem in a file; devices, memory (bytes) and bandwidth (bytes per second) override the file's."""
    file = check(WorkloadFile, parse_data(read_text(path), str(path)), str(path))
    devices = file.devices if devices is None else devices
    memory = round(file.memory) if memory is None else memory
    order = topological(
        [node.id for node in file.nodes], [(edge.source, edge.target) for edge in file.edges], rank=lambda i: i
    )
    index = {i: n for n, i in enumerate(order)}
    nodes = {node.id: node.variants for node in file.nodes}
    _check_variants(file)
    degrees = sorted({int(degree) for node in file.nodes for degree in node.variants})
    pricing = _Pricing(file, [nodes[i] for i in order], index, file.bandwidth if bandwidth is None else bandwidth)
    ways = [
        (t, d)
        for t in degrees
        for d in range(1, devices // t + 1)
        if file.micro_batches % d == 0 and all(str(t) in variants for variants in nodes.values())
    ]
    stars = tuple(Star(index[edge.source], (index[edge.target],)) for edge in file.edges)
    return Published(
        name=path.name.split(".")[0],
        problem=GraphPartition(
            groups=len(order),
            edges=tuple((star.source, star.readers[0]) for star in stars),
            stars=stars,
            pools=(devices,),
            modes=tuple(pricing.mode(t, d, devices, memory) for t, d in ways),
        ),
        names=tuple(str(i) for i in order),
        members=tuple((str(i),) for i in order),
        unit=1e-9,
        rule="time per sample: compute, cut edges there and back, gradients once a batch (Piper)",
        searched=f"{DOWNSETS}; {counted(devices, 'device')}; per stage one degree of tensor parallelism "
        f"({listed(degrees)}) and replicas whose number divides {file.micro_batches}; per layer a variant of the file",
        not_searched=("degrees and variants that the file does not list", INTERLEAVED, SCHEDULES),
        costs=f"imported from {path.name} (Piper)",
        replicas=tuple(d for _, d in ways),
        devices=tuple(t for t, _ in ways),
        variants=tuple(variant.id for variant in file.nodes[0].variants[str(degrees[0])]),
    )


def _check_variants(file: WorkloadFile) -> None:
    """Refuse layers with different numbers of variants at a degree: under the rule any layer may use any variant."""
    for degree in sorted({degree for node in file.nodes for degree in node.variants}):
        counts = {len(node.variants[degree]): node.id for node in file.nodes if degree in node.variants}
        if len(counts) > 1:
            (few, one), (many, other) = sorted(counts.items())[:2]
            raise InputError(
                f"at degree {degree}, layer {one} has {counted(few, 'variant')} and layer {other} has {many}; list the "
                "same variants for every layer"
            )


class _Pricing:
    """Cost tables of one file, for every degree and number of replicas."""

    def __init__(
        self,
        file: WorkloadFile,
        nodes: list[dict[str, list[VariantEntry]]],
        index: dict[int, int],
        bandwidth: float,
    ) -> None:
        self._file, self._nodes, self._index, self._bandwidth = file, nodes, index, bandwidth

    def mode(self, t: int, d: int, devices: int, memory: int) -> GraphMode:
        """Return the mode of d replicas of degree t. Loads are multiples of 1 / (d N), so that all are integers."""
        n = self._file.micro_batches
        time, weight = self._table(t, "time"), self._table(t, "parameters")
        line = Line(
            time=_rounded((n * time + 4 * (d - 1) * weight / self._bandwidth) * 1e9),
            leave=_rounded(2e9 * n * self._moved(t, leaving=True) / self._bandwidth),
            enter=_rounded(2e9 * n * self._moved(t, leaving=False) / self._bandwidth),
            share=d * n,
        )
        return GraphMode(
            name=f"{d} replica{'s' * (d > 1)} of degree {t}",
            takes=(d * t,),
            lines=(line,),
            fixed=_rounded(self._table(t, "fixed")),
            held=_rounded(self._table(t, "per_sample")),
            limit=memory,
            flow=d,
            in_flight=-(-(np.arange(devices + 1) + d) // d),
        )

    def _table(self, t: int, field: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """Return a field of all variants of degree t, shape (variants, groups)."""
        return np.array([[getattr(variant, field) for variant in node[str(t)]] for node in self._nodes], float).T

    def _moved(self, t: int, leaving: bool) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """Return the bytes of each edge at one of its ends: sent, and synchronised there."""
        moved = []
        for edge in self._file.edges:
            here, other = (edge.source, edge.target) if leaving else (edge.target, edge.source)
            variant = self._nodes[self._index[here]][str(t)][0]
            synced = variant.sync_out if leaving else variant.sync_in
            moved.append(edge.size + synced.get(str(other), 0.0))
        return np.array(moved)


def _rounded(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Table:
    return np.rint(values).astype(np.int64)
