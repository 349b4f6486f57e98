"""A plan on paper, and how its stages, devices and wires are called in an explanation."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from pipeplan.core.pipeline import Pipeline, Transfer
from pipeplan.core.plan import Plan
from pipeplan.core.timeline import Flight, Timeline


@dataclass(frozen=True)
class Setting:
    """A plan and the time line of one step of it; every part of an explanation is read from these two."""

    plan: Plan
    timeline: Timeline

    @property
    def pipeline(self) -> Pipeline:
        """What the plan was simulated from."""
        return self.plan.pipeline

    @property
    def step(self) -> int:
        """Nanoseconds of the step."""
        return self.timeline.makespan

    def device(self, rank: int) -> str:
        """``'d3 v100'`` for the device of a rank."""
        return f"d{self.plan.ranks[rank]} {self.kind(rank)}"

    def kind(self, rank: int) -> str:
        """``'v100'``."""
        return self.plan.device_kinds[self.plan.ranks[rank]]

    def devices(self, stage: int) -> str:
        """``'d3 v100'``, or ``'4 v100, d0 … d3'`` for a stage with replicas."""
        ranks = self.pipeline.placement[stage]
        if len(ranks) == 1:
            return self.device(ranks[0])
        kinds = " and ".join(dict.fromkeys(map(self.kind, ranks)))
        return f"{len(ranks)} {kinds}, d{self.plan.ranks[ranks[0]]} … d{self.plan.ranks[ranks[-1]]}"

    def stage(self, stage: int) -> str:
        """``'stage 2 (d3 v100)'``."""
        return f"stage {stage} ({self.devices(stage)})"

    def transfer(self, flight: Flight) -> Transfer:
        """What a tensor's way costs, and which wires it takes."""
        pipeline = self.pipeline
        ways = pipeline.transfers if flight.source < flight.target else pipeline.returns
        boundary = ways[min(flight.source, flight.target)]
        return boundary[flight.micro_batch % len(boundary)]

    def hop(self, flight: Flight) -> str:
        """``'d3 → d5'``: from device to device."""
        ends = (self.pipeline.device_of(stage, flight.micro_batch) for stage in (flight.source, flight.target))
        return " → ".join(f"d{self.plan.ranks[rank]}" for rank in ends)

    @cached_property
    def hops_of(self) -> Mapping[str, frozenset[int]]:
        """For each wire or card, the boundaries between stages whose tensors pass it."""
        found: dict[str, set[int]] = {}
        for ways in (self.pipeline.transfers, self.pipeline.returns):
            for boundary, entries in enumerate(ways):
                for name in {name for entry in entries for name in entry.resources}:
                    found.setdefault(name, set()).add(boundary)
        return {name: frozenset(boundaries) for name, boundaries in found.items()}
