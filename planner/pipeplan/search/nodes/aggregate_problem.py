"""Layouts: sets of device groups, each as one allocation problem, on clusters with too many groups to enumerate.

::

    equal      one number r of replicas for all stages, packed or in tiles (`search.space.device_groups`): a unit is
               one stage
    unequal    every stage has a whole number of units of g devices, packed one after the other

Packed units may straddle nodes, and the number of units behind a stage does not determine which ones do. Then the
faster of the link inside a node and the network counts.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from pipeplan.core.job import SHARDED, Job, Objective
from pipeplan.core.wording import counted
from pipeplan.costs.chain import Array
from pipeplan.costs.collectives import Collective, all_reduce
from pipeplan.costs.network import shared, slowest
from pipeplan.costs.pricing import usable_memory
from pipeplan.search.nodes.tied_copies import with_certain_copies
from pipeplan.search.regimes import REGIMES
from pipeplan.search.space.device_groups import DeviceClass, Mode, Modes, distinct_tiles, shares_equally
from pipeplan.search.space.least import LeastTables, possible_links, possible_rings
from pipeplan.search.space.space import Space
from pipeplan_formulations.allocation import Allocation, ChainAllocation, InFlightRule
from pipeplan_formulations.allocation.endings import with_second_ending

UNITS = REGIMES.layout_units.most
"""Most units of all classes in an unequal layout: the unit is chosen large enough."""
CELLS = REGIMES.layout_cells.most
"""Most layers x units x widths of an unequal layout: the effort of its dynamic programme."""
SMALL = REGIMES.tree_units.most
"""Most units of all classes in a layout whose device groups are all searched in a tree,"""
SMALL_CELLS = REGIMES.tree_cells.most
"""and most layers x units x widths."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Placement of units on a cluster.

    Attributes
    ----------
    unit : int
        Devices per unit.
    widths : tuple of int
        Units that a stage may have.
    units, per_node : tuple of int
        For each device class: number of units, and units per node (1 if a unit fills nodes).
    tile : int or None
        Replicas of one stage in a node, in an equal layout; None is packed.
    """

    unit: int
    widths: tuple[int, ...]
    units: tuple[int, ...]
    per_node: tuple[int, ...]
    tile: int | None = None

    def in_words(self) -> str:
        """The replicas of its stages: "8 replicas each, 2 in a node", "unequal replicas, multiples of 4"."""
        if len(self.widths) > 1:
            return "unequal replicas" + (f", multiples of {self.unit}" if self.unit > 1 else "")
        each = f"{counted(self.unit, 'replica')} each"
        return each if self.tile is None else f"{each}, {self.tile} in a node"

    def straddles(self, each: DeviceClass) -> bool:
        """Return True if packed units of a class may lie in two nodes without filling them."""
        node = each.per_node
        return len(each.nodes) > 1 and not (each.even and (node % self.unit == 0 or self.unit % node == 0))

    def cells(self, layers: int) -> int:
        """Layers x units x widths."""
        return layers * sum(self.units) * len(self.widths)

    def small(self, layers: int) -> bool:
        """Return True if the device groups are few enough for a tree over all of them."""
        return sum(self.units) <= SMALL and self.cells(layers) <= SMALL_CELLS

    def before(self, last: Modes) -> Iterator[Mode]:
        """Yield the modes for a stage before ``last`` for which units are left."""
        for number, units in enumerate(self.units):
            left = units - sum(mode.replicas // self.unit for mode in last if mode.device_class == number)
            yield from (Mode(number, width * self.unit) for width in self.widths if width <= left)

    def modes(self, stages: Allocation) -> Modes:
        """The mode of each stage of an allocation."""
        return tuple(Mode(place.kind, place.width * self.unit) for place in stages)


def layouts(space: Space, micro_batches: int) -> Iterator[Layout]:
    """Yield the layouts for steps of ``micro_batches``; no stage has more replicas than that.

    Where single devices are the units of the unequal layout, it contains all packed layouts.
    """
    classes, job = space.classes, space.job
    most = min(max(len(each.devices) for each in classes), micro_batches)
    layers = len(space.model.layers)
    unequal = None if job.equal_replicas or len(set(job.replicas)) == 1 else _unequal_layout(job, classes, most, layers)
    whole = unequal is not None and unequal.unit == 1 and unequal.small(layers)  # it contains all packed layouts
    for replicas in _equal(job, classes, most, micro_batches):
        placements: tuple[int | None, ...] = (None, *distinct_tiles(classes, replicas))
        if job.regular:  # a tile is a part of a stage in a node
            placements = tuple(tile for tile in placements if tile in (None, replicas))
        for tile in placements[1:] if whole else placements:
            layout = _equal_layout(classes, replicas, tile)
            if any(layout.units):
                yield layout
    if unequal is not None:
        yield unequal


def packed_layouts(space: Space, micro_batches: int) -> Iterator[Layout]:
    """Yield all packed layouts of one number of replicas, also those that the unequal layout contains."""
    most = min(max(len(each.devices) for each in space.classes), micro_batches)
    for replicas in _equal(space.job, space.classes, most, micro_batches):
        layout = _equal_layout(space.classes, replicas, None)
        if any(layout.units):
            yield layout


def layout_lower_bound(space: Space, size: int, layout: Layout) -> int | None:
    """Cheap lower bound in nanoseconds on all plans of a layout; None if none of them fits in memory."""
    classes, bounds = space.classes, space.lower_bounds(size)
    if len(layout.widths) > 1:
        return bounds.evenly_shared(space.cluster)
    resident = min(int(space.prices.kept.resident(each.kind, layout.unit).sum()) for each in classes)
    usable = sorted((usable_memory(each.kind, space.job), n) for each, n in zip(classes, layout.units, strict=True))
    stages, there = len(space.model.layers), 0
    for memory, count in reversed(usable):  # the stages with the most memory; each has at least one layer
        there += memory * min(count, stages)
        stages -= min(count, stages)
    if resident > there:
        return None
    units: dict[str, int] = {}
    for each, count in zip(classes, layout.units, strict=True):
        units[each.kind.name] = units.get(each.kind.name, 0) + count
    return bounds.of_equal_stages(units, layout.unit)


def allocation_problem(space: Space, size: int, layout: Layout, alternating: bool, last: Modes = ()) -> ChainAllocation:
    """Return the allocation problem of a layout at a micro-batch size, in nanoseconds and bytes.

    With ``alternating`` it bounds 1F1B and GPipe (docs/bounds/allocation.md), and chooses in-flight counts unless SNO
    is the only 1F1B family. Otherwise it is a relaxation for the families other than 1F1B. ``last``: modes of the last
    stages, if these are fixed.
    """
    classes = space.classes
    prices, job = space.prices, space.job
    # Tables by class; replicas and rings by width.
    tables = [prices.table(each.kind, size) for each in classes]
    replicas = [width * layout.unit for width in layout.widths]
    rings = [[_rings(space, each, layout, r) for r in replicas] for each in classes]
    least = LeastTables.of(prices, [each.kind for each in classes], size, rings)
    hops = _SendTables(space, layout, size)
    phases = not alternating and space.phased

    # Below level 2 passes are alike for all widths; from there on a layout has one width.
    passes = [_least_passes(space, each, size, own[0]) for each, own in zip(classes, rings, strict=True)]

    def rows(name: str) -> Array:
        return np.stack([getattr(table, name) for table in tables])

    def with_buffers(workspace: Array) -> Array:
        backward = rows("backward").min(axis=0)
        return prices.kept.with_buffers(classes[0].kind, workspace.min(axis=0), backward, replicas[0])

    # Bytes are the least over classes, so that they hold for every class; times keep the class.
    deepest = min(len(space.model.layers), max(job.depths, default=len(space.model.layers)))
    problem = ChainAllocation(
        forward=np.stack([forward for forward, _ in passes]),
        backward=np.stack([backward for _, backward in passes]),
        **vars(replace(least, gather_hides=least.gather_hides.max(axis=1))),
        hides=np.stack([prices.hides(each.kind, size) for each in classes]),
        saved=rows("saved").min(axis=0),
        output=rows("output").min(axis=0),
        workspace=with_buffers(rows("workspace")),
        rebuilt=with_buffers(rows("workspace") + rows("saved")),
        recomputable=prices.recomputable,
        received=rows("boundary").min(axis=0),
        limit=np.array([usable_memory(each.kind, job) for each in classes], np.int64),
        units=np.minimum(layout.units, deepest * layout.widths[-1]),
        node=np.array(layout.per_node, np.int64),
        send=hops.send,
        send_back=hops.send,
        latency=hops.latency,
        cuts=space.constraints.cuts,
        micro_batches=job.batch // size,
        samples=job.batch,
        widths=layout.widths,
        unit=layout.unit,
        overlap=space.cluster.overlap.value,
        last=tuple((mode.device_class, mode.replicas // layout.unit) for mode in last),
        objective=job.objective.value,
        in_flight_rule=in_flight_rule(space) if alternating else "full" if phases else "fbp",
        alternating=alternating,
        phases=phases,
    )
    return with_second_ending(with_certain_copies(space, problem))


def _least_passes(space: Space, each: DeviceClass, size: int, rings: list[Collective]) -> tuple[Array, Array]:
    """Nanoseconds of each layer's forward and backward on a class of devices, the least over some rings."""
    table = space.prices.table(each.kind, size)
    found = [space.prices.passes(each.kind, size, ring) for ring in rings]
    least = [own.least for own in found if own is not None] or [(table.forward, table.backward)]
    forward, backward = (np.minimum.reduce(rows) for rows in zip(*least, strict=True))
    return forward, backward


