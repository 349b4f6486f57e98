"""Combinations of the main strategies of unlike layers, compared by sums of their figures over all layers.

A combination grows layer by layer. Of its beginnings that split shared weights alike those are left out than which
another one takes no figure more: whatever comes behind, the same holds for the sums.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from pipeplan.costs.sharding.layer_ways import MainStrategies
from pipeplan.costs.sharding.ties import Cuts

MOST = 32
"""Most combinations that are searched."""
BEGINNINGS = 8 * MOST
"""Most beginnings of combinations that split shared weights alike."""
TOLERANCES = (4096, 1024, 256, 64, 16, 4)
"""Parts of the model's least figure by which combinations have to differ, one after the other, while they are more."""

Figures = NDArray[np.float64]
"""Sums of what layers are compared by, in nanoseconds and bytes."""
Row = dict[str, MainStrategies]
Rows = tuple[list[Row], Figures]


@dataclass(frozen=True)
class Together:
    """The combinations of the main strategies of unlike layers.

    Attributes
    ----------
    choices : mapping of str to mapping of MainStrategies to array
        The main strategies of layers, by their operators, and figures of all these layers together.
    cuts : callable
        ``cuts(name, main)`` says how main strategies split what these layers share with others.
    agrees : callable
        Whether layers split alike what they share, given ``cuts`` of some of them by name.
    preferred : sequence of slice
        Figures of which the combinations with the least sums stay.
    check : callable
        Raises an error once the time is over.
    """

    choices: Mapping[str, Mapping[MainStrategies, Figures]]
    cuts: Callable[[str, MainStrategies], Cuts]
    agrees: Callable[[Mapping[str, Cuts]], bool]
    preferred: Sequence[slice]
    check: Callable[[], None]

    def rows(self) -> list[Row]:
        """Return the main strategies of all layers in those combinations that are worth searching."""
        if not self.choices or not all(self.choices.values()):
            return []
        least = sum(np.array([*mains.values()]).min(0) for mains in self.choices.values())
        groups: dict[tuple[tuple[str, Cuts], ...], Rows] = {(): ([{}], np.zeros((1, len(least))))}
        for name in self.choices:
            longer: dict[tuple[tuple[str, Cuts], ...], Rows] = {}
            for (key, rows), (cut, some) in product(groups.items(), self._by_cuts(name)):
                self.check()
                both = (*key, (name, cut))
                if self.agrees(dict(both)):
                    longer[both] = self._fewer(_longer(rows, name, some), least, BEGINNINGS)
            groups = longer
        if not groups:
            return []
        every = [row for rows, _ in groups.values() for row in rows]
        return self._fewer((every, np.concatenate([sums for _, sums in groups.values()])), least, MOST)[0][:MOST]

    def _by_cuts(self, name: str) -> Iterator[tuple[Cuts, dict[MainStrategies, Figures]]]:
        """Yield each way to split what layers share, with the main strategies that do."""
        groups: dict[Cuts, dict[MainStrategies, Figures]] = {}
        for main, figures in self.choices[name].items():
            groups.setdefault(self.cuts(name, main), {})[main] = figures
        yield from groups.items()

    def _fewer(self, rows: Rows, least: Figures, most: int) -> Rows:
        """The rows that no other one dominates; while they are more than ``most``, by more than some tolerance."""
        every, sums = rows
        for slack in (0 * least, *(least / parts for parts in TOLERANCES)):
            kept = self._unlike(sums, slack)
            every, sums = [every[k] for k in kept], sums[kept]
            if len(kept) <= most:
                break
        return every, sums

    def _unlike(self, sums: Figures, slack: Figures) -> list[int]:
        """Numbers of the rows that take some figure less than each kept one before, by more than the slack.

        First those with the least of a preferred figure, then in the order of the first of these.
        """
        first, total = sums[:, self.preferred[0]].sum(1), sums.sum(1)
        least = [np.lexsort((total, first, sums[:, each].sum(1)))[0] for each in self.preferred]
        kept: list[int] = []
        for k in dict.fromkeys([*least, *np.lexsort((total, first))]):
            if not (sums[kept] <= sums[k] + slack).all(1).any():
                kept.append(int(k))
        return kept


def _longer(rows: Rows, name: str, some: Mapping[MainStrategies, Figures]) -> Rows:
    """Each row with each of some main strategies more."""
    every, sums = rows
    longer = sums[:, None] + np.array([*some.values()])[None]
    return [row | {name: main} for row in every for main in some], longer.reshape(-1, sums.shape[1])
