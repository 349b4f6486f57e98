"""`Folding`: a chain of layers cut into rounds that pass over the same devices, and laid one on the other.

::

    loop, 2 rounds       layers  0  1  2 │ 3  4           vee, 2 rounds      layers  0  1  2 │ 3  4
                                 5  6  7 │ 8  9                                      9  8  7 │ 6  5
                                device 0 │ device 1                                 device 0 │ device 1

A *super layer* is what stands in one column: a run of layers of each round. Cuts between super layers cut every round
alike, so a partition of the super layers gives each device one stage of each round (its *chunks*).

Where rounds are cut *unlike*, a super layer is one layer of one round, and other rounds have nothing there. The layers
of rounds follow each other in proportion to how many the rounds have::

    loop, rounds of 4 and 3     layers  0     1 │   2     3    device 0 has two layers of the first round, and one of
                                           4    │5     6       the second
                                       device 0 │ device 1
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Boundaries = tuple[int, ...]
Array = NDArray[Any]


class Laid(NamedTuple):
    """How several stages lie on each device.

    Attributes
    ----------
    rounds : int
        Stages of each device.
    turns : bool
        Whether every second round of them passes the devices from the last one to the first (a V), or all from the
        first one to the last (a loop).
    lengths : tuple of int
        Layers of each round, without those in front of all blocks and behind them, where rounds are cut unlike.
    """

    rounds: int
    turns: bool
    lengths: tuple[int, ...] = ()

    @property
    def unlike(self) -> bool:
        """Whether rounds are cut unlike."""
        return bool(self.lengths)

    def returns(self, number: int) -> bool:
        """Return whether a round passes the devices from the last one to the first."""
        return self.turns and number % 2 == 1


@dataclass(frozen=True, slots=True)
class Folding:
    """How a chain of layers is folded.

    Attributes
    ----------
    edges : tuple of tuple of int
        For each round the first layer of each of its runs, in the order of the chain, and the layer behind the last.
    laid : Laid
    """

    edges: tuple[Boundaries, ...]
    laid: Laid

    @classmethod
    def of(cls, blocks: Sequence[int], layers: int, laid: Laid) -> "Folding | None":
        """Return the folding of a chain into rounds of equally many blocks; None if there are fewer blocks.

        What is left over is at both ends of the chain, and belongs to the first run of the first round and to the last
        one of the last round. So like layers lie on each other. Rounds that are cut unlike share all blocks.

        Parameters
        ----------
        blocks : sequence of int
            The first layer of each block of like layers, and the layer behind the last one.
        layers : int
            Of the chain.
        """
        many, over = divmod(len(blocks) - 1, laid.rounds)
        if not many:
            return None
        if laid.unlike:
            edges = _in_proportion(blocks[0], laid)
        else:
            starts = [blocks[over // 2 + number * many] for number in range(laid.rounds + 1)]
            edges = [[*range(a, b + 1)] for a, b in pairwise(starts)]
        edges[0][0], edges[-1][-1] = 0, layers
        return cls(tuple(map(tuple, edges)), laid)

    @property
    def rounds(self) -> int:
        """v: the number of rounds, of stages of each device."""
        return len(self.edges)

    @property
    def layers(self) -> int:
        """Number of super layers."""
        return len(self.edges[0]) - 1

    def runs(self, number: int) -> list[tuple[int, int]]:
        """Return the first layer, and the one behind the last, of each super layer's run in a round."""
        found = list(pairwise(self.edges[number]))
        return found[::-1] if self.returns(number) else found

    def cuts(self, number: int) -> list[int]:
        """Return the cut of the chain that a round has between each super layer and the next one."""
        last = self.edges[-1][-1] - 2  # behind it an unlike round has no layer left
        inner = [min(edge - 1, last) for edge in self.edges[number][1:-1]]
        return inner[::-1] if self.returns(number) else inner

    def in_turn(self, devices: Sequence[int], number: int) -> Sequence[int]:
        """Return the devices in the order in which a round passes them."""
        return devices[::-1] if self.returns(number) else devices

    def layers_of(self, super_layers: Iterable[int], number: int) -> tuple[int, ...]:
        """Return the layers of some super layers in a round, ascending."""
        runs = self.runs(number)
        return tuple(sorted(layer for each in super_layers for layer in range(*runs[each])))

    def unfolded(self, boundaries: Boundaries) -> Boundaries:
        """Return the boundaries of all stages, given those of the devices in super layers."""
        return (0, *self._ends(boundaries))

    def folds(self, boundaries: Boundaries) -> bool:
        """Return whether boundaries of stages cut all rounds between super layers."""
        devices = (len(boundaries) - 1) // self.rounds
        cuts = []
        for number in range(self.rounds):
            own = boundaries[number * devices + 1 : (number + 1) * devices]
            cuts.append(own[::-1] if self.returns(number) else own)
        known = zip(*(self.columns(number) for number in range(self.rounds)), strict=True)
        ends = tuple(edges[-1] for edges in self.edges)
        return {*zip(*cuts, strict=True)} <= {*known} and boundaries[devices::devices] == ends

    def columns(self, number: int) -> Boundaries:
        """Return the edge of a round at each cut of super layers, before the first and behind the last one included."""
        return self.edges[number][::-1] if self.returns(number) else self.edges[number]

    def _ends(self, boundaries: Boundaries) -> Iterator[int]:
        for number in range(self.rounds):
            columns = self.columns(number)
            own = [columns[b] for b in boundaries]
            yield from own[-2::-1] if self.returns(number) else own[1:]

    def whole(self, first: Array, behind: Array) -> Array:
        """Return which rows of super layers, from the first to the one behind, have layers of every round."""
        if not self.laid.unlike:
            return np.ones(len(first), np.bool_)
        columns = np.array([self.columns(number) for number in range(self.rounds)])
        found: Array = (columns[:, first] != columns[:, behind]).all(axis=0)
        return found

    def returns(self, number: int) -> bool:
        """Return whether a round passes the devices from the last one to the first."""
        return self.laid.returns(number)


def _in_proportion(first: int, laid: Laid) -> list[list[int]]:
    """Return edges of rounds that are cut unlike, of which the first begins at a layer."""
    shares = (((2 * i + 1) / many, number) for number, many in enumerate(laid.lengths) for i in range(many))
    taken = [number for _, number in sorted(shares)]
    found = []
    for number, many in enumerate(laid.lengths):
        count = [0, *accumulate(int(each == number) for each in taken)]
        back = [many - i for i in reversed(count)]
        found.append([first + i for i in (back if laid.returns(number) else count)])
        first += many
    return found
