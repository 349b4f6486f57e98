"""`Folding`: a chain of layers cut into rounds that pass over the same devices, and laid one on the other.

::

    loop, 2 rounds       layers  0  1  2 │ 3  4           vee, 2 rounds      layers  0  1  2 │ 3  4
                                 5  6  7 │ 8  9                                      9  8  7 │ 6  5
                                device 0 │ device 1                                 device 0 │ device 1

A *super layer* is what stands in one column: a run of layers of each round. Cuts between super layers cut every round
alike, so a partition of the super layers gives each device one stage of each round (its *chunks*).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

Boundaries = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Folding:
    """How a chain of layers is folded.

    Attributes
    ----------
    edges : tuple of tuple of int
        For each round the first layer of each of its runs, in the order of the chain, and the layer behind the last.
    turns : bool
        Whether every second round passes the devices from the last one to the first (a V), or all from the first one to
        the last (a loop).
    """

    edges: tuple[Boundaries, ...]
    turns: bool = False

    @classmethod
    def of(cls, blocks: Sequence[int], layers: int, rounds: int, turns: bool) -> "Folding | None":
        """Return the folding of a chain into so many rounds of equally many blocks; None if there are fewer blocks.

        What is left over is at both ends of the chain, and belongs to the first run of the first round and to the last
        one of the last round. So like layers lie on each other.

        Parameters
        ----------
        blocks : sequence of int
            The first layer of each block of like layers, and the layer behind the last one.
        layers : int
            Of the chain.
        """
        many, over = divmod(len(blocks) - 1, rounds)
        if not many:
            return None
        starts = [blocks[over // 2 + number * many] for number in range(rounds + 1)]
        edges = [[*range(a, b + 1)] for a, b in pairwise(starts)]
        edges[0][0], edges[-1][-1] = 0, layers
        return cls(tuple(map(tuple, edges)), turns)

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
        inner = [edge - 1 for edge in self.edges[number][1:-1]]
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
        """Return whether boundaries of stages cut all rounds alike."""
        devices = (len(boundaries) - 1) // self.rounds
        place = {edge: i for i, edge in enumerate(self.edges[0])}
        first = [place.get(edge) for edge in (0, *boundaries[1:devices], self.edges[0][-1])]
        alike = tuple(i for i in first if i is not None)
        return len(alike) == devices + 1 and self.unfolded(alike) == tuple(boundaries)

    def _ends(self, boundaries: Boundaries) -> Iterator[int]:
        for number, edges in enumerate(self.edges):
            own = [self.layers - b for b in reversed(boundaries)] if self.returns(number) else boundaries
            yield from (edges[b] for b in own[1:])

    def returns(self, number: int) -> bool:
        """Return whether a round passes the devices from the last one to the first."""
        return self.turns and number % 2 == 1
