"""Read and write clusters as YAML, with kinds of device by ``use``, overrides and relative speeds.

::

    name: 2x4-v100-10gbit
    devices:                                   # kinds; `use:` takes one from the catalogue and may override fields
      v100: {use: v100-16gb}
      slow: {memory: 16GiB, speed: {relative_to: v100-16gb, factor: 0.5}}
    nodes:
      - count: 2
        devices: [{kind: v100, count: 4}]
        link: {bandwidth: 25GB/s, latency: 5us}          # between devices of one node
    network: {bandwidth: 10Gbit/s, latency: 50us}        # one card per node, shared by its devices
    overlap: false                             # true: it computes while it sends; stream: it sends while it computes

A kind with ``speed: {relative_to: X}`` uses the profile of X, and X's figures for analytic estimates (peaks, bandwidth,
efficiency, overhead) where it has none itself. ``timed_as: X`` with a plain ``speed`` uses the profile only.

A link or network may have ``collective_efficiency: 0.6``: the measured share of its bandwidth that a ring all-reduce
reaches (``pipeplan machine`` writes it); the default is 1. The gathers and sums of single layers at levels 2 and 3 of
ZeRO have ``unit_overhead: 1.5ms`` each, and ``unit_efficiency: 0.5`` of that bandwidth; the defaults are 0 and 1. With
``unit_overlap: false`` nothing is computed beside them.
"""

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.errors import InputError
from pipeplan.core.figures import MOST_DEVICES, shown
from pipeplan.core.wording import hint
from pipeplan.io.atomic import write_whole
from pipeplan.io.device_file import DeviceEntry, Number, catalogue, device_fields
from pipeplan.io.schema import (
    Bandwidth,
    Count,
    Items,
    Nanoseconds,
    Strict,
    check,
    listing,
    written_bandwidth,
    written_time,
)
from pipeplan.io.text import Line, Row, lean, parse_data, read_text, yaml_text

TIMING = ("peak", "bandwidth", "efficiency", "overhead")
"""Figures of the analytic estimate; a kind that overrides one of them no longer uses the catalogue kind's profile."""


@dataclass(frozen=True)
class Speed:
    """Entry of one kind in a file: its own figures and its references to other kinds."""

    figures: dict[str, Any]
    use: str | None
    timed_as: str | None
    relative_to: str | None
    factor: float | None


def resolve_kinds(entries: dict[str, Speed]) -> tuple[dict[str, DeviceKind], list[str]]:
    """Return the resolved kinds by name, and the faults of the others."""
    kinds: dict[str, DeviceKind] = {}
    complaints: list[str] = []
    for name in entries:
        _resolve(name, entries, kinds, complaints, ())
    return kinds, complaints


def _resolve(
    name: str, entries: dict[str, Speed], kinds: dict[str, DeviceKind], complaints: list[str], above: tuple[str, ...]
) -> DeviceKind | None:
    """Resolve the kind ``name`` and the kinds it refers to; ``above`` are the kinds being resolved."""
    if name in kinds:
        return kinds[name]
    if name in above:
        circle = " → ".join((*above[above.index(name) :], name))
        complaints.append(f"devices.{name}.speed.relative_to: the speeds go round in a circle ({circle})")
        return None
    entry = entries[name]
    if entry.timed_as is not None and entry.relative_to is not None:
        complaints.append(f"devices.{name}: timed_as and speed.relative_to say the same; give one of them")
        return None
    figures: dict[str, Any] = {}
    timed_as = entry.timed_as
    factor = 1.0 if entry.factor is None else entry.factor
    if entry.use is not None:
        base = catalogue().get(entry.use)
        if base is None:
            known = hint(entry.use, catalogue()) or f"; it has {', '.join(catalogue()) or 'no kinds at all'}"
            complaints.append(f"devices.{name}.use: {entry.use!r} is not in the catalogue of devices{known}")
            return None
        figures |= _figures(base)
        if timed_as is None and entry.use != name and not any(field in entry.figures for field in TIMING):
            timed_as = entry.use
    if entry.relative_to is not None:
        reference = entry.relative_to
        other = catalogue().get(reference)
        if reference in entries and reference != name:
            other = _resolve(reference, entries, kinds, complaints, (*above, name))
            if other is None:
                return None
        elif other is None and (meant := hint(reference, [*entries, *catalogue()])):
            complaints.append(f"devices.{name}.speed.relative_to: {reference!r} is not known{meant}")
            return None
        # A name that is neither here nor in the catalogue may still be the device name of a profile.
        timed_as = reference
        if other is not None:
            figures |= {field: getattr(other, field) for field in TIMING}
            timed_as = other.timed_as or other.name
            factor *= other.speed
    kinds[name] = DeviceKind(name=name, timed_as=timed_as, speed=factor, **(figures | entry.figures))
    return kinds[name]


