"""Layouts: sets of device groups that one allocation problem bounds, on clusters with too many groups to enumerate.

::

    equal      one number r of replicas for all stages, packed or in tiles (`search.space.device_groups`): a unit is
               one stage
    unequal    every stage has a whole number of units of g devices, packed one after the other
    pooled     teams of several sizes share the devices of a class: a unit is a device, and a stage takes a multiple of
               its teams' devices (`search.space.mixed`)

Packed units may straddle nodes, and the number of units behind a stage does not determine which ones do, nor
where teams lie. Then the faster of the link inside a node and the network counts (`nodes.aggregate_problem`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import compress
from math import gcd

from pipeplan.core.job import SHARDED, Job
from pipeplan.core.wording import counted
from pipeplan.search.regimes import REGIMES
from pipeplan.search.space.device_groups import DeviceClass, Mode, Modes, distinct_tiles, even_widths, shares_equally
from pipeplan.search.space.mixed import MixedSpace
from pipeplan.search.space.space import Space
from pipeplan_formulations.allocation import Allocation

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
        Devices per unit; in a pooled layout replicas for each of a stage's width.
    widths : tuple of int
        Units that a stage may have; in a pooled layout replicas in ``unit``.
    units, per_node : tuple of int
        For each pool of devices: number of units, and units per node (1 if a unit fills nodes).
    tile : int or None
        Replicas of one stage in a node, in an equal layout; None is packed.
    pool, takes : tuple of int
        For each kind its pool, and the units that a stage takes for each of its width. A kind is a device class with a
        pool of its own; in a pooled layout a group of classes.
    able : tuple of tuple of bool
        The widths that stages of each kind may have.
    taken : int
        In a pooled layout: stages take a multiple of these devices.
    listed : bool
        Whether all placements of a row of modes can be listed.
    """

    unit: int
    widths: tuple[int, ...]
    units: tuple[int, ...]
    per_node: tuple[int, ...]
    tile: int | None = None
    pool: tuple[int, ...] = ()
    takes: tuple[int, ...] = ()
    able: tuple[tuple[bool, ...], ...] = ()
    taken: int = 1
    listed: bool = True

    def __post_init__(self) -> None:
        every = (True,) * len(self.widths)
        defaults = {"pool": range(len(self.units)), "takes": [1] * len(self.units), "able": [every] * len(self.units)}
        for name, default in defaults.items():
            object.__setattr__(self, name, getattr(self, name) or tuple(default))

    @property
    def unequal(self) -> bool:
        """True if stages may have unlike numbers of replicas."""
        return len(self.widths) > 1

    @property
    def pooled(self) -> bool:
        """True if teams of several sizes share devices."""
        return len(self.pool) > len(self.units)

    def as_text(self) -> str:
        """The replicas of its stages: "8 replicas each, 2 in a node", "unequal replicas, multiples of 4"."""
        if self.pooled:
            multiples = f", multiples of {self.taken} devices" * (self.taken > 1)
            equal = f", {counted(self.unit, 'replica')} each" * (not self.unequal)
            return f"unlike teams{equal or multiples}"
        if self.unequal:
            return "unequal replicas" + (f", multiples of {self.unit}" if self.unit > 1 else "")
        each = f"{counted(self.unit, 'replica')} each"
        return each if self.tile is None else f"{each}, {self.tile} in a node"

    def straddles(self, each: DeviceClass) -> bool:
        """Return True if packed units of a class may lie in two nodes without filling them."""
        node = each.per_node
        return len(each.nodes) > 1 and not (each.even and (node % self.unit == 0 or self.unit % node == 0))

    def cells(self, layers: int) -> int:
        """Layers x units x widths."""
        return layers * sum(self.units) * (sum(map(sum, self.able)) // len(self.units))

    def small(self, layers: int) -> bool:
        """Return True if the device groups are few enough for a tree over all of them."""
        return self.listed and sum(self.units) <= SMALL and self.cells(layers) <= SMALL_CELLS

    def by_family(self, layers: int) -> bool:
        """Return True if 1F1B and the other families have trees of their own."""
        return self.small(layers) and not self.pooled

    def before(self, last: Modes) -> Iterator[Mode]:
        """Yield the modes for a stage before ``last`` for which units are left."""
        left = list(self.units)
        for mode in last:
            left[self.pool[mode.device_class]] -= mode.replicas // self.unit * self.takes[mode.device_class]
        for kind, pool in enumerate(self.pool):
            for width in compress(self.widths, self.able[kind]):
                if width * self.takes[kind] <= left[pool]:
                    yield Mode(kind, width * self.unit)

    def modes(self, stages: Allocation) -> Modes:
        """The mode of each stage of an allocation."""
        return tuple(Mode(place.kind, place.width * self.unit) for place in stages)


def layouts(space: Space, micro_batches: int) -> Iterator[Layout]:
    """Yield the layouts for steps of ``micro_batches``; no stage has more replicas than that.

    Where single devices are the units of the unequal layout, it contains all packed layouts.
    """
    if isinstance(space, MixedSpace):
        yield from _pooled(space, micro_batches)
        return
    classes, job = space.classes, space.job
    most = min(max(len(each.devices) for each in classes), micro_batches)
    layers = len(space.model.layers)
    unequal = (
        None
        if job.equal_replicas or len(set(job.replicas)) == 1
        else _unequal_layout(job, classes, most, layers, micro_batches)
    )
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


def _equal(job: Job, classes: tuple[DeviceClass, ...], most: int, micro_batches: int) -> list[int]:
    """Replicas of equal layouts: those of the job, or all; on large clusters only divisors and multiples of a node.

    At levels 2 and 3 of ZeRO, which have no unequal layout, these are all that share the micro-batches equally.
    """
    if job.level >= SHARDED or job.staleness:
        return sorted(r for r in {*(job.replicas or range(1, most + 1))} if r <= most and micro_batches % r == 0)
    if job.replicas:
        return sorted(r for r in set(job.replicas) if r <= most)
    if sum(len(each.devices) for each in classes) <= SMALL:
        return list(range(1, most + 1))
    return even_widths(max(each.per_node for each in classes), most)


def _equal_layout(classes: tuple[DeviceClass, ...], replicas: int, tile: int | None) -> Layout:
    if tile is None:
        units = tuple(len(each.devices) // replicas for each in classes)
        return Layout(replicas, (1,), units, tuple(max(each.per_node // replicas, 1) for each in classes))
    rows = [len(each.devices) // each.per_node // (replicas // tile) for each in classes]
    per_node = tuple(each.per_node // tile for each in classes)
    return Layout(replicas, (1,), tuple(row * p for row, p in zip(rows, per_node, strict=True)), per_node, tile)


def _unequal_layout(
    job: Job, classes: tuple[DeviceClass, ...], most: int, layers: int, micro_batches: int
) -> Layout | None:
    """The unequal layout; None if it has one width only."""
    unit = _unit(classes, max(SMALL, min(UNITS, int((CELLS / layers) ** 0.5))))
    every = (w for w in range(1, most // unit + 1) if not job.replicas or w * unit in job.replicas)
    widths = tuple(w for w in every if shares_equally(job, w * unit, micro_batches))
    units = tuple(len(each.devices) // unit for each in classes)
    per_node = tuple(max(each.per_node // unit, 1) for each in classes)
    return Layout(unit, widths, units, per_node) if len(widths) > 1 else None


def _unit(classes: tuple[DeviceClass, ...], most: int) -> int:
    """The least divisor or multiple of a node of which there are at most so many."""
    node = max(each.per_node for each in classes)
    devices = sum(len(each.devices) for each in classes)
    choices = [u for u in range(1, node + 1) if node % u == 0] + [node << i for i in range(1, devices.bit_length())]
    return next(unit for unit in choices if devices // unit <= most)


def _pooled(space: MixedSpace, micro_batches: int) -> Iterator[Layout]:
    """Yield the layouts of unlike teams: one, or one for each number of replicas if all stages have equally many."""
    job, pools = space.job, space.pools
    devices = tuple(len(each.devices) for each in pools)
    taken = _unit(pools, UNITS)
    pool, teams = zip(*space.teams, strict=True)

    def able(replicas: int) -> tuple[bool, ...]:
        fits = ((t * replicas <= devices[p], t * replicas % taken == 0) for p, t in space.teams)
        return tuple(map(all, fits))

    asked = job.replicas or range(1, sum(devices) + 1)
    every = {
        r: able(r)
        for r in sorted(set(asked))
        if r <= micro_batches and shares_equally(job, r, micro_batches) and any(able(r))
    }
    for replicas in [(r,) for r in every] if job.equal_replicas else [tuple(every)] if every else []:
        unit = gcd(*replicas)
        yield Layout(
            unit,
            tuple(r // unit for r in replicas),
            devices,
            tuple(many + 1 for many in devices),
            pool=pool,
            takes=tuple(team * unit for team in teams),
            able=tuple(zip(*(every[r] for r in replicas), strict=True)),
            taken=taken,
            listed=space.complete,
        )
