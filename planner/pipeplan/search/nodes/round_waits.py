"""`RoundWaits`: how long a device with several stages in a loop waits for its last round to begin, and behind its end.

::

    device 0   f0 f1 .  .  F0 F1 …      with few micro-batches, the first has not come round when all others have begun
    device 1      f0 f1 .  .  F0 …

See docs/bounds/chain.md, "Rows of modes".
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from pipeplan.costs import folded
from pipeplan.costs.chain import Array
from pipeplan.costs.occupancy import occupancies
from pipeplan.schedules import PLACED, Family
from pipeplan.search.nodes.shapes import hops_between
from pipeplan.search.space.space import Space
from pipeplan_formulations.common.layer_tables import sums_before

Modes = tuple[Array, Array, Array, Array]


class RoundWaits:
    """Least waits of devices in rows of modes, in nanoseconds, beside what `RowTables` counts.

    Parameters
    ----------
    hop : int
        Least nanoseconds of a hop inside a round, one way.
    """

    def __init__(self, space: Space, size: int, hop: int) -> None:
        assert space.unfolding is not None
        self._space, self._hop, self._many = space, hop, space.job.batch // size
        folding, prices, classes = space.unfolding.folding, space.unfolding.prices, space.classes
        tables = [prices.table(each.kind, size) for each in classes]
        by_round = [
            np.stack([folded.of_rounds(folding, getattr(table, name)) for table in tables])
            for name in ("forward", "backward")
        ]
        self._last = folding.rounds - 1
        # of all rounds but the last one, by class and boundary
        self._earlier = [sums_before(each[:, :-1].sum(axis=1)) for each in by_round]
        self._latest = sums_before(by_round[0][:, -1])
        # on the fastest class: through all rounds but the last one, and through layers of the first and the last round
        least = [each.min(axis=0) for each in by_round]
        self._through = [int(each[:-1].sum()) for each in least]
        self._ahead = [sums_before(each[[0, -1]]) for each in least]
        self._behind = sums_before((by_round[0] + by_round[1])[:, -1].min(axis=0))
        edges = np.array([edges[-1] for edges in folding.edges[:-1]]) - 1
        self._around = min(
            int(occupancies(link, prices.crossing(a.kind, b.kind, size).sent[edges]).min()) + link.latency
            for a in classes
            for b in classes
            for link in hops_between(space, a, b)
        )

    def of(self, modes: Modes, spans: tuple[Array, Array], ahead: Array, longer: Array) -> Array:
        """Return the waits of modes on spans of super layers, shape (modes, spans).

        Parameters
        ----------
        modes : tuple of array, shape (modes,)
            Class, replicas, number of the device in its row, and devices of the row.
        spans : tuple of array, shape (spans,)
            First super layer, and the one behind the last.
        ahead : array, shape (2, n + 1)
            What is counted as the way through layers before a boundary already: forward, and backward.
        longer : array, shape (modes, spans)
            Recomputed forward time.
        """
        every = [self._of_family(each, modes, spans, ahead, longer) for each in self._space.families]
        least: Array = np.minimum.reduce(every)
        return least

    def _of_family(
        self, family: Family, modes: Modes, spans: tuple[Array, Array], ahead: Array, longer: Array
    ) -> Array:
        (kind, _, device, depth), (a, b) = modes, spans
        counts = _of_each(modes, partial(self._counts, family))
        around = self._last * np.where(depth > 1, (depth - 1) * self._hop + self._around, 0)
        waits = np.zeros_like(longer)
        for number, (earlier, through, (first, last)) in enumerate(
            zip(self._earlier, self._through, self._ahead, strict=True)
        ):
            way = through + last[a] - np.maximum(first, ahead[number])[a]
            busy = earlier[kind[:, None], b] - earlier[kind[:, None], a] + number * longer
            waits += np.maximum(way + around[:, None] - counts[:, number, None] * busy, 0)
        # between the first forward of the last round and the first backward
        own, other = (table[kind[:, None], b] - table[kind[:, None], a] for table in (self._latest, self._earlier[0]))
        behind = self._behind[-1] - self._behind[b] + (2 * (depth - 1 - device) * self._hop)[:, None] + own
        latest, next_ = counts[:, 2, None], counts[:, 3, None]
        waits += np.maximum(behind - latest * own - next_ * other, 0)
        return waits

    def _counts(self, family: Family, replicas: int, depth: int) -> list[tuple[int, ...]]:
        """Forwards and backwards of each earlier round at the ends of a device's list, and forwards between.

        The latter, from the first one of the last round to the first backward, are of this round, and of the first one.
        """
        first, last = PLACED[family.name].at_ends(depth, -(-self._many // replicas))
        between = [held - self._last * first for held in family.in_flight((replicas,) * depth, self._many)]
        return [(first, last, min(own, first), max(own - first, 0)) for own in between]


class FirstBackwardWaits:
    """Least waits before first backwards, which no weight gradient can fill: in a V, and with one stage a device.

    Parameters and `of` are those of `RoundWaits`.
    """

    def __init__(self, space: Space, size: int, hop: int) -> None:
        assert space.unfolding is not None
        self._space, self._hop, self._many = space, hop, space.job.batch // size
        folding, prices = space.unfolding.folding, space.unfolding.prices
        tables = [prices.table(each.kind, size) for each in space.classes]
        forward = np.stack([folded.of_rounds(folding, table.forward) for table in tables])
        back = np.stack([folded.of_rounds(folding, table.least_first_part) for table in tables])
        self._turns, self._forward = folding.laid.turns, sums_before(forward)
        self._through = int(forward.min(axis=0).sum())
        self._back = sums_before(back[:, -1].min(axis=0))

    def of(self, modes: Modes, spans: tuple[Array, Array], ahead: Array, _longer: Array) -> Array:
        """Return the waits of modes on spans of super layers, shape (modes, spans)."""
        (kind, replicas, device, depth), (a, b) = modes, spans
        held = _of_each(modes, self._held)
        each = self._forward[kind][..., b] - self._forward[kind][..., a]
        most = -(-self._many // replicas)[:, None] * each.sum(axis=1)
        busy = np.minimum(held[:, None] * each.max(axis=1), most)
        way, hops = self._through + self._back[-1] - self._back[b], 2 * (depth - 1 - device)
        if self._turns:
            way, hops = self._through + self._back[a], 2 * (depth - 1)
        waits: Array = np.maximum(way - ahead[0][a] + (hops * self._hop)[:, None] - busy, 0)
        return waits

    def _held(self, replicas: int, depth: int) -> list[int]:
        """What devices hold of all their stages, the most of any family."""
        every = (each.in_flight((replicas,) * depth, self._many) for each in self._space.families)
        return [max(own) for own in zip(*every, strict=True)]


def _of_each(modes: Modes, of_shape: Callable[[int, int], Sequence[Any]]) -> Array:
    """Return what each mode's device has, given that of all devices by their replicas and number."""
    _, replicas, device, depth = modes
    shapes = list(zip(replicas.tolist(), depth.tolist(), strict=True))
    known = {shape: of_shape(*shape) for shape in set(shapes)}
    return np.array([known[shape][d] for shape, d in zip(shapes, device.tolist(), strict=True)], np.int64)


def waits_of(space: Space, size: int, hop: int) -> RoundWaits | FirstBackwardWaits | None:
    """Return the waits that are known of a space; ``hop`` as in `RoundWaits`."""
    if space.unfolding is None:
        return None
    rounds, turns = space.model.rounds, space.unfolding.laid.turns
    if not turns and not space.splits:
        return RoundWaits(space, size, hop)
    return FirstBackwardWaits(space, size, hop) if rounds == 1 + turns else None