def _figures(kind: DeviceKind) -> dict[str, Any]:
    fields = (*TIMING, "memory", "runtime", "price", "on_chip", "speed_beside_collectives", "shard_overhead", "source")
    return {field: getattr(kind, field) for field in fields}


_OVERLAP = {False: Overlap.NONE, True: Overlap.COPY} | {overlap.value: overlap for overlap in Overlap}
_WRITTEN_OVERLAP = {Overlap.NONE: False, Overlap.COPY: True, Overlap.STREAM: "stream"}


def _overlap(value: object) -> Overlap:
    if isinstance(value, bool | str) and value in _OVERLAP:
        return _OVERLAP[value]
    raise ValueError(f"{value!r} is not known; write false, true or stream")


def _speed(value: object) -> object:
    """Expand ``speed: 2.0``, which is short for ``speed: {factor: 2.0}``."""
    return {"factor": value} if isinstance(value, int | float) and not isinstance(value, bool) else value


class SpeedEntry(Strict):
    """A speed factor, and the kind to which it is relative."""

    relative_to: str | None = None
    """A kind of this file or of the catalogue, or the device of a profile."""
    factor: Annotated[Number, Field(gt=0)]
    """2 is twice as fast."""


class KindEntry(DeviceEntry):
    """One kind of device: from the catalogue, relative to another, or by its own figures."""

    use: str | None = None
    """A kind of the shipped catalogue, whose figures hold where no other is given."""
    timed_as: str | None = None
    speed: Annotated[SpeedEntry, BeforeValidator(_speed, json_schema_input_type=float | SpeedEntry)] | None = None
    """Speed relative to the kind's own figures or profile; with relative_to, to those of another kind."""


class LinkEntry(Strict):
    """A link; without bandwidth it is free."""

    bandwidth: Bandwidth | None = None
    """Bytes per second in each direction; without it transfers are free."""
    latency: Nanoseconds = 0
    """Time from the last byte sent to its arrival."""
    collective_efficiency: Annotated[Number, Field(gt=0)] = 1.0
    """Share of the bandwidth that a ring all-reduce reaches."""
    unit_overhead: Nanoseconds = 0
    """Time that each gather or sum of a single layer takes longer, at levels 2 and 3 of ZeRO."""
    unit_efficiency: Annotated[Number, Field(gt=0)] = 1.0
    """Share of the bandwidth of an all-reduce that these reach."""
    unit_overlap: bool = True
    """Whether they run beside computation."""
    collective: str = "ring"
    """Algorithm of an all-reduce over it: ring, or one that is plugged in."""

    def link(self) -> Link:
        """Return the link that this entry describes."""
        return Link(**{name: getattr(self, name) for name in LinkEntry.model_fields})


class DevicesEntry(Strict):
    """Equal devices of one node."""

    kind: str
    """A name under devices."""
    count: Count = 1
    """How many."""


class NodeEntry(Strict):
    """Equal nodes."""

    count: Count = 1
    """How many such nodes."""
    devices: Items[DevicesEntry]
    """Their devices, in order: d0, d1, …"""
    link: LinkEntry = LinkEntry()
    """Between any two devices of one node."""

    def node(self) -> Node:
        """Return one of the equal nodes that this entry describes."""
        kinds = tuple(group.kind for group in self.devices for _ in range(group.count))
        return Node(kinds, self.link.link())


class ClusterFile(Strict):
    """Schema of a cluster file."""

    name: str
    """Name in answers and plans."""
    devices: dict[str, KindEntry]
    """Kinds of device by name."""
    nodes: Items[NodeEntry]
    """Machines, in order."""
    network: LinkEntry | None = None
    """Between nodes: one card per node, which its devices share. Needed for two nodes or more."""
    overlap: Annotated[
        Overlap, BeforeValidator(_overlap), WithJsonSchema({"enum": [False, True, "stream", "none", "copy"]})
    ] = Overlap.NONE
    """Whether a device computes while it sends: false, true, or stream (a tensor is sent while it is computed)."""
    notes: Items[str] = ()
    """Remarks, like sources of figures."""


