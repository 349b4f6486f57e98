"""`Placing`: the devices that stages of given kinds and widths may have, with pinned layers on theirs."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import islice

from pipeplan.core.cluster import Cluster, StageDevices
from pipeplan.core.job import SHARDED, Job
from pipeplan.costs.chain import Boundaries
from pipeplan.search.space.device_groups import DeviceClass, Mode, Modes, aligned, all_modes, allowed, placements
from pipeplan.search.space.pins import Homes, Pins, every_placement, exchanged


@dataclass(frozen=True)
class Placing:
    """The placements of a space.

    Attributes
    ----------
    cluster : Cluster
    job : Job
    classes : tuple of DeviceClass
    pins : Pins or None
        Layers pinned to devices for which like ones may stand; None if only `arranged` placements are searched.
    every : bool
        Whether every placement of like devices is searched; else those that `arranged` ones become by exchanges.
    """

    cluster: Cluster
    job: Job
    classes: tuple[DeviceClass, ...]
    pins: Pins | None = None
    every: bool = False

    @cached_property
    def spread(self) -> bool:
        """Whether like devices lie in several nodes beside others, so that placements differ."""
        nodes = self.cluster.nodes
        return any(len(nodes[n].kinds) > 1 for each in self.classes if len(each.nodes) > 1 for n in each.nodes)

    @cached_property
    def free(self) -> frozenset[int]:
        """Numbers of the classes of which a stage may have any devices, in several nodes."""
        return frozenset(c for c, each in enumerate(self.classes) if self.pins is not None and len(each.nodes) > 1)

    def of(self, modes: Modes) -> Iterator[StageDevices]:
        """Yield the device groups of one sequence of modes, each once."""
        if self.pins is None:
            yield from placements(self.cluster, self.job, self.classes, modes)
            return
        if self.every:
            found = self._everywhere(modes, self.pins)
            yield from (groups for groups in found if not self.job.regular or aligned(self.cluster, groups))
        else:
            arranged = tuple(placements(self.cluster, self.job, self.classes, modes))
            for homes in self.pins.homes(self.classes, modes):
                near = [moved for groups in arranged if (moved := self._moved(groups, homes)) is not None]
                yield from {tuple(d.index for own in groups for d in own): groups for groups in near}.values()

    def few(self, pins: Pins, micro_batches: int, most: int) -> bool:
        """Return True if all sequences of modes have at most so many placements, regular or not."""
        return _few(_Counted(self._counts(pins, micro_batches), self, pins, micro_batches), most)

    def _counts(self, pins: Pins, micro_batches: int) -> Hashable:
        """All that the number of placements depends on: the same for every way to split layers over teams."""
        of_class = {each.kind.name: c for c, each in enumerate(self.classes)}
        nodes = (tuple(sorted(of_class[kind] for kind in node.kinds)) for node in self.cluster.nodes)
        links = (node.link for node in self.cluster.nodes)
        shares = self.job.level >= SHARDED or bool(self.job.staleness)
        asked = self.job.depths, self.job.replicas, self.job.equal_replicas, shares, self.job.staleness
        return tuple(nodes), tuple(links), pins.layers, tuple(pins.spans.items()), micro_batches, asked

    def every_one(self, pins: Pins, micro_batches: int) -> Iterator[StageDevices]:
        """Yield all placements of all sequences of modes, regular or not."""
        for modes in all_modes(self.cluster, self.job, pins.layers, micro_batches):
            yield from self._everywhere(modes, pins)

    def _everywhere(self, modes: Modes, pins: Pins) -> Iterator[StageDevices]:
        for homes in pins.homes(self.classes, modes):
            yield from every_placement(self.cluster, self.classes, modes, homes)

    def arranged(self, modes: Modes, tile: int | None = None) -> StageDevices | None:
        """The device groups of one sequence of modes in one way, whatever is pinned; None if that is not possible."""
        return allowed(self.cluster, self.job, self.classes, modes, tile)

    def with_pins(self, groups: StageDevices) -> Iterator[StageDevices]:
        """Yield the device groups with like devices exchanged, one for each way to keep to the pins."""
        if self.pins is None:
            yield groups
            return
        modes = tuple(Mode(self._class_of[group[0].index], len(group)) for group in groups)
        for homes in self.pins.homes(self.classes, modes):
            moved = self._moved(groups, homes)
            if moved is not None:
                yield moved

    def for_partition(self, groups: StageDevices, boundaries: Boundaries) -> StageDevices:
        """The device groups with like devices exchanged so that a partition keeps to the pins, if that is possible."""
        homes = None if self.pins is None else self.pins.homes_at(boundaries)
        return groups if homes is None else self._moved(groups, homes) or groups

    def has(self, groups: StageDevices) -> bool:
        """Return True if these device groups are among those of their kinds and widths, or like some of these."""
        modes = tuple(Mode(self._class_of[group[0].index], len(group)) for group in groups)
        if any(
            self._class_of[device.index] != m.device_class for m, g in zip(modes, groups, strict=True) for device in g
        ):
            return False
        return self.every or groups in self.of(modes)

    @cached_property
    def _class_of(self) -> dict[int, int]:
        return {device.index: c for c, each in enumerate(self.classes) for device in each.devices}

    def _moved(self, groups: StageDevices, homes: Homes) -> StageDevices | None:
        if any(self._class_of[device] != self._class_of[groups[stage][0].index] for device, stage in homes.items()):
            return None
        moved = exchanged(self.cluster, groups, homes)
        return None if moved is not None and self.job.regular and not aligned(self.cluster, moved) else moved


@dataclass(frozen=True)
class _Counted:
    """A question whose answer depends on its ``key`` alone."""

    key: Hashable
    placing: Placing = field(compare=False)
    pins: Pins = field(compare=False)
    micro_batches: int = field(compare=False)


@lru_cache(maxsize=256)
def _few(counted: _Counted, most: int) -> bool:
    placing, pins, many = counted.placing, counted.pins, counted.micro_batches
    if not pins.spans:  # each sequence has a placement
        modes = all_modes(placing.cluster, placing.job, pins.layers, many)
        if next(islice(modes, most, None), None) is not None:
            return False
    return next(islice(placing.every_one(pins, many), most, None), None) is None
