"""Device groups of a pipeline: the devices of each stage, before layers are assigned.

::

    modes      (v100, 2)   (v100, 1)   (p100, 1)          per stage: kind and replicas
    devices    d0 d1       d2          d4                 packed: each kind's devices in the cluster's order

Devices of one kind whose nodes have the same link are one *class*. They are interchangeable except for their nodes.

Where a class fills more than one node and every stage has r replicas, a *tile* is the number of replicas of one stage
in one node. The node then holds that many replicas of several consecutive stages. With small tiles, activations stay in
the node and gradients leave it; with large ones the other way round. Tiles fill their nodes.

::

    tile 1     node 0: stages 0 1 2 3, first replicas      node 1: stages 0 1 2 3, second replicas
    tile 2     node 0: stages 0 0 1 1                      node 1: stages 2 2 3 3
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from math import gcd

from pipeplan.core.cluster import Cluster, Device, DeviceKind, Link, StageDevices
from pipeplan.core.job import SHARDED, Job, Order
from pipeplan.search.regimes import REGIMES

UNITS = REGIMES.layout_units.most
"""With more units than this of equally many replicas, not every number of replicas is tried."""


@dataclass(frozen=True)
class DeviceClass:
    """Devices of one kind with one link inside their nodes, in the cluster's order."""

    kind: DeviceKind
    link: Link
    devices: tuple[Device, ...]

    @cached_property
    def per_node(self) -> int:
        """Most devices of the class in one node."""
        return max(len(list(devices)) for _, devices in groupby(self.devices, key=lambda device: device.node))

    @cached_property
    def even(self) -> bool:
        """True if all nodes of the class hold equally many of its devices."""
        return len(self.nodes) * self.per_node == len(self.devices)

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """The place in ``devices`` behind the last device of each run of one node."""
        edges = (i for i, (a, b) in enumerate(pairwise(self.devices), 1) if a.node != b.node)
        return (*edges, len(self.devices))

    @cached_property
    def nodes(self) -> frozenset[int]:
        """Numbers of the nodes with devices of the class."""
        return frozenset(device.node for device in self.devices)


@dataclass(frozen=True, slots=True)
class Mode:
    """Devices of a stage: the number of their class, and how many."""

    device_class: int
    replicas: int


Modes = tuple[Mode, ...]


def device_classes(cluster: Cluster) -> tuple[DeviceClass, ...]:
    """The device classes, in the order of their first devices."""
    return tuple(DeviceClass(own[0].kind, cluster.nodes[own[0].node].link, own) for own in cluster.alike)


def arrange(classes: tuple[DeviceClass, ...], modes: Modes, tile: int | None = None) -> StageDevices | None:
    """Assign devices to modes; None if the nodes do not hold the tiles. Without a tile, stages take the next devices.

    A class that uses some of its devices, on several nodes, begins in the middle of its first node, so that its other
    nodes are full.
    """
    if tile is not None:
        return _tiled(classes, modes, tile)
    rows = [
        _used(device_class, sum(m.replicas for m in modes if m.device_class == c))
        for c, device_class in enumerate(classes)
    ]
    taken = [0] * len(classes)
    groups = []
    for mode in modes:
        start = taken[mode.device_class]
        taken[mode.device_class] = start + mode.replicas
        groups.append(rows[mode.device_class][start : start + mode.replicas])
    return tuple(groups)


def tiles(classes: tuple[DeviceClass, ...], replicas: int) -> tuple[int, ...]:
    """The tiles that stages with ``replicas`` replicas each may have; empty where packing is the only placement.

    A tile divides the replicas and every class's node.
    """
    if replicas == 1 or all(len(device_class.devices) <= device_class.per_node for device_class in classes):
        return ()
    largest = gcd(replicas, *(device_class.per_node for device_class in classes))
    return tuple(q for q in range(1, largest + 1) if largest % q == 0)


def distinct_tiles(classes: tuple[DeviceClass, ...], replicas: int) -> tuple[int, ...]:
    """The `tiles` that differ from packing."""

    def packed(tile: int, device_class: DeviceClass) -> bool:
        return (
            device_class.even
            and tile == min(replicas, device_class.per_node)
            and (replicas % tile == device_class.per_node % tile == 0)
        )

    return tuple(
        tile for tile in tiles(classes, replicas) if not all(packed(tile, device_class) for device_class in classes)
    )


