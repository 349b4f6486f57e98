"""Layers on a mesh, played with numbers: every device has its blocks, and counts what it receives.

A collective is possible if all devices have, afterwards, the blocks that the placements say.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from heapq import heappop, heappush
from itertools import count, product
from math import prod

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.operators import Operator, OperatorGraph

WHOLE, PARTIAL = -1, -2
SIDE = 12
"""Rows and columns of all tensors and weights."""
Array = NDArray[np.int64]
Placements = tuple[int, ...]
Letters = tuple[tuple[str, bool], ...]
Blocks = dict[tuple[int, ...], Array]


def placements(axes: Sequence[str], letters: Letters, otherwise: int) -> Placements:
    """Entries of a tensor with these axes; ``otherwise``: of one that does not have the loop."""
    return tuple(axes.index(loop) if loop in axes else (otherwise if loop else WHOLE) for loop, _ in letters)


@dataclass
class Play:
    """A mesh of devices, and what they receive."""

    sizes: tuple[int, ...]
    _known: dict[tuple[tuple[int, ...], Placements], dict[Placements, Fraction]] = field(default_factory=dict)

    @property
    def places(self) -> list[tuple[int, ...]]:
        """All devices."""
        return list(product(*map(range, self.sizes)))

    def blocks(self, tensor: Array, entries: Placements) -> Blocks:
        """The block of every device; of a sum those at the end of the axis have all."""
        found = {}
        for place in self.places:
            own = tensor
            for at, n, placement in zip(place, self.sizes, entries, strict=True):
                if placement >= 0:
                    own = np.split(own, n, axis=placement)[at]
                elif placement == PARTIAL and at < n - 1:
                    own = np.zeros_like(own)
            found[place] = own
        return found

    def total(self, blocks: Blocks, entries: Placements, place: tuple[int, ...]) -> Array:
        """The sum of the blocks of all devices that have parts of a device's sum."""
        summed = [
            range(n) if placement == PARTIAL else (at,)
            for at, n, placement in zip(place, self.sizes, entries, strict=True)
        ]
        return np.sum([blocks[other] for other in product(*summed)], axis=0)

    def holds(self, blocks: Blocks, tensor: Array, entries: Placements) -> bool:
        """Whether devices have a tensor in these placements."""
        plain = tuple(WHOLE if placement == PARTIAL else placement for placement in entries)
        return all(
            np.array_equal(self.total(blocks, entries, place), block)
            for place, block in self.blocks(tensor, plain).items()
        )

    def step(self, blocks: Blocks, axis: int, source: int, target: int) -> tuple[Blocks, Fraction]:
        """One collective along an axis, and the numbers that a device receives in a ring."""
        n, found = self.sizes[axis], {}
        for place in self.places:
            row = [blocks[(*place[:axis], at, *place[axis + 1 :])] for at in range(n)]
            whole = np.sum(row, axis=0) if source == PARTIAL else row[place[axis]]
            whole = np.concatenate(row, axis=source) if source >= 0 else whole
            found[place] = np.split(whole, n, axis=target)[place[axis]] if target >= 0 else whole
            if target == PARTIAL and place[axis] < n - 1:
                found[place] = np.zeros_like(whole)
        size, way = next(iter(blocks.values())).size, source == PARTIAL and target == WHOLE
        if source == WHOLE:
            return found, Fraction(0)
        return found, Fraction(size * (n - 1) * (2 if way else 1), 1 if source >= 0 and target == WHOLE else n)

    def move(self, shape: tuple[int, ...], source: Placements, target: Placements) -> Fraction | None:
        """The least numbers that devices receive to give a tensor other placements; None if there is no way."""
        if source == target:
            return Fraction(0)
        if (shape, source) not in self._known:
            self._known[shape, source] = self._ways(shape, source)
        return self._known[shape, source].get(target)

    def _ways(self, shape: tuple[int, ...], source: Placements) -> dict[Placements, Fraction]:
        tensor = np.arange(1, prod(shape) + 1).reshape(shape)
        done: dict[Placements, Fraction] = {}
        number = count()
        queue = [(Fraction(0), next(number), source, self.blocks(tensor, source))]
        while queue:
            cost, _, entries, blocks = heappop(queue)
            if entries in done:
                continue
            done[entries] = cost
            for axis, target in product(range(len(self.sizes)), (PARTIAL, WHOLE, *range(len(shape)))):
                split = prod(n for n, placement in zip(self.sizes, entries, strict=True) if placement == target >= 0)
                if target == entries[axis] or (target == PARTIAL and not source[axis] == entries[axis] == WHOLE):
                    continue
                if target >= 0 and shape[target] % (split * self.sizes[axis]):
                    continue
                after = (*entries[:axis], target, *entries[axis + 1 :])
                found, more = self.step(blocks, axis, entries[axis], target)
                if self.holds(found, tensor, after):
                    heappush(queue, (cost + more, next(number), after, found))
        return done


@dataclass(frozen=True)
class Received:
    """Numbers that a device receives in each pass, and once per step."""

    forward: Fraction
    backward: Fraction
    step: Fraction


