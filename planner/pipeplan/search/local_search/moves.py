"""Random moves from a plan to a neighbour: small ones on the same device groups, and moves to other groups.

::

    stages    a a a │ b b │ c c c c │ d d        fast x 2   fast x 2   slow x 4   slow x 4      7 5 2 1 in flight

    small     a boundary, or all from one to another by one layer
              in-flight counts of a stage, and those that follow it
    groups    two device groups exchanged; devices from one to another, or unused ones; neighbours merged; one split
              another micro-batch size
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import gcd
from random import Random

from pipeplan.core.cluster import StageDevices
from pipeplan.costs.chain import Boundaries
from pipeplan.search.evaluate import EvaluatedPlan
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.device_groups import Mode, Modes, tiles
from pipeplan.search.space.in_flight import InFlightBox, free_family
from pipeplan.search.space.outside import lists
from pipeplan.search.space.space import MANY_UNITS, Space
from pipeplan_formulations.partition import balanced

NUMBERS = (1, 1, 1, 2, 2, 3)
"""Numbers of moves to a neighbour; one of them is drawn."""
RISING = 64
"""Most rows of rising numbers of replicas that are tried."""
NEAR = 16
"""Most stages of groups whose neighbours are tried in turn."""
BALANCED = 0.1
"""Share of changes of in-flight counts that change all boundaries."""


@dataclass(frozen=True)
class Placement:
    """Modes and tile of a plan's device groups; ``modes`` is None for groups that only the plan itself has."""

    modes: Modes | None
    tile: int | None = None

    @staticmethod
    def of(space: Space, groups: StageDevices) -> "Placement":
        """The placement that gives these groups."""
        class_of = {device.index: c for c, device_class in enumerate(space.classes) for device in device_class.devices}
        modes = tuple(Mode(class_of[group[0].index], len(group)) for group in groups)
        if any(
            class_of[device.index] != mode.device_class
            for mode, group in zip(modes, groups, strict=True)
            for device in group
        ):
            return Placement(None)  # unlike devices
        widths = {mode.replicas for mode in modes}
        for tile in (None, *(tiles(space.classes, *widths) if len(widths) == 1 else ())):
            arranged = space.placing.arranged(modes, tile)
            if arranged == groups or (arranged is not None and groups in space.placing.with_pins(arranged)):
                return Placement(modes, tile)
        return Placement(None)


