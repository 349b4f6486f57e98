"""How much of the step each device, wire and network card is at work."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pipeplan.analysis.explain.setting import Setting
from pipeplan.core.cluster import Overlap


@dataclass(frozen=True, slots=True)
class Use:
    """A resource over one step.

    Attributes
    ----------
    name : str
        ``'d3 v100'``, ``'d0 to d1'``, ``'node 0 card out'``.
    kind : {'device', 'wire', 'card'}
        A wire joins two devices of a node in one direction; a card is shared by all devices of its node.
    busy : int
        Nanoseconds. A device that waits while it sends (overlap ``none``) is busy then too.
    share : float
        ``busy`` as a fraction of the step.
    hops : int
        For wires and cards: how many boundaries between stages share it. For devices: 0.
    """

    name: str
    kind: Literal["device", "wire", "card"]
    busy: int
    share: float
    hops: int = 0


def uses(setting: Setting) -> tuple[Use, ...]:
    """Devices in the order of the plan's ranks, then wires and cards that carry anything, busiest first."""
    return (*_devices(setting), *sorted(_wires(setting), key=lambda use: (-use.busy, use.name)))


def _devices(setting: Setting) -> Iterator[Use]:
    sending: dict[int, int] = defaultdict(int)
    if setting.pipeline.overlap is Overlap.NONE:
        for flight in setting.timeline.flights:
            sending[setting.pipeline.device_of(flight.source, flight.micro_batch)] += setting.transfer(flight).occupancy
    for rank in range(setting.pipeline.devices):
        busy = setting.timeline.busy(rank) + sending[rank]
        yield Use(setting.device(rank), "device", busy, _share(busy, setting.step))


def _wires(setting: Setting) -> Iterator[Use]:
    busy: dict[str, int] = defaultdict(int)
    for flight in setting.timeline.flights:
        way = setting.transfer(flight)
        for name in way.resources:
            busy[name] += way.occupancy
    for name, time in busy.items():
        if time:
            kind: Literal["wire", "card"] = "card" if is_card(name) else "wire"
            yield Use(name, kind, time, _share(time, setting.step), len(setting.hops_of[name]))


def is_card(resource: str) -> bool:
    """Whether a resource of transfers is a node's network card and not a wire between two devices."""
    return " card " in resource


def _share(busy: int, step: int) -> float:
    return busy / step if step else 0.0