def played(
    play: Play,
    graph: OperatorGraph,
    letters: Mapping[str, Letters],
    held: Mapping[str, Placements],
    sums: Mapping[str, Placements],
    copies: Mapping[str, tuple[Placements, tuple[str, ...], bool]],
) -> Received | None:
    """Play a layer of linear maps and sums of tensors; None if something cannot get the placements that it must have.

    Parameters
    ----------
    play : Play
    graph : OperatorGraph
        Linear maps have a weight (``'out', 'in'``); other operators add up what they read.
    letters, held : mapping
        For each operator the loop of each axis, and whether it gathers weights; the placements of each tensor.
    sums : mapping
        The placements in which gradients are summed up that several operators return.
    copies : mapping
        The placements of tensors' copies, which operators read these, and whether they are kept.
    """
    draw = np.random.default_rng(1)
    tensors = {name: draw.integers(-4, 5, (SIDE, SIDE)) for name in graph.inputs}
    weights = {weight.name: draw.integers(-4, 5, (SIDE, SIDE)) for weight in graph.weights}
    moved: dict[str, list[Fraction | None]] = {"forward": [], "backward": []}
    step = Fraction(0)
    for each in graph.operators:
        own = letters[each.name]
        needs = {source: placements(axes, own, WHOLE) for source, axes in each.reads.items()}
        for source, need in needs.items():
            copy, readers, _ = copies.get(source, ((), (), False))
            there = play.move((SIDE, SIDE), copy if each.name in readers else held[source], need)
            moved["forward"].append(there)
            moved["backward"] += [there] if each.weights else []
        reads = {source: play.blocks(tensors[source], need) for source, need in needs.items()}
        tensors[each.name] = sum(_whole(each, tensors[source], weights) for source in each.reads)
        makes = placements(each.makes, own, PARTIAL)
        blocks = {
            place: sum(_part(play, each, reads[source][place], weights, own, place) for source in reads)
            for place in play.places
        }
        assert play.holds(blocks, tensors[each.name], makes), "operators make what their letters say"
        moved["forward"].append(play.move((SIDE, SIDE), makes, held[each.name]))
        if each.weights:
            _check_gradients(play, each, reads, tensors, weights[each.weights[0].name], own)
            gathered, once = _of_weight(play.sizes, own)
            moved["forward"].append(gathered)
            moved["backward"] += [gathered, gathered]
            step += once
    for name, (copy, users, kept) in copies.items():
        there = play.move((SIDE, SIDE), held[name], copy)
        moved["forward"].append(there)
        moved["backward"] += (
            [there] if not kept and any(each.weights for each in graph.operators if each.name in users) else []
        )
    for name in tensors:
        readers = [each for each in graph.operators if name in each.reads]
        maker = next((each for each in graph.operators if each.name == name), None)
        need = placements(maker.makes, letters[name], WHOLE) if maker else held[name]
        goal = sums.get(name, held[name] if name in graph.outputs else need)
        returned = [placements(each.reads[name], letters[each.name], PARTIAL) for each in readers]
        moved["backward"] += [play.move((SIDE, SIDE), back, goal) for back in returned]
        moved["backward"].append(play.move((SIDE, SIDE), goal, need))
        moved["backward"] += [play.move((SIDE, SIDE), held[name], goal)] if name in graph.outputs else []
    if None in (*moved["forward"], *moved["backward"]):
        return None
    return Received(*(sum((part for part in own if part is not None), Fraction(0)) for own in moved.values()), step)


def _whole(each: Operator, tensor: Array, weights: Mapping[str, Array]) -> Array:
    return tensor @ weights[each.weights[0].name].T if each.weights else tensor


def _part(
    play: Play, each: Operator, block: Array, weights: Mapping[str, Array], letters: Letters, place: tuple[int, ...]
) -> Array:
    """What a device makes of a block with its part of the weight."""
    if not each.weights:
        return block
    return block @ play.blocks(weights[each.weights[0].name], placements(("out", "in"), letters, WHOLE))[place].T


def _check_gradients(
    play: Play, each: Operator, reads: Mapping[str, Blocks], tensors: Mapping[str, Array], weight: Array, own: Letters
) -> None:
    """Products with a gradient of the output are the gradients that the letters say, of the input and the weight."""
    ((source, axes),) = each.reads.items()
    outputs = np.random.default_rng(2).integers(-4, 5, tensors[each.name].shape)
    gradients = play.blocks(outputs, placements(each.makes, own, WHOLE))
    matrices = play.blocks(weight, placements(("out", "in"), own, WHOLE))
    back = {place: gradients[place] @ matrices[place] for place in play.places}
    assert play.holds(back, outputs @ weight, placements(axes, own, PARTIAL))
    mine = {place: gradients[place].T @ reads[source][place] for place in play.places}
    assert play.holds(mine, outputs.T @ tensors[source], placements(("out", "in"), own, PARTIAL))


def _of_weight(sizes: tuple[int, ...], letters: Letters) -> tuple[Fraction, Fraction]:
    """Numbers that a device receives to gather its part of a weight, and to sum its gradient up once per step."""
    split = gathers = copies = 1
    for n, (loop, gather) in zip(sizes, letters, strict=True):
        split *= n if loop in ("in", "out") else 1
        gathers *= n if gather else 1
        copies *= n if loop == "row" and not gather else 1
    size = Fraction(SIDE**2, split)
    return size * (gathers - 1) / gathers, 2 * size / gathers * (copies - 1) / copies
