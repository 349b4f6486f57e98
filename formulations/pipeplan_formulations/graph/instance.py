"""Problem definition: bottleneck partition of a graph into pipeline stages (groups to stages, stages to modes).

::

    groups       0 ──▶ 1 ──▶ 3 ──▶ 4            consecutive stages are differences of downsets: every predecessor of
                  ╲──▶ 2 ──╱─────▶ 5            a group lies in its own stage or in an earlier one
    stages      {0, 2}   {1, 3}   {4, 5}
    star of 2   source 2, readers {3, 5}        one tensor: charged once per stage and source, whatever the readers

A stage s has a mode μ, a non-empty set S of groups, and a variant of each. Constraints:

- *order*: a in stage s and b in stage t, with an edge a → b:  s ≤ t.
- *pools*: Σ_s takes(μ_s) ≤ pools.
- *memory limit*: Σ fixed + q (Σ held + Σ_{star enters} received) + max peak ≤ limit, with q micro-batches in flight. q
  follows from the flow of the stages behind stage s.
- *depths*, optional: the number of stages is one of ``depths``.

The objective is to minimise T, the largest stage load. A stage's load is the maximum, over the lines of its mode, of

    ⌈ (base? + Σ_{g in S} time + times (⌈Σ_{star leaves} leave / d⌉ + ⌈Σ_{star enters} enter / d⌉)) / share ⌉.

with d the line's ``divisor``, and the base if a group of the stage pays it. If costs depend on neighbouring modes, a
pair (μ_s, μ_{s+1}) either has a border or is forbidden. For a border, T is at least the *border load*

    ⌊ times ⌈Σ_{star crosses} leave / d⌉ / share ⌋.

Route ``direct``: a tensor goes from the stage of its source to the stage of each reader. It leaves the first stage if
any reader lies elsewhere, and enters each of the others. Route ``relay``: the tensor is handed from stage to stage up
to its last reader. It leaves s if it crosses the border behind s, and enters s if it crosses the border before s.

Lower bounds that need no solver:

- *lone group*: T is at least the least load of a stage that holds a single group g, for every g.
- *priced devices*: give the devices of each pool a price λ. A stage that costs κ_μ = λ · takes(μ) does at most T of
  work, so Σ_g min over modes of κ_μ time_μ(g) / share ≤ T λ · pools.

*Even places*: with devices as places, stages of several replicas divided evenly among theirs, load and memory limit
give linear rows. Proofs are in docs/bounds/graph.md.

==============  =======================================================================
inequality      functions
==============  =======================================================================
order           `GraphPartition.feasible`, `prefix._place`, `downsets.all_downsets`
pools, depths   `GraphPartition.feasible`, `prefix._modes`, `walk._States`
memory limit    `GraphPartition.memory`, `prefix_rows.memory`, `spans._most_behind`
load            `mode.Line.load`, `GraphPartition.loads`, `prefix_rows.loads`
border load     `mode.Border.load`, `GraphPartition.loads`, `prefix_rows.borders`
lone group      `bounds._alone`
priced devices  `bounds._priced`
even places     `by_places.Relaxation`
borders         `relayed.Relayed`, of all downsets, on route 'relay'
==============  =======================================================================
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from pipeplan_formulations.graph.mode import Array, Border, GraphMode, Line


class Star(NamedTuple):
    """One tensor: the group that makes it, and the other groups that read it."""

    source: int
    readers: tuple[int, ...]

    @property
    def members(self) -> tuple[int, ...]:
        """Source and readers."""
        return (self.source, *self.readers)


class GraphStage(NamedTuple):
    """A stage of a solution: index of its mode, its groups in ascending order, the variant of each."""

    mode: int
    groups: tuple[int, ...]
    variants: tuple[int, ...]


Stages = tuple[GraphStage, ...]


@dataclass(frozen=True)
class GraphPartition:
    """One instance of the problem; the module's docstring has its constraints and loads.

    Attributes
    ----------
    groups : int
        n.
    edges : tuple of (int, int)
        ``(a, b)``: a precedes b.
    stars : tuple of Star
        E stars; a star whose source comes after a reader stands for a gradient.
    pools : tuple of int
        Devices of each pool.
    modes : tuple of GraphMode
    route : {'direct', 'relay'}
    depths : tuple of int
        Allowed numbers of stages; empty allows all.
    borders : tuple of Border
    pairs : array of int, shape (modes, modes), optional
        For each mode and the next stage's mode: index of their border, or −1 if they may not be neighbours. By default
        there are no borders. Only on route 'relay'.

    Raises
    ------
    ValueError
        If array sizes disagree, an edge or star names an unknown group, edges form a cycle, or a relayed star runs
        backwards.
    """

    groups: int
    edges: tuple[tuple[int, int], ...]
    stars: tuple[Star, ...]
    pools: tuple[int, ...]
    modes: tuple[GraphMode, ...]
    route: Literal["direct", "relay"] = "direct"
    depths: tuple[int, ...] = ()
    borders: tuple[Border, ...] = ()
    pairs: Array | None = None

    def __post_init__(self) -> None:
        if self.groups < 1 or not self.modes:
            raise ValueError(f"{self.groups} groups and {len(self.modes)} modes; give at least one of each")
        ends = {end for edge in self.edges for end in edge} | {g for star in self.stars for g in star.members}
        if not ends <= set(range(self.groups)):
            raise ValueError(f"groups are 0 to {self.groups - 1}; {sorted(ends - set(range(self.groups)))[:5]} are not")
        if any(star.source in star.readers or not star.readers for star in self.stars):
            raise ValueError("a star needs at least one reader, and its source must not be one of them")
        for mode in self.modes:
            if mode.fixed.shape[1:] != (self.groups,) or mode.received.shape != (len(self.stars),):
                raise ValueError(
                    f"mode {mode.name!r} has tables not sized for {self.groups} groups and {len(self.stars)} stars"
                )
            if mode.flow < 1:
                raise ValueError(f"mode {mode.name!r} has a flow of {mode.flow}; a stage has at least one replica")
            if len(mode.takes) != len(self.pools):
                raise ValueError(f"mode {mode.name!r} takes from {len(mode.takes)} pools; there are {len(self.pools)}")
            if mode.fixed.shape != self.modes[0].fixed.shape:
                raise ValueError("modes differ in their number of variants")
        if self.route == "relay" and any(not self.forward(star) for star in self.stars):
            raise ValueError("every reader of a relayed star must be a descendant of its source by edges")
        if any(depth < 1 for depth in self.depths):
            raise ValueError(f"depths are {self.depths}; every number of stages must be at least 1")
        if self.pairs is not None:
            self._check_pairs(self.pairs)

    def _check_pairs(self, pairs: Array) -> None:
        count = len(self.modes)
        if self.route != "relay":
            raise ValueError("pairs of modes with borders need route 'relay'; route is 'direct'")
        if pairs.shape != (count, count) or not -1 <= int(pairs.min()) <= int(pairs.max()) < len(self.borders):
            raise ValueError(
                f"pairs must have shape ({count}, {count}) with border indices from -1 to {len(self.borders) - 1}"
            )
        if any(border.leave.shape != (len(self.stars),) for border in self.borders):
            raise ValueError(f"every border needs one entry per star, {len(self.stars)} in all")

    @property
    def variants(self) -> int:
        """Number of variants V."""
        return int(self.modes[0].fixed.shape[0])

    @cached_property
    def descendants(self) -> tuple[int, ...]:
        """For each group, a bit mask of its descendants; the group itself is not among them."""
        after: list[list[int]] = [[] for _ in range(self.groups)]
        for a, b in self.edges:
            after[a].append(b)
        masks = [0] * self.groups
        for g in reversed(topological_order(self.groups, self.edges)):
            for b in after[g]:
                masks[g] |= 1 << b | masks[b]
        return tuple(masks)

    def forward(self, star: Star) -> bool:
        """True if the edges put every reader after the source."""
        return all(self.descendants[star.source] >> reader & 1 for reader in star.readers)

    @cached_property
    def most_stages(self) -> int:
        """Upper bound on the number of stages, by groups, devices of each pool and allowed depths."""
        least = [min(mode.takes[p] for mode in self.modes) for p in range(len(self.pools))]
        limits = [pool // take for pool, take in zip(self.pools, least, strict=True) if take]
        total = min(sum(mode.takes) for mode in self.modes)
        deepest = [max(self.depths)] if self.depths else []
        return min([self.groups, sum(self.pools) // total, *limits, *deepest])

    def crossings(self, stages: Sequence[GraphStage]) -> tuple[Array, Array]:
        """Return (leave, enter): 1 where a star leaves or enters a stage, otherwise 0; each of shape (stages, E)."""
        place = {g: s for s, stage in enumerate(stages) for g in stage.groups}
        leave = np.zeros((len(stages), len(self.stars)), np.int64)
        enter = np.zeros_like(leave)
        for e, star in enumerate(self.stars):
            first, ends = place[star.source], [place[r] for r in star.readers]
            if self.route == "relay":
                leave[first : max(ends), e] = 1
                enter[first + 1 : max(ends) + 1, e] = 1
                continue
            leave[first, e] = any(end != first for end in ends)
            enter[[end for end in ends if end != first], e] = 1
        return leave, enter

    def loads(self, stages: Sequence[GraphStage]) -> list[int]:
        """Load of every stage: the maximum over its lines and of the border load behind it."""
        leave, enter = self.crossings(stages)
        loads = [
            max(_load(line, stage, leave[s], enter[s]) for line in self.modes[stage.mode].lines)
            for s, stage in enumerate(stages)
        ]
        if self.pairs is not None:
            for s, (before, behind) in enumerate(pairwise(stages)):
                border = self.borders[self.pairs[before.mode, behind.mode]]
                loads[s] = max(loads[s], border.load(int((border.leave * leave[s]).sum())))
        return loads

    def evaluate(self, stages: Sequence[GraphStage]) -> int:
        """Objective T: the largest load."""
        return max(self.loads(stages))

    def memory(self, stages: Sequence[GraphStage]) -> list[int]:
        """Left side of the memory limit for every stage, in bytes."""
        _, enter = self.crossings(stages)
        behind, need = 0, []
        for s, stage in reversed(list(enumerate(stages))):
            mode, at = self.modes[stage.mode], (list(stage.variants), list(stage.groups))
            each = int(mode.held[at].sum()) + int((mode.received * enter[s]).sum())
            need.append(int(mode.fixed[at].sum()) + mode.flying(behind) * each + int(mode.peak[at].max()))
            behind += mode.flow
        return need[::-1]

    def feasible(self, stages: Sequence[GraphStage]) -> bool:
        """True if every group lies in one stage, with a variant possible there, and all constraints hold."""
        place = {g: s for s, stage in enumerate(stages) for g in stage.groups}
        if sorted(g for stage in stages for g in stage.groups) != list(range(self.groups)):
            return False
        if any(not stage.groups or len(stage.groups) != len(stage.variants) for stage in stages):
            return False
        if self.depths and len(stages) not in self.depths:
            return False
        if self.pairs is not None and any(self.pairs[a.mode, b.mode] < 0 for a, b in pairwise(stages)):
            return False
        taken = np.sum([self.modes[stage.mode].takes for stage in stages], axis=0)
        possible = all(self.modes[m].possible[list(variants), list(groups)].all() for m, groups, variants in stages)
        fits = all(
            need <= self.modes[stage.mode].limit for need, stage in zip(self.memory(stages), stages, strict=True)
        )
        return possible and fits and (taken <= self.pools).all() and all(place[a] <= place[b] for a, b in self.edges)

    @cached_property
    def largest(self) -> int:
        """Upper bound on the load of any stage of any solution."""
        most = 0
        for mode in self.modes:
            for line in mode.lines:
                sums = (int(line.time.max(axis=0).sum()), int(line.leave.sum()), int(line.enter.sum()))
                most = max(most, line.load(*sums, 1))
        return max([most, *(border.load(int(border.leave.sum())) for border in self.borders)])


def _load(line: Line, stage: GraphStage, leave: Array, enter: Array) -> int:
    time = int(line.time[list(stage.variants), list(stage.groups)].sum())
    paying = int(line.pays[list(stage.groups)].sum())
    return line.load(time, int((line.leave * leave).sum()), int((line.enter * enter).sum()), paying)


def topological_order(groups: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Groups in topological order: every group after all its predecessors.

    Raises
    ------
    ValueError
        If edges form a cycle.
    """
    after: list[list[int]] = [[] for _ in range(groups)]
    missing = [0] * groups
    for a, b in edges:
        after[a].append(b)
        missing[b] += 1
    ready = [g for g in range(groups) if not missing[g]]
    order: list[int] = []
    while ready:
        order.append(ready.pop())
        for b in after[order[-1]]:
            missing[b] -= 1
            if not missing[b]:
                ready.append(b)
    if len(order) < groups:
        raise ValueError(f"edges form a cycle among {groups - len(order)} groups")
    return order
