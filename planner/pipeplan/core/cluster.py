"""`Cluster`: devices in nodes, their kinds, and the links between them.

::

    node 0                     node 1
    ┌───────────────┐          ┌───────────────┐
    │ d0 ═ d1 ═ d2  │──card────card── d3 ═ d4  │      ═  the node's own link, one per pair of devices
    └───────────────┘  network └───────────────┘      ─  the network, one card per node, shared by its devices
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from pipeplan.core.changed import changed
from pipeplan.core.choices import member
from pipeplan.core.errors import InputError
from pipeplan.core.figures import LARGEST, MOST_DEVICES, plain, real, whole
from pipeplan.core.parts import each_a, mapping, printable, switch
from pipeplan.core.tabular import Table, Tabular, Unit
from pipeplan.core.wording import counted


class Overlap(StrEnum):
    """Overlap of a device's computation with its sends.

    ``NONE``: the device waits (synchronous, without overlap). ``COPY``: it computes; a tensor leaves when its action
    has ended. ``STREAM``: it computes, and a tensor leaves while it is being made (BaPipe's asynchronous accelerators).

    Examples
    --------
    >>> pipeplan.load_cluster("4-v100-nvlink").overlap is pipeplan.Overlap.COPY
    True
    """

    NONE = "none"
    COPY = "copy"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """One kind of device: its memory, its speed and its price.

    Attributes
    ----------
    name : str
    memory : int or None
        Bytes that a plan may use; None is no limit.
    peak : mapping of str to int
        Floating-point operations per second, by number format (``'float32'``, ``'bfloat16'`` …).
    bandwidth : int or None
        Bytes per second between the processor and its memory.
    efficiency : float
        Fraction of the peaks that an analytic estimate assumes to be reached.
    overhead : int
        Nanoseconds added to every layer (kernel launches), in an analytic estimate.
    timed_as : str or None
        Name of the kind whose profile this one uses; None is its own name.
    speed : float
        Speed relative to the profile of ``timed_as``, or to the estimate from this kind's own figures.
    runtime : int
        Bytes that the runtime takes on a device before any layer is loaded.
    price : float or None
        Per device and hour, in any currency that all kinds of a cluster share.
    on_chip : int or None
        Bytes of on-chip memory (FPGAs).
    speed_beside_collectives : float
        Speed of its computation while a collective runs beside it, relative to its speed alone: 1 loses nothing, and
        at 0 nothing is computed meanwhile.
    shard_overhead : int
        Nanoseconds that each operator of a layer with split weights takes longer on a member of a team, in each of
        forward, input gradient and weight gradient: running it on parts, and waiting for other members.
    team : int
        Devices of which each one of this kind consists: a team that shares every layer (`pipeplan.costs.sharding`).
    spread : int
        Nodes over which each such team extends, equally many devices in each.
    members : str
        Name of the kind of these devices, where it is not the name of the kind itself.
    source : str
        Where the figures come from.

    Examples
    --------
    >>> kind = pipeplan.DeviceKind("small", memory=8 * 2**30, peak={"float32": 10**13}, bandwidth=5 * 10**11)
    >>> kind.efficiency
    0.5
    """

    name: str
    memory: int | None = None
    peak: Mapping[str, int] = field(default_factory=dict)
    bandwidth: int | None = None
    efficiency: float = 0.5
    overhead: int = 0
    timed_as: str | None = None
    speed: float = 1.0
    runtime: int = 0
    price: float | None = None
    on_chip: int | None = None
    speed_beside_collectives: float = 1.0
    shard_overhead: int = 0
    team: int = 1
    spread: int = 1
    members: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        printable(self.name, "the name of a kind of device")
        what = f"device kind {self.name!r}: "
        real(self.speed, what + "speed", above=True)
        real(self.efficiency, what + "efficiency", most=1.0, above=True)
        real(self.speed_beside_collectives, what + "speed_beside_collectives", most=1.0)
        whole(self.overhead, what + "overhead")
        whole(self.shard_overhead, what + "shard_overhead")
        whole(self.runtime, what + "runtime")
        whole(self.team, what + "team", 1)
        whole(self.spread, what + "spread", 1)
        for name, least in (("memory", 0), ("bandwidth", 1), ("on_chip", 0)):
            if getattr(self, name) is not None:
                whole(getattr(self, name), what + name, least)
        for number_format, rate in mapping(self.peak, what + "peak").items():
            whole(rate, f"{what}peak of {number_format}", 1)
        if self.price is not None:
            real(self.price, what + "price")
        for name in ("timed_as", "members", "source"):
            if (text := getattr(self, name)) is not None:
                printable(text, what + name)
        plain(self)

    @property
    def at_card(self) -> int:
        """Devices of a team that use the card of a node at once."""
        return self.team // self.spread

    def as_team(self, team: int, spread: int = 1) -> "DeviceKind":
        """Return the kind of teams of so many of these devices; their times are those of its own tables."""
        price = None if self.price is None else self.price * team
        return replace(self, speed=1.0, timed_as=None, team=team, spread=spread, price=price)


@dataclass(frozen=True, slots=True)
class Link:
    """Bandwidth in bytes per second (None: transfers are free) and latency in nanoseconds.

    ``collective_efficiency`` is the share of the bandwidth that each rank of a ring all-reduce reaches, where that was
    measured. It is below 1 because libraries copy and add between rounds, and above 1 where the network itself adds.

    At levels 2 and 3 of ZeRO parameters are gathered and gradients summed layer by layer. The rounds of these reach the
    share ``unit_efficiency`` of the bandwidth that an all-reduce reaches, and each of them takes ``unit_overhead``
    nanoseconds more, as libraries pack and unpack a layer's parameters, and wait. They run beside the computation if
    ``unit_overlap`` is true; torch waits for each of them on CPUs.

    ``collective`` names the algorithm that sums over this link where it is a group's slowest (`costs.collectives`).

    Notes
    -----
    b bytes arrive after latency + b / bandwidth (Hockney, 1994). The r replicas of a stage sum b bytes in
    2 (r − 1) rounds of ⌈b / r⌉ bytes (a ring, Patarasuk and Yuan, 2009).

    Examples
    --------
    >>> pipeplan.Link(bandwidth=25 * 10**9, latency=5_000).bandwidth  # 25 GB/s, 5 us
    25000000000
    """

    bandwidth: int | None = None
    latency: int = 0
    collective_efficiency: float = 1.0
    unit_overhead: int = 0
    unit_efficiency: float = 1.0
    unit_overlap: bool = True
    collective: str = "ring"

    def __post_init__(self) -> None:
        each_a((self.collective,), str, "collective of a link")
        real(self.collective_efficiency, "collective_efficiency", above=True)
        real(self.unit_efficiency, "unit_efficiency", above=True)
        whole(self.unit_overhead, "unit_overhead of a link")
        whole(self.latency, "latency of a link")
        if self.bandwidth is not None:
            whole(self.bandwidth, "bandwidth of a link (bytes per second; None is a free link)", 1)
        switch(self.unit_overlap, "unit_overlap of a link")
        plain(self)

    def occupancy(self, size: int) -> int:
        """Nanoseconds that ``size`` bytes keep the link busy (rounded up)."""
        return 0 if self.bandwidth is None else -(-size * 10**9 // self.bandwidth)

    @property
    def in_collectives(self) -> "Link":
        """The link at the bandwidth that the rounds of a collective reach."""
        if self.bandwidth is None or self.collective_efficiency == 1.0:
            return self
        return Link(max(min(round(self.bandwidth * self.collective_efficiency), LARGEST), 1), self.latency)

    @property
    def in_units(self) -> "Link":
        """The link as the gathers and sums of single layers find it, without their overhead."""
        return changed(self, collective_efficiency=self.collective_efficiency * self.unit_efficiency)


@dataclass(frozen=True, slots=True)
class Node:
    """Devices of one machine: the kind of each, and the link between any two of them.

    Attributes
    ----------
    kinds : tuple of str
        Name of the kind of each device.
    link : Link

    Examples
    --------
    >>> len(pipeplan.Node(("v100", "v100"), pipeplan.Link(25 * 10**9)).kinds)
    2
    """

    kinds: tuple[str, ...]
    link: Link = Link()

    def __post_init__(self) -> None:
        each_a(self.kinds, str, "kinds of a node's devices")
        each_a((self.link,), Link, "the link of a node")


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a cluster: its position, its kind, its node.

    Attributes
    ----------
    index : int
        Device 3 is ``d3``.
    kind : DeviceKind
    node : int
        Number of its node.

    Examples
    --------
    >>> [device.node for device in pipeplan.load_cluster("2x2-v100-10gbit").devices]
    [0, 0, 1, 1]
    """

    index: int
    kind: DeviceKind
    node: int

    @property
    def label(self) -> str:
        """Label for tables: ``'d3 v100 (node 1)'``."""
        return f"d{self.index} {self.kind.name} (node {self.node})"


StageDevices = tuple[tuple[Device, ...], ...]
"""The devices of each stage, one per replica."""


@dataclass(frozen=True, repr=False)
class Cluster(Tabular):
    """Kinds, nodes and the network between the nodes.

    Attributes
    ----------
    name : str
    kinds : mapping of str to DeviceKind
    nodes : tuple of Node
    network : Link or None
        Between nodes: one card per node, which its devices share.
    overlap : Overlap
    notes : tuple of str
        Remarks, like sources of figures.

    Raises
    ------
    InputError
        If a node names an unknown kind, there is no device, there are more than `MOST_DEVICES`, or several nodes have
        no network.

    Examples
    --------
    >>> kind = pipeplan.DeviceKind("small", memory=8 * 2**30)
    >>> node = pipeplan.Node(("small", "small"), pipeplan.Link(25 * 10**9))
    >>> cluster = pipeplan.Cluster("two nodes", {"small": kind}, (node, node), network=pipeplan.Link(1_250_000_000))
    >>> len(cluster.devices)
    4
    """

    name: str
    kinds: Mapping[str, DeviceKind]
    nodes: tuple[Node, ...]
    network: Link | None = None
    overlap: Overlap = Overlap.NONE
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_parts()
        if not any(node.kinds for node in self.nodes):
            raise InputError(f"cluster {self.name!r} has no devices")
        count = sum(len(node.kinds) for node in self.nodes)
        if count > MOST_DEVICES:
            raise InputError(
                f"cluster {self.name!r} has {count} devices; {MOST_DEVICES} are the most that can be taken"
            )
        for number, node in enumerate(self.nodes):
            for kind in node.kinds:
                if kind not in self.kinds:
                    known = ", ".join(sorted(self.kinds))
                    raise InputError(f"cluster {self.name!r}: node {number} names kind {kind!r}; known are {known}")
        if len(self.nodes) > 1 and self.network is None:
            raise InputError(f"cluster {self.name!r} has {len(self.nodes)} nodes; give the network between them")

    def _check_parts(self) -> None:
        printable(self.name, "the name of a cluster")
        what = f"cluster {self.name!r}: "
        for name, kind in mapping(self.kinds, what + "kinds").items():
            printable(name, what + "the name of a kind of device")
            each_a((kind,), DeviceKind, what + "kinds")
        each_a(self.nodes, Node, what + "nodes")
        each_a(() if self.network is None else (self.network,), Link, what + "network")
        object.__setattr__(self, "overlap", member(self.overlap, what + "overlap", Overlap))
        each_a(self.notes, str, what + "notes")

    @property
    def headline(self) -> str:
        """Name, devices and nodes, in one line."""
        kinds = Counter(device.kind.name for device in self.devices)
        devices = " and ".join(f"{count} {kind}" for kind, count in kinds.items())
        return f"{self.name}: {devices} in {counted(len(self.nodes), 'node')}"

    def table(self) -> Table:
        """A row per device."""
        columns: dict[str, Unit] = {"device": "", "node": "", "kind": "", "memory": "bytes", "speed": ""}
        rows = (
            (f"d{each.index}", each.node, each.kind.name, each.kind.memory, each.kind.speed) for each in self.devices
        )
        return Table(columns, tuple(rows))

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """All devices, in order of nodes."""
        pairs = [(self.kinds[kind], number) for number, node in enumerate(self.nodes) for kind in node.kinds]
        return tuple(Device(index, kind, node) for index, (kind, node) in enumerate(pairs))

    @cached_property
    def counts(self) -> tuple[tuple[DeviceKind, int], ...]:
        """The kinds of which there are devices, in the order of the first of each, with their numbers."""
        counts = Counter(kind for node in self.nodes for kind in node.kinds)
        return tuple((self.kinds[name], count) for name, count in counts.items())

    @cached_property
    def alike(self) -> tuple[tuple[Device, ...], ...]:
        """Devices of one kind with one link inside their nodes, in order; the sets in the order of their first ones."""
        found: dict[tuple[int, str], list[Device]] = {}
        number: dict[Link, int] = {}
        devices = iter(self.devices)
        for node in self.nodes:
            link = number.setdefault(node.link, len(number))
            for kind in node.kinds:
                found.setdefault((link, kind), []).append(next(devices))
        return tuple(map(tuple, found.values()))

    def link(self, source: Device, target: Device) -> Link:
        """The link that a tensor from ``source`` to ``target`` takes."""
        if source.node == target.node:
            return self.nodes[source.node].link
        network = self.between(source.kind, target.kind)
        assert network is not None
        return network

    def between(self, source: DeviceKind, target: DeviceKind) -> Link | None:
        """The network as devices of two kinds in different nodes find it; None if there is none.

        All members of the larger team in a node use its card at once, so each has its share.
        """
        members, network = max(source.at_card, target.at_card), self.network
        if members == 1 or network is None or network.bandwidth is None:
            return network
        if members not in self._shares:
            self._shares[members] = replace(network, bandwidth=max(network.bandwidth // members, 1))
        return self._shares[members]

    @cached_property
    def _shares(self) -> dict[int, Link]:
        """The network as so many members that send at once find it: a step has thousands of tensors of few kinds."""
        return {}

    @staticmethod
    def uniform(count: int, kind: DeviceKind, link: Link | None = None, overlap: Overlap = Overlap.COPY) -> "Cluster":
        """Return a cluster of ``count`` equal devices in one node."""
        whole(count, "the number of devices", 1, MOST_DEVICES)
        each_a((kind,), DeviceKind, "the kind of uniform devices")
        node = Node(kinds=(kind.name,) * count, link=Link() if link is None else link)
        return Cluster(name=f"{count} x {kind.name}", kinds={kind.name: kind}, nodes=(node,), overlap=overlap)
