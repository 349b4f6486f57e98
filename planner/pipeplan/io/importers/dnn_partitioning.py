"""Parser of dnn-partitioning's JSON workloads (Tarnawski et al., NeurIPS 2020): an operator graph and its devices.

::

    {"maxFPGAs": 6, "maxSizePerFPGA": 17179869184, "maxCPUs": 1,
     "nodes": [{"id": 1, "name": "node1", "fpgaLatency": 0.7, "isBackwardNode": 0, "colorClass": 1, "size": 4096, ...}],
     "edges": [{"sourceId": 1, "destId": 2, "cost": 0.01, "size": 2048}]}

Nodes of one colour share a device, so a backward node shares that of its forward node. Latencies and costs are
milliseconds; the cost of an edge is the time that its source's output takes on a link, the same on all its edges.
"""

from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.errors import InputError
from pipeplan.core.figures import MOST_DEVICES
from pipeplan.core.model import Layer, LayerCost, Model, Profile, Provenance
from pipeplan.io.device_file import Number
from pipeplan.io.importers.dag import components, topological
from pipeplan.io.importers.importer import Importer
from pipeplan.io.importers.pipedream import PROFILED
from pipeplan.io.schema import check, listing

_FAST = 5 * 10**11
"""Bytes per second above which a link between such devices is implausible; see `corrected`."""

Amount = Annotated[Number, Field(ge=0, le=1e18)]
Truth = Annotated[bool, BeforeValidator(lambda value: bool(value) if value in (0, 1) else value)]


class ForeignEntry(BaseModel):
    """Base schema of entries in other projects' files; it ignores unknown fields."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, defer_build=True)


class NodeEntry(ForeignEntry):
    """One operator."""

    id: int
    name: str = ""
    fpga_latency: Amount = Field(alias="fpgaLatency")
    cpu_latency: Amount = Field(alias="cpuLatency", default=0.0)
    backward: Truth = Field(alias="isBackwardNode")
    supported: Truth = Field(alias="supportedOnFpga", default=True)
    color: int | None = Field(alias="colorClass", default=None)
    size: Amount = 0.0


class EdgeEntry(ForeignEntry):
    """One tensor between two operators."""

    source: int = Field(alias="sourceId")
    target: int = Field(alias="destId")
    cost: Amount = 0.0
    size: Amount | None = None


class WorkloadFile(ForeignEntry):
    """Schema of a workload file."""

    max_size: Amount = Field(alias="maxSizePerFPGA")
    accelerators: int = Field(alias="maxFPGAs", ge=1, le=MOST_DEVICES)
    processors: int = Field(alias="maxCPUs", default=0, ge=0, le=MOST_DEVICES)
    nodes: list[NodeEntry] = Field(min_length=1)
    edges: list[EdgeEntry]


@dataclass(frozen=True)
class Group:
    """A layer: operators that share a device, sorted by id; named after its forward operators if it has any."""

    forward: tuple[NodeEntry, ...]
    backward: tuple[NodeEntry, ...]

    @property
    def members(self) -> tuple[NodeEntry, ...]:
        return self.forward + self.backward

    @property
    def name(self) -> str:
        return "+".join(str(node.id) for node in self.forward or self.backward)


def dnn_partitioning_from_data(data: Any, where: str, name: str, *, corrected: bool = False) -> tuple[Model, Cluster]:
    """Build model and cluster from plain data.

    Parameters
    ----------
    data : mapping
    where, name : str
        Names of the data in errors, and of the model.
    corrected : bool
        The layer-graph workloads price a transfer a thousand times too low (their cost per byte is that of the operator
        graphs, with the milliseconds taken for seconds). By default they are read as written, with a note; with
        ``corrected`` the links are a thousand times slower.

    Notes
    -----
    A layer is a set of operators that must share a device: those of one colour, joined where they depend on each other
    in a cycle. A backward-only layer is ordered by the reverse of its edges. The file's memory rule is the sum of the
    sizes on a device. To follow it, half of a layer's size counts as parameters; with their gradients they make the
    whole.

    Raises
    ------
    InputError
        Naming every fault, or the operators that no accelerator supports.
    """
    file = check(WorkloadFile, data, where)
    verify(file, where)
    groups, edges = group_operators(file)
    order = topological(groups, edges, rank=lambda group: min(node.id for node in group.members))
    rate, trapped = _bandwidth(file, corrected)
    outputs = _outputs(file, rate)
    layers, costs = [], []
    sources = defaultdict(list)
    for a, b in edges:
        sources[b].append(a)
    position = {group: i for i, group in enumerate(order)}
    owner = {node.id: group for group in order for node in group.members}
    leaving = {edge.source for edge in file.edges if owner[edge.source] is not owner[edge.target]}
    for group in order:
        inputs = sorted(set(sources[group]), key=position.__getitem__)
        size = round(sum(node.size for node in group.members))
        layers.append(
            Layer(
                name=group.name,
                parameters=-(-size // 2),
                inputs=tuple(source.name for source in inputs),
                kind=group.members[0].name,
            )
        )
        costs.append(_cost(group, sum(outputs.get(node.id, 0) for node in group.forward if node.id in leaving)))
    kind = DeviceKind(PROFILED, memory=round(file.max_size), source=f"dnn-partitioning workload {name}")
    notes = _notes(file, rate, trapped, corrected)
    model = Model(
        name=name,
        layers=tuple(layers),
        profiles=(Profile(PROFILED, 1, tuple(costs), Provenance("imported", f"dnn-partitioning workload {name}")),),
        notes=notes,
    )
    cluster = Cluster(
        name=f"{file.accelerators} accelerators of {name}",
        kinds={PROFILED: kind},
        nodes=(Node((PROFILED,) * file.accelerators, Link(rate)),),
        overlap=Overlap.NONE,
        notes=notes,
    )
    return model, cluster


def verify(file: WorkloadFile, where: str) -> None:
    """Refuse duplicate or unknown ids, and operators that no accelerator supports."""
    ids = [node.id for node in file.nodes]
    known, complaints = set(ids), []
    if len(known) < len(ids):
        twice = sorted({i for i in ids if ids.count(i) > 1})
        complaints.append(f"nodes: the ids {', '.join(map(str, twice))} stand twice")
    for n, edge in enumerate(file.edges):
        complaints += [
            f"edges[{n}].{field}: no node has the id {end}"
            for field, end in (("sourceId", edge.source), ("destId", edge.target))
            if end not in known
        ]
    alone = [node.name or str(node.id) for node in file.nodes if not node.supported]
    if alone:
        complaints.append(f"nodes: no accelerator supports {', '.join(alone)}, and plans run on accelerators only")
    if complaints:
        raise InputError(listing(where, complaints))


def group_operators(file: WorkloadFile) -> tuple[list[Group], list[tuple[Group, Group]]]:
    """Return the layers and the edges between them; see the notes of `dnn_partitioning_from_data`."""
    color = _colors(file)
    with_forward = {color[node.id] for node in file.nodes if not node.backward}
    backward = {node.id: node.backward for node in file.nodes}
    # Edges between colours: forward edges as they are, those of backward-only colours reversed.
    wanted = []
    for edge in file.edges:
        a, b = color[edge.source], color[edge.target]
        if a == b:
            continue
        if not backward[edge.source] and (not backward[edge.target] or b not in with_forward):
            wanted.append((a, b))
        elif backward[edge.source] and not {a, b} <= with_forward:
            wanted.append((b, a))
    # Colours on a cycle form one layer.
    component = components(color.values(), wanted)
    members: dict[Any, list[NodeEntry]] = defaultdict(list)
    for node in sorted(file.nodes, key=lambda node: node.id):
        members[component[color[node.id]]].append(node)
    group = {
        label: Group(tuple(n for n in nodes if not n.backward), tuple(n for n in nodes if n.backward))
        for label, nodes in members.items()
    }
    pairs = ((component[a], component[b]) for a, b in wanted)
    return list(group.values()), list(dict.fromkeys((group[a], group[b]) for a, b in pairs if a != b))


def _colors(file: WorkloadFile) -> dict[int, tuple[str, Any]]:
    """Return each node's device-sharing key: its colour, or by name that of its forward node, or its own id."""
    mates = {node.name: node for node in file.nodes if not node.backward and node.name}
    found: dict[int, tuple[str, Any]] = {}
    for node in file.nodes:
        mate = mates.get(node.name.removesuffix("grad"), node) if node.backward and node.color is None else node
        found[node.id] = ("color", mate.color) if mate.color is not None else ("node", mate.id)
    return found


