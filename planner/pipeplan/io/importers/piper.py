"""Parser of Piper's JSON workloads (Tarnawski et al., NeurIPS 2021): layers with costs by tensor-parallel degree.

::

    {"maxDevices": 10, "maxMemoryPerDevice": 80e9, "bandwidth": 25e9, "mbsInBatch": 1920,
     "nodes": [{"id": 0, "name": "Embedding", "TMPCs": {"1": [{"id": "vanilla", "timePerSample": 0.001, ...}]}}],
     "edges": [{"sourceId": 0, "destId": 1, "communicationCost": 31457280}]}

Times are seconds for one sample, forward and backward together; sizes are bytes.
"""

from typing import Annotated, Any

from pydantic import Field

from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.errors import InputError
from pipeplan.core.figures import MOST_DEVICES, MOST_SAMPLES
from pipeplan.core.model import Layer, LayerCost, Model, Profile, Provenance
from pipeplan.io.device_file import Number
from pipeplan.io.importers.dag import topological
from pipeplan.io.importers.dnn_partitioning import ForeignEntry
from pipeplan.io.importers.importer import Importer
from pipeplan.io.importers.pipedream import PROFILED
from pipeplan.io.schema import check, listing

_VARIANT = "vanilla"
_LONG = 1.0
"""Seconds per sample above which the times are probably milliseconds."""

Amount = Annotated[Number, Field(ge=0, le=1e18)]


class VariantEntry(ForeignEntry):
    """One variant of running a layer."""

    id: str
    time: Amount = Field(alias="timePerSample")
    parameters: Amount = Field(alias="parameterSize")
    per_sample: Amount = Field(alias="memoryUsageA")
    fixed: Amount = Field(alias="memoryUsageB")
    sync_in: dict[str, Amount] = Field(alias="syncTimeFw", default={})
    sync_out: dict[str, Amount] = Field(alias="syncTimeBw", default={})


class NodeEntry(ForeignEntry):
    """One layer: its variants, by tensor-parallel degree."""

    id: int
    name: str = ""
    variants: dict[str, list[VariantEntry]] = Field(alias="TMPCs")


class EdgeEntry(ForeignEntry):
    """One tensor between two layers."""

    source: int = Field(alias="sourceId")
    target: int = Field(alias="destId")
    size: Amount = Field(alias="communicationCost")


class WorkloadFile(ForeignEntry):
    """Schema of a workload file."""

    devices: int = Field(alias="maxDevices", ge=1, le=MOST_DEVICES)
    memory: Amount = Field(alias="maxMemoryPerDevice")
    bandwidth: Annotated[Number, Field(gt=0, le=1e18)]
    micro_batches: int = Field(alias="mbsInBatch", default=1, ge=1, le=MOST_SAMPLES)
    nodes: list[NodeEntry] = Field(min_length=1)
    edges: list[EdgeEntry]


def piper_from_data(data: Any, where: str, name: str, *, corrected: bool = False) -> tuple[Model, Cluster]:
    """Build model and cluster from plain data: each layer on one device, nothing recomputed.

    Parameters
    ----------
    data : mapping
    where, name : str
        Names of the data in errors, and of the model.
    corrected : bool
        Some of the workloads give times in milliseconds where their transfers are priced in seconds. By default they
        are read as seconds, with a note where that looks wrong; with ``corrected`` as milliseconds.

    Raises
    ------
    InputError
        Naming every fault, or the layers without a plain variant for one device.
    """
    file = check(WorkloadFile, data, where)
    plain = _plain_variants(file, where)
    order = topological(plain, [(edge.source, edge.target) for edge in file.edges], rank=lambda i: i)
    position = {i: n for n, i in enumerate(order)}
    names = {node.id: node.name for node in file.nodes}
    sources: dict[int, set[int]] = {i: set() for i in order}
    outputs = dict.fromkeys(order, 0)
    for edge in file.edges:
        sources[edge.target].add(edge.source)
        outputs[edge.source] = max(outputs[edge.source], round(edge.size))
    layers = tuple(
        Layer(
            name=str(i),
            parameters=round(plain[i].parameters),
            inputs=tuple(str(source) for source in sorted(sources[i], key=position.__getitem__)),
            kind=names[i],
        )
        for i in order
    )
    costs = tuple(_cost(plain[i], outputs[i], 10**6 if corrected else 10**9) for i in order)
    notes = _notes(file, plain, corrected)
    model = Model(
        name=name,
        layers=layers,
        profiles=(Profile(PROFILED, 1, costs, Provenance("imported", f"Piper workload {name}")),),
        notes=notes,
    )
    cluster = Cluster(
        name=f"{file.devices} devices of {name}",
        kinds={PROFILED: DeviceKind(PROFILED, memory=round(file.memory), source=f"Piper workload {name}")},
        nodes=(Node((PROFILED,) * file.devices, Link(max(round(file.bandwidth), 1))),),
        overlap=Overlap.NONE,
        notes=notes,
    )
    return model, cluster


