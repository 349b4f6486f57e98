"""`PlacedFamily`: schedule families that place stages on devices, possibly several per device.

::

    loop, 3 devices, 2 chunks           vee                             both ways, 4 devices
    device 0   stages 0 3               device 0   stages 0 5           device 0   stages 0 3
    device 1          1 4               device 1          1 4           device 1          1 2
    device 2          2 5               device 2          2 3           device 2          1 2
                                                                        device 3          0 3

A device's stages are its *chunks*. Each chunk is 1 / chunks of the device's part of the model, so a micro-batch held by
one chunk counts 1 / chunks of the device's activations of a micro-batch. A backward may be split into I, for which the
previous stage waits, and W, for which no action waits and which fills gaps.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import gcd

from pipeplan.core.cluster import Overlap
from pipeplan.core.errors import InputError
from pipeplan.core.pipeline import Placement
from pipeplan.core.schedule import Action, Kind, LikeLists, Schedule, like_lists
from pipeplan.schedules.family import Family, closing, largest_share

Order = tuple[Action, ...]
Orders = Callable[[int, int, int], Iterable[Sequence[Action]]]

Held = tuple[tuple[int, ...], ...]
"""What each device holds of each of its stages."""

KEPT = 2**12
"""Most micro-batches times stages of a schedule that is kept once it is written: plans differ in their partitions."""
STEADY = 4
"""A step of this many micro-batches per device reaches the steady state of all families that state no numbers held."""


@dataclass(frozen=True)
class PlacedFamily:
    """A generator of schedules for devices with equal numbers of stages.

    Attributes
    ----------
    name : str
    orders : callable
        ``orders(devices, micro_batches, chunks)`` returns each device's forwards and backwards. `write` adds the
        reductions and updates.
    homes : callable
        ``homes(devices, chunks)`` returns the devices of each stage.
    summary : str
        One line for tables.
    chunks : int or None
        Stages per device; None if any number is allowed.
    splits : bool
        Whether backwards are split into I and W. (The stages' times must then include both.)
    even : bool
        Whether it needs an even number of devices.
    joins : bool
        Whether some backwards are joined although it splits others.
    held : callable, optional
        ``held(devices, micro_batches, chunks)`` returns `fullest`; by default lists are written and counted.
    at_ends : callable
        ``at_ends(devices, micro_batches)`` returns how many forwards of each earlier chunk a device of a loop runs
        before the first one of its last chunk, and how many backwards of each behind the last one of that.
    """

    name: str
    orders: Orders
    homes: Callable[[int, int], Placement]
    summary: str
    chunks: int | None
    splits: bool = False
    even: bool = False
    joins: bool = False
    held: Callable[[int, int, int], Held] | None = None
    at_ends: Callable[[int, int], tuple[int, int]] = lambda _, micro_batches: (micro_batches, micro_batches)

    @property
    def in_rounds(self) -> bool:
        """Whether stages pass the devices in rounds, each stage on one device of a pipeline."""
        return self.homes is not both_ways

    @property
    def turns(self) -> bool:
        """Whether every second round of stages goes up the devices again."""
        return self.homes is vee

    def on_devices(self, chunks: int) -> Family:
        """Return the family whose stages are devices: all that a device runs of ``chunks`` stages is one stage to it.

        Its lists are those of the stages themselves, and it counts in flight what a device holds of all its stages.
        """
        ways = partial(self._of_devices, chunks), partial(self._held_on, chunks)
        return Family(self.name, *ways, frozenset(Overlap), self.summary, splits=self.splits, joins=self.joins)

    def _of_devices(self, chunks: int, replicas: Sequence[int], micro_batches: int) -> Schedule:
        return self.write(len(replicas), micro_batches, chunks, self._copies(replicas))

    def _held_on(self, chunks: int, replicas: Sequence[int], micro_batches: int) -> tuple[int, ...]:
        copies, devices = self._copies(replicas), len(replicas)
        own = {largest_share(copies, micro_batches), max(micro_batches // copies, 1)}  # a copy of fewer may hold more
        every = [self.in_flight(devices, many, chunks) for many in own]
        return tuple(map(max, zip(*every, strict=True)))

    def _copies(self, replicas: Sequence[int]) -> int:
        if len(set(replicas)) > 1:
            raise InputError(f"{self.name} needs equally many replicas of all devices, not {tuple(replicas)}")
        return replicas[0]

    def write(self, devices: int, micro_batches: int, chunks: int | None = None, copies: int = 1) -> Schedule:
        """Write the schedule with ``chunks`` stages on each device, by default the family's number or two.

        ``copies``: whole pipelines side by side, each on ``devices`` devices, that share out the micro-batches and sum
        their gradients. Micro-batch m runs on copy m mod copies.

        Raises
        ------
        InputError
            If the numbers are invalid, or the family does not support them.
        """
        chunks = self._checked(devices, micro_batches, chunks)
        if not 1 <= copies <= micro_batches:
            raise InputError(f"{copies} copies of a pipeline share {micro_batches} micro-batches; each needs one")
        write = _kept if micro_batches * devices * chunks <= KEPT else PlacedFamily._write
        return write(self, devices, micro_batches, chunks, copies)

    def _write(self, devices: int, micro_batches: int, chunks: int, copies: int) -> Schedule:
        homes = self.homes(devices, chunks)
        replicas = [len(row) * copies for row in homes]
        own = [[stage for stage, row in enumerate(homes) if device in row] for device in range(devices)]
        ends = [closing(stages, replicas) for stages in own]

        def of_copies(many: int, copies: int) -> LikeLists:
            lists = zip(self.orders(devices, many, chunks), ends, strict=True)
            return LikeLists(((*order, *end) for order, end in lists), copies)

        lanes = gcd(copies, micro_batches)
        many = [len(range(copy, micro_batches // lanes, copies // lanes)) for copy in range(copies // lanes)]
        each = {own: of_copies(own, len(many)) for own in set(many)}
        first = (each[own][device * len(many) + copy] for device in range(devices) for copy, own in enumerate(many))
        return Schedule(self.name, like_lists(first, lanes))

    def placement(self, devices: int, chunks: int | None = None, copies: int = 1) -> Placement:
        """Return the devices of each stage, in the order of the stages; those of copies lie side by side.

        Raises
        ------
        InputError
            As `write`.
        """
        homes = self.homes(devices, self._checked(devices, 1, chunks))
        return tuple(tuple(device * copies + c for device in row for c in range(copies)) for row in homes)

    def in_flight(self, devices: int, micro_batches: int, chunks: int | None = None) -> tuple[int, ...]:
        """Return the largest number of stage activations that each device holds at a time, whatever the times are.

        A micro-batch counts once for every chunk, from the start of its forward to the end of its B or W.

        Raises
        ------
        InputError
            As `write`.
        """
        return tuple(map(sum, self.fullest(devices, micro_batches, chunks)))

    def fullest(self, devices: int, micro_batches: int, chunks: int | None = None) -> Held:
        """Return what each device holds of each of its stages, the lowest first, when it first holds most in all."""
        chunks = self._checked(devices, micro_batches, chunks)
        if self.held is not None:
            return self.held(devices, micro_batches, chunks)
        return held_in_lists(self.orders, devices, min(micro_batches, STEADY * devices), chunks)

    def _checked(self, devices: int, micro_batches: int, chunks: int | None) -> int:
        if chunks is None:
            chunks = self.chunks or 2
        if min(devices, micro_batches, chunks) < 1:
            raise InputError(
                f"a schedule needs at least one device, one micro-batch and one stage per device, not {devices}, "
                f"{micro_batches} and {chunks}"
            )
        if self.chunks is not None and chunks != self.chunks:
            raise InputError(f"{self.name} gives each device {self.chunks} of the stages, not {chunks}; leave it out")
        if self.even and devices % 2:
            raise InputError(f"{self.name} needs an even number of devices, not {devices}")
        return chunks


_kept = lru_cache(maxsize=64)(PlacedFamily._write)


@lru_cache(maxsize=4096)
def held_in_lists(orders: Orders, devices: int, micro_batches: int, chunks: int) -> Held:
    """Return `PlacedFamily.fullest` of written lists; asked for again for each way to split layers."""
    return tuple(map(held_at_most, orders(devices, micro_batches, chunks)))


def loop(devices: int, chunks: int) -> Placement:
    """Place stage s on device s mod devices."""
    return tuple((stage % devices,) for stage in range(devices * chunks))


def vee(devices: int, chunks: int = 2) -> Placement:
    """Place stages down the devices and up again, ``chunks`` passes in total."""
    turns = (range(devices) if chunk % 2 == 0 else reversed(range(devices)) for chunk in range(chunks))
    return tuple((device,) for turn in turns for device in turn)


def both_ways(devices: int, _chunks: int = 2) -> Placement:
    """Place two replicas of each stage on mirrored devices: even micro-batches go down, odd ones up."""
    return tuple((device, devices - 1 - device) for device in range(devices))


def held_at_most(order: Iterable[Action]) -> tuple[int, ...]:
    """Return how many forwards of each stage, ascending, lack their B or W when most do for the first time."""
    held = dict[int, int]()
    most, best = 0, dict[int, int]()
    for action in order:
        if action.kind is Kind.FORWARD:
            held[action.stage] = held.get(action.stage, 0) + 1
            if (many := sum(held.values())) > most:
                most, best = many, dict(held)
        elif action.kind in (Kind.BACKWARD, Kind.WEIGHT_GRADIENT):
            held[action.stage] -= 1
    return tuple(best.get(stage, 0) for stage in sorted(held))