def _bandwidth(file: WorkloadFile, corrected: bool) -> tuple[int | None, bool]:
    """Return the bytes per second of a link, and whether the file's units are implausible.

    Without priced edges links are free (None).
    """
    ratios = [edge.size / edge.cost for edge in file.edges if edge.size and edge.cost]
    if ratios:
        rate = median(ratios) * 1000
    elif any(edge.cost for edge in file.edges):
        rate = 10.0**9  # costs without sizes: any rate serves, as sizes are derived from the costs
    else:
        return None, False
    return max(round(rate / 1000 if corrected else rate), 1), rate > _FAST


def _outputs(file: WorkloadFile, rate: int | None) -> dict[int, int]:
    """Return the bytes of each operator's output, counted once. An edge without cost sends nothing."""
    found: dict[int, int] = {}
    for edge in file.edges:
        size = 0.0
        if rate is not None and edge.cost:
            size = edge.size if edge.size is not None else edge.cost / 1000 * rate
        found[edge.source] = max(found.get(edge.source, 0), round(size))
    return found


def _cost(group: Group, output: int) -> LayerCost:
    forward = round(sum(node.fpga_latency for node in group.forward) * 10**6)
    backward = round(sum(node.fpga_latency for node in group.backward) * 10**6)
    weight_gradient = backward // 2
    return LayerCost(forward, backward, backward - weight_gradient, weight_gradient, saved=0, output=output)


def _notes(file: WorkloadFile, rate: int | None, trapped: bool, corrected: bool) -> tuple[str, ...]:
    notes = [
        "one sample is the workload's own mini-batch; the backward time is not split in the file: half of it counts as "
        "weight gradient",
        "a device's memory holds the sum of the sizes of its operators, whatever is in flight; half of a layer's size "
        "is called parameters, as their gradients take the other half (with plain SGD)",
        "gradients going back are taken to be as large as the activations going forward",
    ]
    if file.processors:
        notes.append(f"{file.processors} slow processor(s) of the file are not used: plans run on the accelerators")
    if corrected:
        notes.append(f"links are read a thousand times slower than written: {(rate or 0) / 1e9:.4g} GB/s")
    elif trapped:
        notes.append(
            f"as written, links carry {(rate or 0) / 1e9:.4g} GB/s: this workload prices transfers a thousand times "
            "lower than its sister workloads, probably a slip of units; corrected reads them a thousand times slower"
        )
    return tuple(notes)


def _recognises(data: Any) -> bool:
    return isinstance(data, dict) and isinstance(data.get("nodes"), list) and "maxFPGAs" in data


IMPORTER = Importer("dnn-partitioning", _recognises, dnn_partitioning_from_data)
