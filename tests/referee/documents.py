"""A question as its documents state it: layers, devices and the job, with every default filled in."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Any

Document = dict[str, Any]

DEFAULTS: Document = {
    "micro_batches": (),
    "optimizer": "sgd",
    "state_bytes": None,
    "gradient_bytes": None,
    "schedules": (),
    "depths": (),
    "memory": None,
    "reserve": 0,
    "objective": "step",
    "extrapolate": False,
    "replicas": (),
    "equal_replicas": False,
    "regular": False,
    "recompute": "choose",
    "zero": (),
    "slices": (),
    "chunks": (),
    "teams": (),
    "unlike_rounds": False,
    "unlike_teams": False,
    "sequence_parallel": True,
    "context_parallel": True,
    "mesh_axes": 2,
    "strategy": "",
    "vocabulary_parallel": True,
    "overlap_reduction": True,
    "staleness": 0,
    "order": "search",
    "together": (),
    "no_cut_after": (),
    "pin": (),
    "intra_layer": False,
}
"""What a job means that leaves a field out."""


@dataclass(frozen=True)
class Link:
    """Bytes per second (None: free), nanoseconds of latency, the share of the bandwidth that rings reach.

    Gathers and sums of single layers reach a share of that share, and take an overhead each. Last the name of the
    algorithm that sums.
    """

    bandwidth: int | None = None
    latency: int = 0
    efficiency: float = 1.0
    unit_overhead: int = 0
    unit_efficiency: float = 1.0
    unit_overlap: bool = True
    collective: str = "ring"


@dataclass(frozen=True)
class Device:
    """Its number in the cluster, its kind and its node."""

    number: int
    kind: str
    node: int


class Question:
    """Model, cluster and job at one level of ZeRO, the highest by default, read from plain documents."""

    def __init__(self, document: Document, level: int | None = None) -> None:
        self.document = document
        self.anywhere = True  # whether stages may lie on any like devices
        model, cluster = document["model"], document["cluster"]
        self.layers: list[Document] = model["layers"]
        self.names = [layer["name"] for layer in self.layers]
        self.place = {name: i for i, name in enumerate(self.names)}
        self.reads = [{self.place[name] for name in layer["inputs"]} for layer in self.layers]
        self.parameters: list[int] = [layer["parameters"] for layer in self.layers]
        self.frozen: list[int] = [layer.get("frozen", 0) for layer in self.layers]
        self.dtype: str = model.get("dtype", "float32")
        ties = model.get("ties", ())
        sharing = [(tuple(self.place[name] for name in tie["layers"]), tie) for tie in ties]
        self.sharing = [tied for tied, _ in sharing]
        self.ties = [(tied, int(tie["parameters"])) for tied, tie in sharing if tie.get("parameters")]
        self.frozen_ties = [(tied, int(tie["frozen"])) for tied, tie in sharing if tie.get("frozen")]
        self.kinds: dict[str, Document] = cluster["devices"]
        self.overlap = {False: "none", True: "copy", "stream": "stream"}[cluster["overlap"]]
        self.links = [_link(node["link"]) for node in cluster["nodes"]]
        self.network = _link(cluster["network"]) if cluster.get("network") is not None else None
        kinds = [(group["kind"], n) for n, node in enumerate(cluster["nodes"]) for group in node["devices"]]
        self.devices = [Device(number, kind, node) for number, (kind, node) in enumerate(kinds)]
        graphs = (model.get("operators") or {}).values()
        attends = any(each.get("attention") for graph in graphs for each in graph["operators"])
        self.job: Document = DEFAULTS | ({"optimizer": "adam"} if attends else {}) | document["job"]
        if self.job["regular"]:
            self.job = self.job | {"equal_replicas": True}
        self.level = max(self.job["zero"], default=0) if level is None else level
        self.asked = self.job
        if self.level > 1:  # families only, of equally many replicas; layers that share weights lie on one stage
            names = [name for name in self.job["schedules"] if name != "any"]
            self.job = self.job | {"schedules": names, "equal_replicas": True} | ({"depths": [1]} if ties else {})
        self.batch: int = self.job["batch"]
        self.slicing: Document = model.get("slicing") or {"count": 1}
        self.slices = int(self.slicing["count"])
        self.laid: tuple[int, bool, tuple[int, ...]] = self.job.get("laid") or (1, False, ())
        self.in_rounds = "laid" in self.job

    @property
    def n(self) -> int:
        """The number of layers."""
        return len(self.names)

    @cached_property
    def used_kinds(self) -> list[str]:
        """Kinds of which there is a device."""
        return sorted({device.kind for device in self.devices})

    @cached_property
    def crossing(self) -> list[list[int]]:
        """For each cut, the layers up to it that some later layer reads."""
        return [
            sorted({i for reader in range(cut + 1, self.n) for i in self.reads[reader] if i <= cut})
            for cut in range(self.n - 1)
        ]

    def profiles(self, kind: str) -> dict[int, list[Document]]:
        """Cost rows by micro-batch size of the profile that times a kind."""
        timed = self.kinds[kind].get("timed_as") or kind
        entries = [entry for entry in self.document["model"]["profiles"] if entry["device"] == timed]
        return {entry["micro_batch"]: [entry["costs"][name] for name in self.names] for entry in entries}

    def limit(self, kind: str) -> int | None:
        """Bytes that a plan may use on a device of a kind, its runtime included; None if nothing says."""
        own, free = self.kinds[kind].get("memory"), self.job["reserve"]
        if own is not None:
            own = max(own - (free if isinstance(free, int) else ceil(own * free)), 0)
        limits = [limit for limit in (own, self.job["memory"]) if limit is not None]
        return min(limits, default=None)

    def runtime(self, kind: str) -> int:
        """Bytes that the runtime takes on a device of a kind."""
        return int(self.kinds[kind].get("runtime", 0))

    def team(self, kind: str) -> int:
        """Devices of which each one of a kind consists."""
        return int(self.kinds[kind].get("team", 1))

    def at_card(self, kind: str) -> int:
        """Devices of each team of a kind that use the card of a node at once."""
        return self.team(kind) // int(self.kinds[kind].get("spread", 1))

    def lies(self, device: Device, where: str) -> bool:
        """Whether a place that a layer is pinned to is this device, its kind, its members', or teams of its size."""
        members = self.kinds[device.kind].get("members", device.kind)
        return where in (device.kind, members, f"teams of {self.team(device.kind)}", f"d{device.number}")

    def parameters_on(self, kind: str) -> list[int]:
        """Bytes of each layer's parameters on a kind of device."""
        return self.kinds[kind].get("parts") or self.parameters

    def link(self, a: Device, b: Device) -> Link:
        """What joins two devices."""
        return self.links[a.node] if a.node == b.node else self.between({a.kind, b.kind})

    def between(self, kinds: Iterable[str]) -> Link:
        """The network as devices of these kinds find it: the members of a team in a node use the card at once."""
        assert self.network is not None
        if self.network.bandwidth is None:
            return self.network
        members = max(self.at_card(kind) for kind in kinds)
        return replace(self.network, bandwidth=max(self.network.bandwidth // members, 1))


def _link(entry: Document) -> Link:
    return Link(
        entry.get("bandwidth"),
        entry.get("latency", 0),
        entry.get("collective_efficiency", 1.0),
        entry.get("unit_overhead", 0),
        entry.get("unit_efficiency", 1.0),
        entry.get("unit_overlap", True),
        entry.get("collective", "ring"),
    )
