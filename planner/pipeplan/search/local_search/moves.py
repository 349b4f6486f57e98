"""Random moves from a plan to a neighbour.

::

    stages    a a a │ b b │ c c c c │ d d        fast x 2   fast x 2   slow x 4   slow x 4      7 5 2 1 in flight

    moves     a boundary, or all from one to another by one layer
              in-flight counts of a stage, or of several in a row
              neighbouring device groups swapped; devices from one group to another; two groups merged; one split
              another micro-batch size
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

from pipeplan.core.cluster import StageDevices
from pipeplan.costs.chain import Boundaries
from pipeplan.search.evaluate import EvaluatedPlan
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.device_groups import Mode, Modes, arrange, tiles
from pipeplan.search.space.in_flight import free_family
from pipeplan.search.space.space import Space

MOST_MOVES = (1, 1, 1, 2, 2, 3)
"""Numbers of moves to a neighbour; one of them is drawn."""
MOST_KEPT = 256
"""Candidates that are kept, with their tables of costs."""


@dataclass(frozen=True)
class Placement:
    """Modes and tile of a plan's device groups; ``modes`` is None for groups that only the plan itself has."""

    modes: Modes | None
    tile: int | None = None

    @staticmethod
    def of(space: Space, groups: StageDevices) -> "Placement":
        """The placement that gives these groups."""
        class_of = {device.index: c for c, each in enumerate(space.classes) for device in each.devices}
        modes = tuple(Mode(class_of[group[0].index], len(group)) for group in groups)
        widths = {mode.replicas for mode in modes}
        for tile in (None, *(tiles(space.classes, *widths) if len(widths) == 1 else ())):
            if arrange(space.classes, modes, tile) == groups:
                return Placement(modes, tile)
        return Placement(None)


@dataclass(frozen=True)
class Neighbour:
    """A plan that is not evaluated yet."""

    placement: Placement
    candidate: Candidate
    boundaries: Boundaries

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal plans of one space."""
        each = self.candidate
        return self.placement, each.chain.micro_batch, each.family.name, each.in_flight, self.boundaries


class Moves:
    """Moves within a space. A neighbour may be outside the space, or may not fit: see `Space.outside`."""

    def __init__(self, space: Space, random: Random) -> None:
        self._space, self._random = space, random
        self._candidates: dict[tuple[Placement, int], list[Candidate]] = {}

    def neighbour(self, plan: EvaluatedPlan, placement: Placement) -> Neighbour | None:
        """One to three random moves from a plan; None if they lead nowhere."""
        random, candidate = self._random, plan.candidate
        edges, counts = list(plan.boundaries), list(candidate.in_flight)
        modes, size = None if placement.modes is None else list(placement.modes), candidate.chain.micro_batch
        for _ in range(random.choice(MOST_MOVES)):
            kind = random.random()
            if kind < 0.5:
                self._move_boundary(edges)
            elif kind < 0.65:
                self._move_boundaries(edges)
            elif kind < 0.85 or modes is None:
                self._change_counts(counts)
            elif kind < 0.98 and placement.tile is None:
                self._regroup(modes, edges, counts)
            else:
                size = random.choice(self._space.sizes)
        if any(a >= b for a, b in pairwise(edges)):
            return None
        # Other groups and another size are other candidates; other counts only another family.
        other = placement if modes is None else Placement(tuple(modes), placement.tile)
        if other != placement or size != candidate.chain.micro_batch:
            alike = [each for each in self._of(other, size) if each.family.alternates == candidate.family.alternates]
            if not alike:
                return None
            candidate = alike[0]
        if candidate.family.alternates and tuple(counts) != candidate.in_flight:
            if not candidate.free:
                return None
            candidate = replace(candidate, family=free_family(tuple(counts)))
        return Neighbour(other, candidate, tuple(edges))

    def _of(self, placement: Placement, size: int) -> list[Candidate]:
        """Candidates of a placement; none if the nodes do not hold it, or replicas would be idle."""
        key = placement, size
        if key not in self._candidates:
            if len(self._candidates) >= MOST_KEPT:
                self._candidates.clear()
            assert placement.modes is not None
            groups = arrange(self._space.classes, placement.modes, placement.tile)
            idle = max(mode.replicas for mode in placement.modes) > self._space.job.batch // size
            self._candidates[key] = [] if groups is None or idle else self._space.candidates(groups, size, free=False)
        return self._candidates[key]

    def _move_boundary(self, edges: list[int]) -> None:
        if len(edges) > 2:
            far = max(2, edges[-1] // (8 * (len(edges) - 1)))
            by = self._random.choice((-1, 1)) * self._random.choice((1, 1, 2, far))
            edges[self._random.randrange(1, len(edges) - 1)] += by

    def _move_boundaries(self, edges: list[int]) -> None:
        """Move one layer from a stage to a later one or back: the stages between keep their lengths."""
        if len(edges) > 2:
            first, last = sorted(self._random.randrange(1, len(edges) - 1) for _ in range(2))
            by = self._random.choice((-1, 1))
            edges[first : last + 1] = [edge + by for edge in edges[first : last + 1]]

    def _change_counts(self, counts: list[int]) -> None:
        first = self._random.randrange(len(counts))
        last = self._random.choice((first, self._random.randrange(first, len(counts))))
        by = self._random.choice((-1, 1))
        counts[first : last + 1] = [max(1, count + by) for count in counts[first : last + 1]]

    def _regroup(self, modes: list[Mode], edges: list[int], counts: list[int]) -> None:
        """Change the device groups, and boundaries and counts with them."""
        random = self._random
        i, j = random.randrange(len(modes)), random.randrange(len(modes))
        own, kind = modes[i], random.random()
        if kind < 0.4:  # swap neighbours, and mostly their lengths
            if i + 1 < len(modes):
                modes[i], modes[i + 1] = modes[i + 1], modes[i]
                if random.random() < 0.7:
                    edges[i + 1] = edges[i] + edges[i + 2] - edges[i + 1]
        elif kind < 0.75:  # devices from one group to another
            by = random.choice((1, 1, 2, 4))
            if i != j and own.device_class == modes[j].device_class and own.replicas > by:
                modes[i] = replace(own, replicas=own.replicas - by)
                modes[j] = replace(modes[j], replicas=modes[j].replicas + by)
        elif kind < 0.9:  # merge two neighbours
            if i + 1 < len(modes) and own.device_class == modes[i + 1].device_class:
                modes[i : i + 2] = [replace(own, replicas=own.replicas + modes[i + 1].replicas)]
                del edges[i + 1], counts[i + 1]
        elif own.replicas > 1 and edges[i + 1] - edges[i] > 1:  # split one
            first, length = random.randrange(1, own.replicas), edges[i + 1] - edges[i]
            modes[i : i + 1] = [replace(own, replicas=first), replace(own, replicas=own.replicas - first)]
            edges.insert(i + 1, edges[i] + min(max(length * first // own.replicas, 1), length - 1))
            counts.insert(i, counts[i] + 1)