def in_flight_rule(space: Space) -> InFlightRule:
    if space.job.objective is Objective.BOTTLENECK:  # a longer warm-up helps no endless pipeline
        return "sno"
    chooses = space.free or any(each.name == "1f1b-so" for each in space.families)
    return "non_increasing" if chooses else "sno"


class _SendTables:
    """Send times and latencies between classes: entry 0 inside a node, 1 over the network; if unknown, the least."""

    def __init__(self, space: Space, layout: Layout, size: int) -> None:
        classes, count = space.classes, len(space.classes)
        self.send = np.zeros((count, count, 2, len(space.model.layers) - 1), np.int64)
        self.latency = np.zeros((count, count, 2), np.int64)
        for a, source in enumerate(classes):
            for b, target in enumerate(classes):
                links = [possible_links(source, target, space.cluster.between(source.kind, target.kind))] * 2
                if a == b:
                    across = [space.cluster.between(source.kind, source.kind) or source.link]
                    unknown = layout.tile is None and layout.straddles(source)
                    unknown = unknown or a in space.placing.free
                    some_share = layout.widths != (1,)  # where some replicas share a node, others may not
                    links = [[source.link, *across] if some_share or unknown else [source.link], across]
                    links[1] = links[0] if unknown else across
                sent = space.prices.crossing(source.kind, target.kind, size).sent
                for entry, possible in enumerate(links):
                    send = [space.prices.occupancy(link, sent) for link in possible]
                    self.send[a, b, entry] = np.minimum.reduce(send)
                    self.latency[a, b, entry] = min(link.latency for link in possible)


