"""`PlacedFamily`: families that choose which device runs which stages, possibly several.

::

    loop, 3 devices, 2 chunks           vee                             both ways, 4 devices
    device 0   stages 0 3               device 0   stages 0 5           device 0   stages 0 3
    device 1          1 4               device 1          1 4           device 1          1 2
    device 2          2 5               device 2          2 3           device 2          1 2
                                                                        device 3          0 3

A device's stages are its *chunks*. Each chunk is 1 / chunks of what the device would hold with one stage, so a micro-
batch kept by one chunk counts 1 / chunks of a device's share of its activations. A backward may be split into I, which
the stage ahead waits for, and W, which nobody waits for and which fills gaps.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pipeplan.core.errors import InputError
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.schedules.family import closing

Order = tuple[Action, ...]
Placement = tuple[tuple[int, ...], ...]
"""The devices of each stage, one a replica, as in `pipeplan.core.pipeline.Pipeline`."""


@dataclass(frozen=True)
class PlacedFamily:
    """A way to order the actions of a number of devices, each with the same number of stages.

    Attributes
    ----------
    name : str
    orders : callable
        ``orders(devices, micro_batches, chunks)``: each device's forwards and backwards. What ends a step is added by
        `write`.
    homes : callable
        ``homes(devices, chunks)``: the devices of each stage.
    summary : str
        One line for tables.
    chunks : int or None
        Stages on a device; None if any number will do.
    splits : bool
        Whether it writes I and W. (The stages' times must then say both.)
    even : bool
        Whether it needs an even number of devices.
    """

    name: str
    orders: Callable[[int, int, int], Iterable[Sequence[Action]]]
    homes: Callable[[int, int], Placement]
    summary: str
    chunks: int | None
    splits: bool = False
    even: bool = False

    def write(self, devices: int, micro_batches: int, chunks: int | None = None) -> Schedule:
        """The schedule: ``chunks`` stages on each device, two unless said otherwise or fixed by the family.

        Raises
        ------
        InputError
            If the numbers are none, or the family cannot take them.
        """
        chunks = self._checked(devices, micro_batches, chunks)
        homes = self.homes(devices, chunks)
        own = [[stage for stage, on in enumerate(homes) if device in on] for device in range(devices)]
        ends = [closing(stages, list(map(len, homes))) for stages in own]
        orders = self.orders(devices, micro_batches, chunks)
        return Schedule(self.name, tuple((*order, *end) for order, end in zip(orders, ends, strict=True)))

    def placement(self, devices: int, chunks: int | None = None) -> Placement:
        """The devices of each stage, in the order of the stages.

        Raises
        ------
        InputError
            As `write`.
        """
        return self.homes(devices, self._checked(devices, 1, chunks))

    def in_flight(self, devices: int, micro_batches: int, chunks: int | None = None) -> tuple[int, ...]:
        """The most stage activations that each device holds at a time, whatever the times are.

        A micro-batch counts once for every chunk, from the start of its forward to the end of its B or W.

        Raises
        ------
        InputError
            As `write`.
        """
        return tuple(map(most_held, self.write(devices, micro_batches, chunks).orders))

    def _checked(self, devices: int, micro_batches: int, chunks: int | None) -> int:
        if chunks is None:
            chunks = self.chunks or 2
        if min(devices, micro_batches, chunks) < 1:
            raise InputError(
                f"a schedule needs at least one device, one micro-batch and one stage a device, not {devices}, "
                f"{micro_batches} and {chunks}"
            )
        if self.chunks is not None and chunks != self.chunks:
            raise InputError(f"{self.name} gives each device {self.chunks} of the stages, not {chunks}; leave it out")
        if self.even and devices % 2:
            raise InputError(f"{self.name} needs an even number of devices, not {devices}")
        return chunks


def loop(devices: int, chunks: int) -> Placement:
    """Stage s on device s mod devices."""
    return tuple((stage % devices,) for stage in range(devices * chunks))


def vee(devices: int, chunks: int = 2) -> Placement:
    """Down the devices and up again, ``chunks`` times in all."""
    turns = (range(devices) if chunk % 2 == 0 else reversed(range(devices)) for chunk in range(chunks))
    return tuple((device,) for turn in turns for device in turn)


def both_ways(devices: int, _chunks: int = 2) -> Placement:
    """Two replicas of each stage, on devices that mirror each other: even micro-batches go down, odd ones up."""
    return tuple((device, devices - 1 - device) for device in range(devices))


def most_held(order: Iterable[Action]) -> int:
    """The most forwards in a list whose B or W has not come yet."""
    most = held = 0
    for action in order:
        if action.kind is Kind.FORWARD:
            held += 1
            most = max(most, held)
        elif action.kind in (Kind.BACKWARD, Kind.WEIGHT_GRADIENT):
            held -= 1
    return most