def placements(cluster: Cluster, job: Job, classes: tuple[DeviceClass, ...], modes: Modes) -> Iterator[StageDevices]:
    """Yield the device groups of one sequence of modes that the job allows, each once, whatever is pinned.

    They are packed, and in each tile if all stages have equal replicas.
    """
    if job.order is Order.GIVEN:
        listed = _listed(cluster, modes)
        if not job.regular or aligned(cluster, listed):
            yield listed
        return
    widths = {mode.replicas for mode in modes}
    ways = [None, *(tiles(classes, *widths) if len(widths) == 1 else ())]
    every = (groups for tile in ways if (groups := allowed(cluster, job, classes, modes, tile)) is not None)
    yield from {tuple(tuple(device.index for device in group) for group in groups): groups for groups in every}.values()


def allowed(
    cluster: Cluster, job: Job, classes: tuple[DeviceClass, ...], modes: Modes, tile: int | None = None
) -> StageDevices | None:
    """Assign devices to modes as `arrange` does; None if the job does not allow that.

    Where stages must be regular and packed ones are not, those that do not fit into the rest of a node begin with the
    next one.
    """
    groups = arrange(classes, modes, tile)
    if not job.regular or (groups is not None and aligned(cluster, groups)):
        return groups
    return _within_nodes(cluster, classes, modes) if tile is None else None


def same_places(cluster: Cluster, one: StageDevices, other: StageDevices) -> bool:
    """Return whether two device groups differ only in which like devices, and which like nodes, they name."""
    return _places(cluster, one) == _places(cluster, other)


def _places(cluster: Cluster, groups: StageDevices) -> list[list[tuple[int, Link, str]]]:
    """For each device its node, numbered by first appearance, the node's link, and its kind."""
    number: dict[int, int] = {}
    return [
        [
            (number.setdefault(device.node, len(number)), cluster.nodes[device.node].link, device.kind.name)
            for device in group
        ]
        for group in groups
    ]


def aligned(cluster: Cluster, groups: StageDevices) -> bool:
    """Return whether every group lies inside one node, or is made of whole nodes."""
    there = Counter(device.node for device in cluster.devices)
    counts = (Counter(device.node for device in group) for group in groups)
    return all(len(nodes) == 1 or all(count == there[node] for node, count in nodes.items()) for nodes in counts)