def _plain_variants(file: WorkloadFile, where: str) -> dict[int, VariantEntry]:
    """Return each layer's variant for one device without recomputation."""
    plain: dict[int, VariantEntry] = {}
    complaints = []
    for n, node in enumerate(file.nodes):
        if node.id in plain:
            complaints.append(f"nodes[{n}].id: {node.id} stands twice")
        variant = next((variant for variant in node.variants.get("1", ()) if variant.id == _VARIANT), None)
        if variant is None:
            complaints.append(f"nodes[{n}].TMPCs.1: has no variant called {_VARIANT!r}")
        else:
            plain[node.id] = variant
    known = {node.id for node in file.nodes}
    for n, edge in enumerate(file.edges):
        complaints += [
            f"edges[{n}].{field}: no node has the id {end}"
            for field, end in (("sourceId", edge.source), ("destId", edge.target))
            if end not in known
        ]
    if complaints:
        raise InputError(listing(where, complaints))
    return plain


def _cost(variant: VariantEntry, output: int, unit: int) -> LayerCost:
    """Split the time: a third is forward, as for matrix products, and half of the rest weight gradient."""
    total = round(variant.time * unit)
    forward = total // 3
    backward = total - forward
    weight_gradient = backward // 2 if variant.parameters else 0
    return LayerCost(
        forward, backward, backward - weight_gradient, weight_gradient, saved=round(variant.per_sample), output=output
    )


def _notes(file: WorkloadFile, plain: dict[int, VariantEntry], corrected: bool) -> tuple[str, ...]:
    notes = [
        "the file gives one time for forward and backward: a third of it counts as forward, a third as weight gradient "
        "where a layer has parameters",
    ]
    others = {
        f"{variant.id} on {degree}"
        for node in file.nodes
        for degree, variants in node.variants.items()
        for variant in variants
        if (degree, variant.id) != ("1", _VARIANT)
    }
    if others:
        notes.append(f"left out of the model: {len(others)} other variants (recomputation, tensor parallelism)")
    unusual = [str(i) for i, variant in plain.items() if round(variant.fixed) != 2 * round(variant.parameters)]
    if unusual:
        notes.append(
            f"the fixed memory of the layers {', '.join(unusual[:8])}{' …' * (len(unusual) > 8)} is not that of "
            "parameters and gradients; pipeplan counts parameters, gradients and optimiser state itself"
        )
    total = sum(variant.time for variant in plain.values())
    if corrected:
        notes.append("times are read as milliseconds")
    elif total > _LONG:
        notes.append(
            f"as written one sample takes {total:.4g} s: the times are probably milliseconds, which corrected reads"
        )
    return tuple(notes)


def _recognises(data: Any) -> bool:
    return isinstance(data, dict) and isinstance(data.get("nodes"), list) and "maxDevices" in data


IMPORTER = Importer("piper", _recognises, piper_from_data)