def even_modes(space: Space) -> Iterator[Modes]:
    """Yield the rows of equally many replicas on all devices of each class, in the listed order and the other."""
    many, layers = [len(each.devices) for each in space.classes], len(space.model.layers)
    most = gcd(*many)
    for replicas in (r for r in range(most, 0, -1) if most % r == 0 and sum(many) <= r * layers):
        modes = tuple(Mode(c, replicas) for c, count in enumerate(many) for _ in range(count // replicas))
        yield from dict.fromkeys((modes, modes[::-1]))


def rising_modes(space: Space, random: Random) -> list[Modes]:
    """Return rows of powers of two of replicas that rise from stage to stage, on all devices; some, if they are many.

    Early stages hold most micro-batches, and wide ones have long rings: what is saved in hops is best saved at the end.
    """
    many, layers = len(space.cluster.devices), len(space.model.layers)
    if len(space.classes) > 1 or many > MANY_UNITS or space.job.equal_replicas:
        return []
    rows = [row for row in _rising(many, 1) if len(row) <= layers and row[0] < row[-1]]
    return [tuple(Mode(0, r) for r in row) for row in random.sample(rows, min(len(rows), RISING))]


def _rising(many: int, least: int) -> Iterator[tuple[int, ...]]:
    """Yield the ways to write a number as a sum of rising powers of two from ``least`` on."""
    if many == 0:
        yield ()
    elif least <= many:
        yield from ((least, *rest) for rest in _rising(many - least, least))
        yield from _rising(many, 2 * least)


class Moves:
    """Moves within a space. A neighbour may be outside the space, or may not fit: see `search.space.outside`."""

    def __init__(self, space: Space, random: Random) -> None:
        self.space, self._random = space, random

    def small(self, plan: EvaluatedPlan) -> tuple[Candidate, Boundaries] | None:
        """One to three small moves from a plan; None if they lead nowhere.

        Where in-flight counts change, so does memory, and a balanced partition may suit them better than the plan's.
        """
        random, candidate = self._random, plan.candidate
        edges, counts = list(plan.boundaries), candidate.in_flight
        for _ in range(random.choice(NUMBERS)):
            kind = random.random()
            if kind < 0.5:
                self._move_boundary(edges)
            elif kind < 0.7:
                self._move_boundaries(edges)
            else:
                counts = self._change_counts(candidate, counts)
        if any(a >= b for a, b in pairwise(edges)):
            return None
        if counts != candidate.in_flight:
            candidate = replace(candidate, family=free_family(counts))
            if not lists(self.space, candidate):
                return None
            if random.random() < BALANCED:
                boundaries = balanced(candidate.problem, plan.value)
                return None if boundaries is None else (candidate, boundaries)
        return candidate, tuple(edges)

    def near(self, placement: Placement) -> Iterator[Placement]:
        """Yield the groups with one in two, of halves or one replica alone, two neighbours exchanged, or two as one.

        None of many stages, whose neighbours are too many to try all.
        """
        modes = placement.modes if placement.modes and placement.tile is None and len(placement.modes) <= NEAR else ()
        rows = list[list[Mode]]()
        for i, mode in enumerate(modes):
            before, behind = modes[:i], modes[i + 1 :]
            for first in {1, mode.replicas // 2, mode.replicas - 1} - {0, mode.replicas}:
                rows.append([*before, replace(mode, replicas=first), _widened(mode, -first), *behind])
            if behind and behind[0] != mode:
                rows.append([*before, behind[0], mode, *behind[1:]])
            if behind and behind[0].device_class == mode.device_class:
                rows.append([*before, _widened(mode, behind[0].replicas), *behind[1:]])
        self._random.shuffle(rows)
        yield from (Placement(tuple(row)) for row in rows)

    def regrouped(self, placement: Placement, size: int) -> tuple[Placement, int]:
        """Other device groups, or another micro-batch size."""
        random = self._random
        if placement.modes is None or random.random() < 0.1:
            return placement, random.choice(self.space.sizes)
        modes = list(placement.modes)
        for _ in range(random.choice(NUMBERS)):
            self._regroup(modes, placement.tile is None)
        return Placement(tuple(modes), placement.tile), size

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

    def _change_counts(self, candidate: Candidate, counts: tuple[int, ...]) -> tuple[int, ...]:
        """Change the count of a stage, unless they are not free."""
        if not (candidate.free and candidate.family.alternates):
            return counts
        stage = self._random.randrange(len(counts))
        by = self._random.choice((-1, 1)) * self._random.choice((1, 1, 2, max(2, counts[stage] // 8)))
        return InFlightBox.of(candidate.replicas, candidate.micro_batches).moved(counts, stage, by)

    def _regroup(self, modes: list[Mode], packed: bool) -> None:
        random = self._random
        i, j = random.randrange(len(modes)), random.randrange(len(modes))
        mode, other, kind = modes[i], modes[j], random.random()
        if not packed or kind < 0.4:
            modes[i], modes[j] = other, mode
        elif kind < 0.65:  # devices from one group to another
            by = random.choice((1, 1, 2, 4, 8))
            if i != j and mode.device_class == other.device_class and mode.replicas > by:
                modes[i], modes[j] = _widened(mode, -by), _widened(other, by)
        elif kind < 0.8:  # unused devices, in a stage or as one more
            number, idle = random.choice(list(enumerate(self._unused(modes))))
            if idle:
                by = random.randint(1, idle)
                if mode.device_class == number and random.random() < 0.5:
                    modes[i] = _widened(mode, by)
                else:
                    modes.insert(random.randint(0, len(modes)), Mode(number, by))
        elif kind < 0.9:  # two neighbours as one
            if i + 1 < len(modes) and mode.device_class == modes[i + 1].device_class:
                modes[i : i + 2] = [_widened(mode, modes[i + 1].replicas)]
        elif mode.replicas > 1:  # one as two
            first = random.randrange(1, mode.replicas)
            modes[i : i + 1] = [replace(mode, replicas=first), _widened(mode, -first)]

    def _unused(self, modes: list[Mode]) -> list[int]:
        """Number of devices of each class that no stage has."""
        classes = self.space.classes
        used = [sum(mode.replicas for mode in modes if mode.device_class == c) for c in range(len(classes))]
        return [len(device_class.devices) - count for device_class, count in zip(classes, used, strict=True)]


def _widened(mode: Mode, by: int) -> Mode:
    return replace(mode, replicas=mode.replicas + by)
