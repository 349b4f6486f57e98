"""`Setting`: a plan, its time line and readable names; `Use`: busy time of each device and link."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pipeplan.core.cluster import Overlap
from pipeplan.core.pipeline import Pipeline, Transfer
from pipeplan.core.plan import Plan
from pipeplan.core.timeline import Timeline, TransferSpan


@dataclass(frozen=True)
class Setting:
    """A plan and the time line of one of its steps, the source of every part of an explanation."""

    plan: Plan
    timeline: Timeline

    @property
    def pipeline(self) -> Pipeline:
        """Pipeline of the plan, from which the time line was simulated."""
        return self.plan.pipeline

    @property
    def step(self) -> int:
        """Nanoseconds of the step."""
        return self.timeline.makespan

    def device(self, rank: int) -> str:
        """Name of the device of a rank: ``'d3 v100'``; ``'t3 2 x v100'`` if a team is one."""
        return f"{self.number(rank)} {self.kind(rank)}"

    def number(self, rank: int) -> str:
        """Number of the device of a rank: ``'d3'``, or ``'t3'`` if teams are devices."""
        return f"{self.plan.letter}{self.plan.ranks[rank]}"

    def kind(self, rank: int) -> str:
        """Kind of the device of a rank: ``'v100'``; ``'2 x v100'`` if it is a team."""
        return self._kinds.get(rank, self.plan.device_kinds[self.plan.ranks[rank]])  # a rank may be idle

    @cached_property
    def _kinds(self) -> Mapping[int, str]:
        stages = zip(self.pipeline.placement, self.plan.stages, strict=True)
        return {rank: self.plan.kind_of(stage) for ranks, stage in stages for rank in ranks}

    def devices(self, stage: int) -> str:
        """Name of the devices of a stage: ``'d3 v100'``, or ``'4 v100, d0 … d3'`` with replicas."""
        ranks = self.pipeline.placement[stage]
        if len(ranks) == 1:
            return self.device(ranks[0])
        kinds = " and ".join(dict.fromkeys(map(self.kind, ranks)))
        teams = "teams of " if self.plan.stages[stage].team > 1 else ""
        return f"{len(ranks)} {teams}{kinds}, {self.number(ranks[0])} … {self.number(ranks[-1])}"

    def stage(self, stage: int) -> str:
        """Name of a stage: ``'stage 2 (d3 v100)'``."""
        return f"stage {stage} ({self.devices(stage)})"

    def transfer(self, tensor: TransferSpan) -> Transfer:
        """Cost of a tensor's transfer, with the link resources that it occupies."""
        pipeline = self.pipeline
        routes = pipeline.transfers if tensor.source < tensor.target else pipeline.returns
        boundary = routes[min(tensor.source, tensor.target)]
        return boundary[tensor.micro_batch % len(boundary)]

    def hop(self, tensor: TransferSpan) -> str:
        """Source and target device of a transfer: ``'d3 → d5'``."""
        ends = (self.pipeline.device_of(stage, tensor.micro_batch) for stage in (tensor.source, tensor.target))
        return " → ".join(map(self.number, ends))

    @cached_property
    def hops_of(self) -> Mapping[str, frozenset[int]]:
        """For each link or card, the boundaries between stages whose tensors pass it."""
        found: dict[str, set[int]] = {}
        for routes in (self.pipeline.transfers, self.pipeline.returns):
            for boundary, entries in enumerate(routes):
                for name in {name for entry in entries for name in entry.resources}:
                    found.setdefault(name, set()).add(boundary)
        return {name: frozenset(boundaries) for name, boundaries in found.items()}


@dataclass(frozen=True, slots=True)
class Use:
    """Busy time of a resource over one step.

    Attributes
    ----------
    name : str
        ``'d3 v100'``, ``'d0 to d1'``, ``'node 0 card out'``.
    kind : {'device', 'wire', 'card'}
        A link joins two devices of a node in one direction; a card is shared by all devices of its node.
    busy : int
        Nanoseconds. A device that waits while it sends (overlap ``none``) is busy then too.
    share : float
        ``busy`` as a fraction of the step.
    hops : int
        For links and cards: the number of stage boundaries that share it. For devices: 0.
    """

    name: str
    kind: Literal["device", "wire", "card"]
    busy: int
    share: float
    hops: int = 0


def uses(setting: Setting) -> tuple[Use, ...]:
    """Devices in the order of the plan's ranks, then links and cards that carry anything, busiest first."""
    return (*_devices(setting), *sorted(_link_resources(setting), key=lambda use: (-use.busy, use.name)))


def _devices(setting: Setting) -> Iterator[Use]:
    sending: dict[int, list[tuple[int, int]]] = defaultdict(list)
    if setting.pipeline.overlap is Overlap.NONE:  # a lane waits while it sends; the device's other lane may compute
        for tensor in setting.timeline.transfers:
            device = setting.pipeline.device_of(tensor.source, tensor.micro_batch)
            sending[device].append((tensor.start, tensor.start + setting.transfer(tensor).occupancy))
    for rank in range(setting.pipeline.devices):
        busy = setting.timeline.busy(rank, also=sending[rank])
        yield Use(setting.device(rank), "device", busy, _share(busy, setting.step))


def _link_resources(setting: Setting) -> Iterator[Use]:
    busy: dict[str, int] = defaultdict(int)
    for tensor in setting.timeline.transfers:
        way = setting.transfer(tensor)
        for name in way.resources:
            busy[name] += way.occupancy
    for name, time in busy.items():
        if time:
            kind: Literal["wire", "card"] = "card" if is_card(name) else "wire"
            yield Use(name, kind, time, _share(time, setting.step), len(setting.hops_of[name]))


def is_card(resource: str) -> bool:
    """True for a node's network card, False for a link between two devices."""
    return " card " in resource


def _share(busy: int, step: int) -> float:
    return busy / step if step else 0.0