def read_cluster(path: Path) -> Cluster:
    """Read a cluster from a YAML file.

    Raises
    ------
    InputError
        Naming every fault with its path.
    """
    return cluster_from_data(parse_data(read_text(path), str(path)), str(path))


def cluster_from_data(data: Any, where: str) -> Cluster:
    """Build a cluster from plain data; ``where`` names the source in errors."""
    file = check(ClusterFile, data, where)
    complaints = [
        f"nodes[{n}].devices[{d}].kind: {group.kind!r} is not among the kinds under devices"
        + (hint(group.kind, file.devices) or f"; known are {', '.join(file.devices)}")
        for n, node in enumerate(file.nodes)
        for d, group in enumerate(node.devices)
        if group.kind not in file.devices
    ]
    count = sum(node.count * group.count for node in file.nodes for group in node.devices)
    if count > MOST_DEVICES or len(file.nodes) + sum(node.count for node in file.nodes) > 2 * MOST_DEVICES:
        complaints.append(f"nodes: {shown(count)} devices are listed; {MOST_DEVICES} are the most that can be taken")
    kinds, unresolved = resolve_kinds({name: _as_speed(entry) for name, entry in file.devices.items()})
    if complaints or unresolved:
        raise InputError(listing(where, unresolved + complaints))
    try:
        return Cluster(
            name=file.name,
            kinds=kinds,
            nodes=tuple(entry.node() for entry in file.nodes for _ in range(entry.count)),
            network=file.network.link() if file.network else None,
            overlap=file.overlap,
            notes=file.notes,
        )
    except InputError as error:
        raise InputError(listing(where, [str(error)])) from error


def _as_speed(entry: KindEntry) -> Speed:
    speed = entry.speed
    return Speed(
        figures=entry.figures(),
        use=entry.use,
        timed_as=entry.timed_as,
        relative_to=speed.relative_to if speed else None,
        factor=speed.factor if speed else None,
    )


def write_cluster(cluster: Cluster, path: Path) -> None:
    """Write a cluster atomically, as `read_cluster` reads it; all figures are written in full, none by reference."""
    write_whole(path, yaml_text(cluster_data(cluster)))


def cluster_data(cluster: Cluster) -> dict[str, Any]:
    """Return the plain data of a cluster, as in a file."""
    for name, kind in cluster.kinds.items():
        if name != kind.name:
            raise InputError(f"cluster {cluster.name!r} lists kind {kind.name!r} under {name!r}; use one name")
    data = {"name": cluster.name} | lean(
        devices={
            name: device_fields(kind) | lean(timed_as=kind.timed_as, speed=None if kind.speed == 1.0 else kind.speed)
            for name, kind in cluster.kinds.items()
        },
        nodes=[_node_data(node, sum(1 for _ in same)) for node, same in groupby(cluster.nodes)],
        network=None if cluster.network is None else _link_data(cluster.network),
    )
    if cluster.network is not None:
        data["network"] = _link_data(cluster.network)  # an empty one is free, not absent
    return data | {"overlap": _WRITTEN_OVERLAP[cluster.overlap]} | lean(notes=list(cluster.notes))


def _node_data(node: Node, count: int) -> dict[str, Any]:
    groups = [(kind, sum(1 for _ in same)) for kind, same in groupby(node.kinds)]
    return {
        "count": count,
        "devices": Line([Row(kind=kind, count=number) for kind, number in groups]),
        "link": _link_data(node.link),
    }


def _link_data(link: Link) -> Row:
    bandwidth = None if link.bandwidth is None else written_bandwidth(link.bandwidth)
    return Row(
        lean(
            bandwidth=bandwidth,
            latency=written_time(link.latency) if link.latency else None,
            collective_efficiency=None if link.collective_efficiency == 1.0 else link.collective_efficiency,
            unit_overhead=written_time(link.unit_overhead) if link.unit_overhead else None,
            unit_efficiency=None if link.unit_efficiency == 1.0 else link.unit_efficiency,
            unit_overlap=None if link.unit_overlap else False,
            collective=None if link.collective == "ring" else link.collective,
        )
    )
