"""Placements for layers that are pinned to devices: on which of the like devices each stage lies.

::

    pinned      l2 to d3                        stages (a, 1) (a, 1): which of them holds l2 is open
    homes       d3 on stage 0, or on stage 1    each is a question of its own
    placements  d3 | d0     d0 | d3             of like devices that no layer is pinned to one stands for all

Devices of one kind in one node are alike, and so are nodes with the same devices and link. Pinned ones are like none.
Where the device groups are few, every placement is searched that differs in more than this. Otherwise those are that
come from a packed one, or a tiled one, by an exchange of devices (docs/bounds/space.md).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

from pipeplan.core.cluster import Cluster, Device, StageDevices
from pipeplan.costs.chain import Boundaries
from pipeplan.search.space.device_groups import DeviceClass, Modes

Homes = dict[int, int]
"""The stage of each pinned device."""


@dataclass(frozen=True)
class Pins:
    """Layers that are pinned to single devices.

    Attributes
    ----------
    layers : int
        Number of layers of the model.
    spans : dict
        For each device that layers are pinned to the first and the last of them, ordered by the first one.
    """

    layers: int
    spans: dict[int, tuple[int, int]]

    @classmethod
    def of(cls, layers: int, pinned: list[tuple[int, int]]) -> "Pins":
        """The pins of these pairs of a layer and a device."""
        ends: dict[int, tuple[int, int]] = {}
        for layer, device in sorted(pinned):
            ends[device] = (ends.get(device, (layer, layer))[0], layer)
        return cls(layers, ends)

    def homes(self, classes: tuple[DeviceClass, ...], modes: Modes) -> Iterator[Homes]:
        """Yield all ways to give each pinned device to a stage, so that some partition may keep to the pins."""
        class_of = {device.index: c for c, device_class in enumerate(classes) for device in device_class.devices}
        devices = list(self.spans)

        def extend(homes: Homes) -> Iterator[Homes]:
            if len(homes) == len(devices):
                yield dict(homes)
                return
            device = devices[len(homes)]
            taken = Counter(homes.values())
            for stage, mode in enumerate(modes):
                fits = mode.device_class == class_of[device] and taken[stage] < mode.replicas
                if fits and self._reachable(device, stage, len(modes), homes):
                    yield from extend({**homes, device: stage})

        yield from extend({})

    def homes_at(self, boundaries: Boundaries) -> Homes | None:
        """The stage of each pinned device in a partition; None if layers of one device lie on several stages."""
        stage_of = [s for s, (a, b) in enumerate(pairwise(boundaries)) for _ in range(a, b)]
        if any(stage_of[first] != stage_of[last] for first, last in self.spans.values()):
            return None
        return {device: stage_of[first] for device, (first, _) in self.spans.items()}

    def _reachable(self, device: int, stage: int, depth: int, homes: Homes) -> bool:
        """Whether every stage has a layer left, with the layers of this device on this stage beside those of others."""
        first, last = self.spans[device]
        if stage > first or depth - 1 - stage > self.layers - 1 - last:
            return False
        for other, home in homes.items():  # all of them begin with an earlier layer
            between = first - self.spans[other][1]
            if not 0 <= stage - home <= max(between, 0):
                return False
        return True


def every_placement(
    cluster: Cluster, classes: tuple[DeviceClass, ...], modes: Modes, homes: Homes
) -> Iterator[StageDevices]:
    """Yield all device groups of a row of modes in which pinned devices lie on their stages, like ones once.

    The replicas of a stage take devices one after the other. Nodes that are alike and have given the same replicas so
    far stand for each other.
    """
    slots = [(s, mode.device_class) for s, mode in enumerate(modes) for _ in range(mode.replicas)]
    edges = [0, *accumulate(mode.replicas for mode in modes)]
    wanted = [{device for device, home in homes.items() if home == s} for s in range(len(modes))]
    free = _not_pinned(classes, homes)
    pinned = {cluster.devices[device].node for device in homes}
    of_node = [(n if n in pinned else -1, *sorted(node.kinds), node.link) for n, node in enumerate(cluster.nodes)]
    alike = [_in_rows(sorted(each.nodes), of_node.__getitem__) for each in classes]

    def options(number: int, history: dict[int, tuple[int, ...]], taken: tuple[Device, ...]) -> Iterator[Device]:
        stage, c = slots[number]
        missing = wanted[stage] - {device.index for device in taken[edges[stage] :]}
        left = edges[stage + 1] - number
        unused = (next((node for node in row if node not in history), None) for row in alike[c])
        seen = set()
        for node in sorted({*(node for node in unused if node is not None), *(n for n in history if (c, n) in free)}):
            key = (of_node[node], history.get(node))
            pinned_here = [
                cluster.devices[device] for device in sorted(missing) if cluster.devices[device].node == node
            ]
            used = sum(slots[k][1] == c and taken[k].index not in homes for k in history.get(node, ()))
            rest = pinned_here + free[c, node][used:]
            if key not in seen and rest and (pinned_here or left > len(missing)):
                seen.add(key)
                yield rest[0]

    def extend(taken: tuple[Device, ...], history: dict[int, tuple[int, ...]]) -> Iterator[tuple[Device, ...]]:
        number = len(taken)
        if number == len(slots):
            yield taken
            return
        for device in options(number, history, taken):
            after = history | {device.node: (*history.get(device.node, ()), number)}
            yield from extend((*taken, device), after)

    for taken in extend((), {}):
        yield tuple(taken[a:b] for a, b in pairwise(edges))


def _in_rows(nodes: Iterable[int], key: Callable[[int], object]) -> list[list[int]]:
    """The nodes in rows of those that have the same key."""
    rows: dict[object, list[int]] = {}
    for node in nodes:
        rows.setdefault(key(node), []).append(node)
    return list(rows.values())


def _not_pinned(classes: tuple[DeviceClass, ...], homes: Homes) -> dict[tuple[int, int], list[Device]]:
    """The devices of each class in each node that no layer is pinned to."""
    found: dict[tuple[int, int], list[Device]] = {(c, n): [] for c, each in enumerate(classes) for n in each.nodes}
    for c, device_class in enumerate(classes):
        for device in device_class.devices:
            if device.index not in homes:
                found[c, device.node].append(device)
    return found


def exchanged(cluster: Cluster, groups: StageDevices, homes: Homes) -> StageDevices | None:
    """Exchange devices of a placement so that pinned ones lie on their stages; None if a stage has no room for them.

    Each comes in place of a device of its node, if the stage has one there. Otherwise the stage's node is exchanged
    with a like one, or its devices with those of a like stage, or else two devices of one class. The first two leave
    all costs as they are.
    """
    done: Homes = {}
    for device, stage in homes.items():
        moved = _moved(cluster, groups, cluster.devices[device], stage, done)
        if moved is None:
            return None
        groups, done = moved, {**done, device: stage}
    return groups


def _moved(cluster: Cluster, groups: StageDevices, device: Device, stage: int, done: Homes) -> StageDevices | None:
    if device in groups[stage]:
        return groups
    free = [other for other in groups[stage] if other.index not in done]
    inside = [other for other in free if other.node == device.node]
    if inside:
        return _swapped(groups, [(inside[0], device)])
    for other in free:
        like = cluster.nodes[other.node] == cluster.nodes[device.node]
        if like and not any(cluster.devices[index].node in (other.node, device.node) for index in done):
            rows = (
                [candidate for candidate in cluster.devices if candidate.node == node]
                for node in (other.node, device.node)
            )
            return _moved(cluster, _swapped(groups, list(zip(*rows, strict=True))), device, stage, done)
    there = next((group for group in groups if device in group), ())
    if len(there) == len(free) == len(groups[stage]) and not any(other.index in done for other in there):
        return _swapped(groups, list(zip(there, free, strict=True)))  # of one class, as the device is
    return _swapped(groups, [(free[0], device)]) if free else None


def _swapped(groups: StageDevices, pairs: list[tuple[Device, Device]]) -> StageDevices:
    places = {a.index: b for pair in pairs for a, b in (pair, pair[::-1])}
    return tuple(tuple(places.get(device.index, device) for device in group) for group in groups)
