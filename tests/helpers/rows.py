"""Plans of random questions beside the bounds of their rows of modes."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from copy import deepcopy
from itertools import combinations
from random import Random

import numpy as np

from pipeplan.core.errors import InputError
from pipeplan.search.evaluate import evaluate, overfull
from pipeplan.search.nodes.least_ways import least_rows
from pipeplan.search.nodes.row_tables import bounds_rows
from pipeplan.search.nodes.rows import bounded_rows
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.device_groups import Mode, Modes
from pipeplan.search.space.space import Space
from pipeplan_formulations.partition.spans import NEVER
from referee.documents import Document

MOST = 12
"""Device groups and partitions of a question that are looked at."""


def plans(space: Space, random: Random, size: int = 0) -> Iterator[tuple[Candidate, tuple[int, ...]]]:
    """Some candidates, each with some boundaries that fit."""
    size = size or random.choice(space.sizes)
    groups = [each for each, _ in space.device_groups(size)]
    for own in random.sample(groups, min(len(groups), MOST)):
        for candidate in space.candidates(own, size):
            n = candidate.chain.layers
            cuts = list(combinations(range(1, n), candidate.depth - 1))
            for inner in random.sample(cuts, min(len(cuts), MOST)):
                boundaries = (0, *inner, n)
                folding = candidate.unfolding and candidate.unfolding.folding
                whole = folding is None or folding.whole(np.array(boundaries[:-1]), np.array(boundaries[1:])).all()
                if whole and candidate.fits(boundaries):
                    yield candidate, boundaries


def another_way(number: int, document: Document) -> Document:
    """The same question of a model whose layers take other times and bytes."""
    random, other = Random(f"another way {number}"), deepcopy(document)
    for profile in other["model"]["profiles"]:
        for cost in profile["costs"].values():
            for name in ("forward", "backward", "input_gradient", "weight_gradient", "update", "saved"):
                cost[name] = cost[name] * random.choice((1, 2, 4)) // 2
    return other


def below_rows(
    numbers: Iterable[int], asked: Callable[[int], Document], spaces_of: Callable[[Document], Iterator[Space]]
) -> Iterator[str]:
    """Simulated steps that take less than the bound of their row: of a way alone, or of the least of two."""
    for number in numbers:
        random, first = Random(f"rows {number}"), asked(number)
        for spaces in zip(spaces_of(first), spaces_of(another_way(number, first)), strict=False):
            for size in spaces[0].sizes if bounds_rows(spaces[0]) else ():
                joined: dict[Modes, int] = {}
                with suppress(InputError):  # at sizes that are not profiled
                    joined = {row.modes: row.bound for row in least_rows(spaces, size)}
                for space in spaces:
                    own = {row.modes: row.bound for row in bounded_rows(space, size)}
                    class_of = {device.index: c for c, each in enumerate(space.classes) for device in each.devices}
                    for candidate, boundaries in plans(space, random, size):
                        modes = tuple(Mode(class_of[group[0].index], len(group)) for group in candidate.chain.groups)
                        plan = evaluate(space.cluster, candidate, boundaries)
                        bound = max(joined.get(modes, NEVER if joined else 0), own.get(modes, NEVER))
                        if plan.value < bound and not any(overfull(plan)):
                            yield f"question {number}: {candidate.label}, {boundaries}: {plan.value} below its row"