def _equal(job: Job, classes: tuple[DeviceClass, ...], most: int, micro_batches: int) -> list[int]:
    """Replicas of equal layouts: those of the job, or all; on large clusters only divisors and multiples of a node.

    At levels 2 and 3 of ZeRO, which have no unequal layout, these are all that share the micro-batches equally.
    """
    if job.level >= SHARDED:
        asked = job.replicas or range(1, most + 1)
        return sorted(r for r in set(asked) if r <= most and shares_equally(job, r, micro_batches))
    if job.replicas:
        return sorted(r for r in set(job.replicas) if r <= most)
    if sum(len(each.devices) for each in classes) <= SMALL:
        return list(range(1, most + 1))
    node = max(each.per_node for each in classes)
    inside = [r for r in range(1, node + 1) if node % r == 0]
    nodes = [node * k for k in range(2, most // node + 1)]
    if len(nodes) > UNITS:  # powers of two, and three times them
        nodes = sorted({node * k * 2**i for k in (1, 3) for i in range(most.bit_length())})
    return [r for r in (*inside, *nodes) if r <= most]


def _equal_layout(classes: tuple[DeviceClass, ...], replicas: int, tile: int | None) -> Layout:
    if tile is None:
        units = tuple(len(each.devices) // replicas for each in classes)
        return Layout(replicas, (1,), units, tuple(max(each.per_node // replicas, 1) for each in classes))
    rows = [len(each.devices) // each.per_node // (replicas // tile) for each in classes]
    per_node = tuple(each.per_node // tile for each in classes)
    return Layout(replicas, (1,), tuple(row * p for row, p in zip(rows, per_node, strict=True)), per_node, tile)


def _unequal_layout(job: Job, classes: tuple[DeviceClass, ...], most: int, layers: int) -> Layout | None:
    """The unequal layout; None if it has one width only."""
    unit = _unit(classes, layers)
    widths = tuple(w for w in range(1, most // unit + 1) if not job.replicas or w * unit in job.replicas)
    units = tuple(len(each.devices) // unit for each in classes)
    per_node = tuple(max(each.per_node // unit, 1) for each in classes)
    return Layout(unit, widths, units, per_node) if len(widths) > 1 else None


def _unit(classes: tuple[DeviceClass, ...], layers: int) -> int:
    """The least divisor or multiple of a node with at most `UNITS` units and `CELLS` of effort."""
    node = max(each.per_node for each in classes)
    devices = sum(len(each.devices) for each in classes)
    choices = [u for u in range(1, node + 1) if node % u == 0] + [node << i for i in range(1, devices.bit_length())]
    most = max(SMALL, min(UNITS, int((CELLS / layers) ** 0.5)))
    return next(unit for unit in choices if devices // unit <= most)


def _rings(space: Space, each: DeviceClass, layout: Layout, replicas: int) -> list[Collective]:
    """The rings that the replicas of a stage may form; the fastest of them is a lower bound."""
    network = space.cluster.between(each.kind, each.kind)
    every, inside = possible_rings(each, network, replicas), all_reduce(replicas, each.link)
    if network is None or len(each.nodes) == 1 or space.placing.free:  # stages may lie anywhere
        return every
    if layout.tile is not None:
        share = shared(network, each.per_node // layout.tile)
        several = (each.link,) if layout.tile > 1 else ()
        return [inside if replicas <= layout.tile else all_reduce(replicas, slowest(share, *several))]
    aligned = layout.widths == (1,) and not layout.straddles(each)
    return [inside] if aligned and replicas <= each.per_node else every