def all_modes(cluster: Cluster, job: Job, layers: int, micro_batches: int) -> Iterator[Modes]:
    """Yield every sequence of modes that the job allows; each may have several placements on devices."""
    deepest = most_stages(job, layers, micro_batches)
    given = job.order is Order.GIVEN
    listed = _listed_classes(cluster) if given else []

    narrowest = min(job.replicas, default=1)
    most = min(micro_batches, len(cluster.devices))
    asked = sorted(job.replicas) or range(1, most + 1)
    free = shares_equally(job, micro_batches + 1, micro_batches)  # so any number does
    widths = [r for r in asked if r <= most and (free or micro_batches % r == 0)]

    def asked_for(modes: list[Mode]) -> bool:
        return not job.depths or len(modes) in job.depths

    def unreachable(depth: int, left: list[int]) -> bool:
        """Return True if no requested depth can be reached."""
        most = depth + sum(room // narrowest for room in left)
        return bool(job.depths) and not any(depth < wanted <= most for wanted in job.depths)

    def extend(modes: list[Mode], left: list[int], used: int) -> Iterator[Modes]:
        if modes and asked_for(modes):
            yield tuple(modes)
        if len(modes) == min(layers, deepest) or unreachable(len(modes), left):
            return
        # Add one stage: each class with devices left; in a given order only that of the next devices.
        for c, room in enumerate(left):
            if given:
                ahead = listed[used:]
                if not ahead or ahead[0] != c:
                    continue
                room = next((i for i, other in enumerate(ahead) if other != c), len(ahead))
            for width in [modes[0].replicas] if job.equal_replicas and modes else widths:
                if width > min(room, micro_batches):
                    break
                left[c] -= width
                yield from extend([*modes, Mode(c, width)], left, used + width)
                left[c] += width

    if job.equal_replicas and len(cluster.alike) == 1 and not given:
        depths = set(job.depths) or range(1, deepest + 1)
        for width in widths:
            most = min(layers, deepest, len(cluster.devices) // width)
            yield from ((Mode(0, width),) * depth for depth in range(1, most + 1) if depth in depths)
        return
    yield from extend([], [len(devices) for devices in cluster.alike], 0)


def _listed_classes(cluster: Cluster) -> list[int]:
    """The number of the class of each device."""
    class_of = {device.index: c for c, devices in enumerate(cluster.alike) for device in devices}
    return [class_of[device.index] for device in cluster.devices]


def most_stages(job: Job, layers: int, micro_batches: int) -> int:
    """The most stages that a job allows: without a flush no more than there are micro-batches in a batch."""
    return min(max(job.depths, default=layers), layers, micro_batches if job.staleness else layers)


def even_widths(per_node: int, most: int) -> list[int]:
    """Return divisors and multiples of a node, up to ``most``; of very many multiples powers of two, and three times.

    Such numbers of replicas are tried on large clusters for stages that all have equally many.
    """
    inside = [r for r in range(1, per_node + 1) if per_node % r == 0]
    nodes = [per_node * k for k in range(2, most // per_node + 1)]
    if len(nodes) > UNITS:
        nodes = sorted({per_node * k * 2**i for k in (1, 3) for i in range(most.bit_length())})
    return [r for r in (*inside, *nodes) if r <= most]


def shares_equally(job: Job, replicas: int, micro_batches: int) -> bool:
    """False if replicas would have unequal numbers of micro-batches that need equal ones.

    They sum gradients micro-batch by micro-batch, or go on to the next batch without a flush.
    """
    return (job.level < SHARDED and not job.staleness) or micro_batches % replicas == 0


def _used(device_class: DeviceClass, count: int) -> tuple[Device, ...]:
    """The first ``count`` devices of a class, shifted so that the last node is full: on the fewest nodes."""
    ends = device_class.ends
    if count <= ends[0]:
        return device_class.devices[:count]
    end = ends[bisect_left(ends, count)]
    return device_class.devices[end - count : end]


def _within_nodes(cluster: Cluster, classes: tuple[DeviceClass, ...], modes: Modes) -> StageDevices | None:
    """Device groups inside nodes, or on whole ones, in the cluster's order; None if the nodes do not hold them."""
    left = {
        (c, node): [device for device in device_class.devices if device.node == node]
        for c, device_class in enumerate(classes)
        for node in sorted(device_class.nodes)
    }
    groups: list[tuple[Device, ...]] = []
    for mode in modes:
        in_node = {node: devices for (c, node), devices in left.items() if c == mode.device_class}
        inside = next((node for node, devices in in_node.items() if len(devices) >= mode.replicas), None)
        whole = {node: devices for node, devices in in_node.items() if len(devices) == len(cluster.nodes[node].kinds)}
        used = (inside,) if inside is not None else _filled({n: len(d) for n, d in whole.items()}, mode.replicas)
        if not used:
            return None
        taken = [device for node in used for device in in_node[node]][: mode.replicas]
        groups.append(tuple(taken))
        for node in used:
            left[mode.device_class, node] = [device for device in in_node[node] if device not in taken]
    return tuple(groups)


def _filled(nodes: dict[int, int], devices: int) -> tuple[int, ...]:
    """Return the fewest nodes, the first of these, that have exactly so many devices together; empty if none do."""
    sums: dict[int, tuple[int, ...]] = {0: ()}
    for node, there in nodes.items():
        for reached, used in list(sums.items()):
            longer, known = (*used, node), sums.get(reached + there)
            if reached + there <= devices and (known is None or (len(longer), longer) < (len(known), known)):
                sums[reached + there] = longer
    return sums.get(devices, ())


def _listed(cluster: Cluster, modes: Modes) -> StageDevices:
    """Device groups of consecutive devices in the cluster's order."""
    groups, start = [], 0
    for mode in modes:
        groups.append(cluster.devices[start : start + mode.replicas])
        start += mode.replicas
    return tuple(groups)


def _tiled(classes: tuple[DeviceClass, ...], modes: Modes, tile: int) -> StageDevices | None:
    """Device groups in tiles; None if a class's nodes do not hold the tiles, or the tiles do not fill them."""
    replicas = modes[0].replicas
    groups: list[tuple[Device, ...]] = []
    place = [0] * len(classes)  # stages of each class so far
    for mode in modes:
        device_class, stage = classes[mode.device_class], place[mode.device_class]
        place[mode.device_class] += 1
        per_node, nodes_a_stage = device_class.per_node, replicas // tile
        row, column = divmod(stage, per_node // tile)
        numbers = [(row * nodes_a_stage + j // tile) * per_node + column * tile + j % tile for j in range(replicas)]
        if numbers[-1] >= len(device_class.devices) or not device_class.even:
            return None
        groups.append(tuple(device_class.devices[number] for number in numbers))
    if any(count % (device_class.per_node // tile) for count, device_class in zip(place, classes, strict=True)):
        return None
    return tuple(groups)
