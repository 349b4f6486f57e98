"""Kinds of teams of one size that are joined in the allocation problem of all mixes, as their ways to split are many.

::

    4 x v100   way 1   way 2   way 3      one kind, of the least times and bytes of the three: a bound for each of them
    2 x v100   way 1   way 2              alike; below a node whose last stage has teams of 2 in way 2, this one alone
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from pipeplan.core.splits import Split
from pipeplan.search.nodes.mixed_problem import MixedLayout
from pipeplan.search.space.device_groups import Mode
from pipeplan.search.space.mixed import MixedSpace, Modes
from pipeplan_formulations.allocation import Allocation, ChainAllocation
from pipeplan_formulations.allocation.endings import with_second_ending
from pipeplan_formulations.allocation.joined import joined


@dataclass(frozen=True)
class JoinedKinds:
    """Groups of the kinds of a mixed space, and the problem in which each is one kind.

    Attributes
    ----------
    space : MixedSpace
    every : ChainAllocation
        The problem of all kinds, without forced modes.
    groups : tuple of tuple of int
        Numbers of kinds of one pool and one size of teams.
    problem : ChainAllocation
    """

    space: MixedSpace
    every: ChainAllocation
    groups: tuple[tuple[int, ...], ...]
    problem: ChainAllocation

    @classmethod
    def of(
        cls, space: MixedSpace, every: ChainAllocation, layout: MixedLayout, last: Modes, most: int
    ) -> "JoinedKinds":
        """At most ``most`` groups for each size of teams and pool, without ways that the last modes exclude."""
        known = {space.kinds[mode.device_class].team: space.kinds[mode.device_class].split for mode in last}
        rows: dict[tuple[int, int], list[int]] = {}
        for number, kind in enumerate(space.kinds):
            if known.get(kind.team, kind.split) == kind.split:
                rows.setdefault((kind.pool, kind.team), []).append(number)
        sizes = np.array(measures(every)).T
        groups = tuple(tuple(row[i] for i in group) for row in rows.values() for group in alike(sizes[row], most))
        place = {number: i for i, group in enumerate(groups) for number in group}
        forced = tuple((place[mode.device_class], mode.replicas // layout.unit) for mode in last)
        return cls(space, every, groups, with_second_ending(replace(joined(every, groups), last=forced)))

    def modes_of(self, layout: MixedLayout, stages: Allocation) -> Iterator[Modes]:
        """Yield the modes of an allocation's stages: each size of teams split in its fastest way, or in its leanest."""
        seen = list[Modes]()
        for chosen in self._ways(stages):
            number = {
                i: next((n for n in group if self.space.kinds[n].split == chosen[self.space.kinds[n].team]), None)
                for i, group in enumerate(self.groups)
                if self.space.kinds[group[0]].team in chosen
            }
            kinds = [number[place.kind] for place in stages]
            modes = tuple(
                Mode(kind, place.width * layout.unit)
                for kind, place in zip(kinds, stages, strict=True)
                if kind is not None
            )
            if len(modes) == len(stages) and modes not in seen:
                seen.append(modes)
                yield modes

    def one_way(self, stages: Allocation) -> Iterator["JoinedKinds"]:
        """Yield the problems in which each size of teams has one of the ways of most of its layers."""
        for chosen in self._ways(stages):
            own = tuple(
                (number,)
                for group in self.groups
                for number in group
                if self.space.kinds[number].split == chosen.get(self.space.kinds[number].team, ())
            )
            yield JoinedKinds(self.space, self.every, own, with_second_ending(joined(self.every, own)))

    def _ways(self, stages: Allocation) -> Iterator[dict[int, Split | None]]:
        """Yield for each size of teams the fastest way, then the leanest, of those in the group with most layers."""
        layers: dict[int, int] = {}
        for place in stages:
            layers[place.kind] = layers.get(place.kind, 0) + place.end - place.start
        group = {self._team(kind): self.groups[kind] for kind, _ in sorted(layers.items(), key=lambda item: item[1])}
        for measure in measures(self.every):
            yield {
                team: self.space.kinds[min(own, key=lambda number: float(measure[number]))].split
                for team, own in group.items()
            }

    def _team(self, group: int) -> int:
        return self.space.kinds[self.groups[group][0]].team


def measures(every: ChainAllocation) -> tuple[np.ndarray, np.ndarray]:
    """Time and bytes of each kind, summed over the layers."""
    times = (every.forward + every.backward).sum(axis=1)
    return times, every.resident.min(axis=1).sum(axis=1) + every.saved.sum(axis=1)


def alike(sizes: np.ndarray, most: int) -> list[tuple[int, ...]]:
    """Return at most ``most`` groups of rows, by their logarithms: each around the one farthest from those before."""
    place = np.log1p(sizes.astype(float))
    distance = np.abs(place[:, None] - place[None]).max(axis=2)
    centres = [int(place[:, 0].argmin())]
    while len(centres) < most and (nearest := distance[:, centres].min(axis=1)).max() > 0:
        centres.append(int(nearest.argmax()))
    home = distance[:, centres].argmin(axis=1)
    return [tuple(np.flatnonzero(home == i).tolist()) for i in range(len(centres))]
