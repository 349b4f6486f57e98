"""`RowTables`: rows of modes at a micro-batch size, bounded together by one programme over the layers, or super layers.

::

    row        a stage of 2 replicas, and two of 1, on any nodes
    layers     0 1 2 3 4 5 6 7        reach(s, e): the least of the largest bound of stages 0 … s − 1,
               │   2   │ 1 │ 1 │                   over all partitions of the layers before e

What depends on the nodes, or on other stages, is the least that it may be (docs/bounds/chain.md, "Rows of modes").
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial, reduce
from itertools import groupby
from typing import NamedTuple

import numpy as np

from pipeplan.baselines.deadline import check_deadline
from pipeplan.core.cluster import Overlap
from pipeplan.core.job import Objective
from pipeplan.costs.chain import Array, Boundaries
from pipeplan.costs.collectives import all_reduce
from pipeplan.costs.folded import of_rounds
from pipeplan.schedules import PLACED
from pipeplan.search.nodes.round_waits import FirstBackwardWaits, RoundWaits, waits_of
from pipeplan.search.nodes.shapes import ShapeTables, counts_in_flight, hops_between
from pipeplan.search.space.device_groups import Modes
from pipeplan.search.space.space import ANY, Space
from pipeplan_formulations.common.layer_tables import sums_before
from pipeplan_formulations.common.span_options import IMPOSSIBLE
from pipeplan_formulations.partition.spans import NEVER

WRITTEN = 1024
"""Most micro-batches of a step, over all devices, of which lists are written to see what devices hold."""
CLOSE, RANGES = 3e-3, 16
"""E_0 of first stages that are bounded together differ by this share of the least step, or one part in so many."""
LOT = 32
"""Rows that are bounded at once."""
DEEP = 16
"""Most devices of a row whose waits are counted: each device of each depth has its own."""
SPANS = 2**21
"""Most spans of modes whose recomputation is bounded at once, between two looks at the clock."""


def bounds_rows(space: Space) -> bool:
    """Return True if rows of modes are bounded together; not where that is unproved, or they have waiting passes."""
    job, model = space.job, space.model
    step = job.objective is Objective.STEP and not job.staleness
    whole = model.slicing is None and (model.folding is not None or not space.splits)
    return (
        step
        and whole
        and (space.few or space.evenly)
        and space.cluster.overlap is Overlap.COPY
        and ANY not in job.schedules
    )


class Row(NamedTuple):
    """A row of modes with a lower bound in nanoseconds, and what finds the partition that has it, if it is known."""

    bound: int
    modes: Modes
    partition: Callable[[], Boundaries] | None = None

    def order(self) -> tuple[int, int]:
        """What rows are sorted by: the bound, then few stages first."""
        return self.bound, len(self.modes)


class RowTables(ShapeTables):
    """Least times and bytes of layers, or super layers, and the programme over them."""

    def closer(self, rows: Sequence[Row], high: int, like: bool = False, ranged: bool = False) -> Iterator[Row]:
        """Yield the rows, bounded by `of_rows`, whose bounds are below ``high``."""
        for lot in (rows[i : i + LOT] for i in range(0, len(rows), LOT)):
            for row, own in zip(lot, self.of_rows([row.modes for row in lot], high, like, ranged), strict=True):
                if own.bound < high:
                    yield own._replace(bound=max(own.bound, row.bound))

    def of_rows(
        self, rows: Sequence[Modes], most: int = NEVER, like: bool = False, ranged: bool = False
    ) -> Iterator[Row]:
        """Yield the least bound over all partitions of each row, in nanoseconds.

        `NEVER` where none fits, or each has a first stage whose own bound is ``most`` or more. ``like``: as if each
        stage of a row held as few micro-batches as the one that holds least, and none waited between rounds: that takes
        a fraction of the time. ``ranged``: of each stage the least over ranges of its counts.
        """
        modes, (*bounds, finish) = self._of_stages(rows, like, ranged)
        # Each row once for each range of its first stage's ends.
        begins = self._begins(finish, bounds[1][:, :, 0], most, 1 if like else RANGES)
        copied, at = np.nonzero(modes[:, 0, :1] == begins[0])
        _, first, last, least = begins[:, at]
        depth = np.array([len(row) for row in rows])[copied]
        largest = self._largest(modes[copied], depth, np.maximum(least, self._joint_of(rows)[copied]), bounds)
        # reach[s][row, e]: the least of the largest bound of the stages before s, which hold layers 0 … e − 1
        n = self._forward.shape[1] - 1
        reach, ends = [np.full((len(copied), n + 1), NEVER)], np.arange(n + 1)
        reach[0][:, 0] = 0
        for s in range(modes.shape[1]):
            own, after = np.flatnonzero(depth > s), np.full((len(copied), n + 1), NEVER)
            worst = largest(own, s)
            after[own] = np.maximum(worst, reach[s][own, None, :], out=worst).min(axis=2)
            if s == 0:
                after[(ends < first[:, None]) | (ends > last[:, None])] = NEVER
            reach.append(after)
        for number, row in enumerate(rows):
            every = ((int(reach[len(row)][each, n]), each) for each in np.flatnonzero(copied == number).tolist())
            bound, best = min(every, default=(NEVER, 0))
            yield Row(min(bound, NEVER), row, partial(self._traced, largest, reach, best, len(row)))

    def stages_of(self, modes: Modes) -> list[Array]:
        """Return the largest bound of each stage of a row, by its end and its first layer."""
        stages, (*bounds, finish) = self._of_stages([modes])
        least = finish[stages[:, 0, 0]].min(axis=1)
        least = np.maximum(np.where(least < NEVER, least, 0), self._joint_of([modes]))
        largest = self._largest(stages, np.array([len(modes)]), least, bounds)
        return [largest(np.array([0]), s)[0] for s in range(len(modes))]

    @staticmethod
    def _begins(finish: Array, ending: Array, most: int, many: int) -> Array:
        """Ranges of ends of a first stage, many at most: its mode, the first and the last end, least E_0; shape (4, m).

        ``finish``, ``ending``: E_0 and own ending of each mode by its end, `NEVER` where it does not fit.
        """
        ranges = []
        for mode, (own, bounds) in enumerate(zip(finish.tolist(), ending.tolist(), strict=True)):
            some = [e for e, bound in enumerate(bounds) if bound < most]
            step = max(CLOSE * min(bounds), (own[some[-1]] - own[some[0]]) / many) if some else 0
            while some:
                count = next((i for i, e in enumerate(some) if abs(own[e] - own[some[0]]) > step), len(some))
                ranges.append((mode, some[0], some[count - 1], min(own[e] for e in some[:count])))
                some = some[count:]
        return np.array(ranges, np.int64).reshape(-1, 4).T

    def _of_stages(
        self, rows: Sequence[Modes], like: bool = False, ranged: bool = False
    ) -> tuple[Array, tuple[Array, ...]]:
        """Number of the mode of each stage of each row, one for each range of its counts, and `_terms` of these modes.

        The first range holds least.
        """
        keys: dict[tuple[int, ...], int] = {}
        ranges = self._many.bit_length() if ranged else 1
        stages = np.full((len(rows), max(map(len, rows)), ranges), -1)
        for number, (modes, counts) in enumerate(zip(rows, self._in_flight(rows), strict=True)):
            least = tuple(map(min, zip(*counts, strict=True)))
            for s, (mode, own) in enumerate(zip(modes, counts, strict=True)):
                waits = not like and self._waits is not None and len(modes) <= DEEP
                place, held = (s, len(modes)) if waits else (0, 0), least if like else own
                several = _ranges(-(-self._many // mode.replicas), *held[:2]) if ranged else (held[:2],)
                for number_of_range, (few, late) in enumerate(several):
                    key = mode.device_class, mode.replicas, few, late, *place, *held[2:]
                    stages[number, s, number_of_range:] = keys.setdefault(key, len(keys))
        return stages, self._terms(np.array([*keys]).T, waits=not like)

    def _joint_of(self, rows: Sequence[Modes]) -> Array:
        """The least E_0 of rows whose ends share weights."""
        ends = np.array([(modes[0].device_class, modes[-1].device_class) for modes in rows]).T
        found: Array = np.where(np.array([len(modes) for modes in rows]) > 1, self._joint[tuple(ends)], 0)
        return found

    def _largest(
        self, stages: Array, depth: Array, least: Array, bounds: Sequence[Array]
    ) -> Callable[[Array, int], Array]:
        """Return a function of some rows, by number, and of a stage that they have. ``least``: E_0 of each row."""
        (way, ending, trip, *late), (there, hop) = bounds, self._hop

        def largest(own: Array, s: int) -> Array:
            """The largest bound of stage s of some rows, by its end and its first layer."""
            check_deadline()  # seconds of thousands of layers
            every = (of_range(own, s, stages[own, s, number]) for number in range(stages.shape[2]))
            return reduce(np.minimum, every)

        def of_range(own: Array, s: int, at: Array) -> Array:
            once = least[own]
            worst: Array = way[at]
            other: Array = ending[at]
            worst += (once + s * hop)[:, None, None]
            other += s * there
            np.maximum(worst, other, out=worst)
            np.take(trip, at, axis=0, out=other)
            other += (once + hop * (depth[own] - 1))[:, None, None]
            np.maximum(worst, other, out=worst)
            for row in late:
                np.maximum(worst, row[at], out=worst)
            return worst

        return largest

    def _traced(
        self, largest: Callable[[Array, int], Array], reach: Sequence[Array], number: int, depth: int
    ) -> Boundaries:
        """The partition of a row that has its bound."""
        edges, own = [reach[0].shape[1] - 1], np.array([number])
        for s in reversed(range(depth)):
            edges.append(int(np.maximum(largest(own, s)[0, edges[-1]], reach[s][number]).argmin()))
        return tuple(reversed(edges))

    def _in_flight(self, rows: Sequence[Modes]) -> Iterator[list[tuple[int, ...]]]:
        """Yield for each stage of each row what its memory holds, and the forwards behind its first backward.

        The least of each; none of the latter are known where a device has several stages. Behind them is what the
        device holds of each of its stages when it holds most.
        """
        space, widths = self._space, [tuple(mode.replicas for mode in modes) for modes in rows]
        known: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for depth, same in groupby(sorted(set(widths), key=len), key=len):
            every = np.array([*same]).reshape(-1, depth)
            held, most = counts_in_flight(space, space.families, space.free, every, self._many)
            late = np.maximum(-(-self._many // every) - np.maximum(most, 1), 0) * (space.unfolding is None)
            for own, *counts in zip(every.tolist(), held.tolist(), late.tolist(), strict=True):
                known[tuple(own)] = [*zip(*counts, *self._fullest(own), strict=True)]
        return (known[own] for own in widths)

    def _fullest(self, widths: Sequence[int]) -> Array:
        """The least that devices hold of each of their stages when they hold most, shape (rounds, devices)."""
        rounds, share = self._space.model.rounds, -(-self._many // max(widths))
        if self._space.unfolding is None or len(widths) * share > WRITTEN:
            return np.zeros((rounds, len(widths)), np.int64)
        every = (PLACED[each.name].fullest(len(widths), share, rounds) for each in self._space.families)
        least: Array = np.minimum.reduce([np.array(each, np.int64) for each in every]).T
        return least

    @cached_property
    def _hop(self) -> tuple[int, int]:
        """Least nanoseconds of a hop one way, and there and back."""
        cuts = np.flatnonzero(self._space.constraints.cuts)
        there = int((self._send[..., cuts] + self._latency[..., None]).min(initial=NEVER)) if len(cuts) else 0
        return there, 2 * there

    @cached_property
    def _waits(self) -> RoundWaits | FirstBackwardWaits | None:
        return waits_of(self._space, self._size, self._hop[0])

    @cached_property
    def _joint(self) -> Array:
        """Least nanoseconds in which the first and the last stage sum weights that they share, by their classes."""
        space = self._space
        sizes = [
            tie.parameters
            for tie in space.model.ties
            if tie.parameters and {*space.model.names[:: len(space.model.names) - 1]} <= {*tie.layers}
        ]
        rows = [[hops_between(space, a, b) for b in space.classes] for a in space.classes]
        times = [
            [
                max((min(all_reduce(2, link).lower_bound(size) for link in links) for size in sizes), default=0)
                for links in row
            ]
            for row in rows
        ]
        return np.array(times, np.int64)

    def _terms(self, modes: Array, waits: bool) -> tuple[Array, ...]:
        """Way back, own ending and services of each mode on all spans, without hops and the first device's ending.

        Shape (modes, n + 1, n + 1), by the layer behind and the first one, `NEVER` where a span does not fit; then the
        own ending behind gathers, where there are some; and the first device's ending, by the layer behind.
        ``modes``: class, replicas, counts held and late, number of the device and depth of each. ``waits``: with what
        devices wait between rounds.
        """
        kind, replicas, held, late, device, depth, *full = modes
        n = self._forward.shape[1] - 1
        a, b = np.triu_indices(n + 1, 1)
        ends = np.append(self._space.constraints.cuts, True)[b - 1]
        if self._space.model.folding is not None:
            ends &= self._space.model.folding.whole(a, b)
        a, b = a[ends], b[ends]
        c, w, k = kind[:, None], np.searchsorted(self._widths, replicas)[:, None], held[:, None]
        many = -(-self._many // replicas)[:, None]

        def sums(row: Array) -> Array:
            check_deadline()  # thousands of layers have millions of spans
            of_spans: Array = row[c, b] - row[c, a]
            return of_spans

        forward, weight, plain = map(sums, (self._forward, self._weight, self._backward))
        longer = np.maximum(self._repeated(kind, w, a, b, k), self._repeated_of_all(kind, w, a, b, np.stack(full)))
        fits = longer < IMPOSSIBLE
        longer = np.where(fits, longer, 0)
        backward = plain + longer
        finish = self._reductions((c, w), a, b) + self._update[c, w, b] - self._update[c, w, a]
        ahead = self._first_forward, self._first_forward + self._first_backward
        around = self._forward + self._backward if self._turns else ahead[1]  # all stages of a V, one of a loop
        there, both, trip = (np.insert(np.cumsum(np.diff(row).min(axis=0)), 0, 0) for row in (*ahead, around))
        busy = many * (forward + backward)
        if waits and self._waits is not None and depth.any():
            back = np.insert(np.cumsum(np.diff(self._first_backward).min(axis=0)), 0, 0)
            counted = np.stack([both - back, both - there])
            told = np.flatnonzero(depth)
            rows = kind[told], replicas[told], device[told], depth[told]
            busy[told] += self._waits.of(rows, (a, b), counted, longer[told])
        served = np.maximum((many - 1) * forward, late[:, None] * forward + (many - 1) * backward)
        if self._turns:
            served = (many - 1) * self._each_of(np.maximum(forward, plain))
        service = trip[-1] - (trip[b] - trip[a]) + forward + backward + served
        ended = busy + many * weight + finish
        terms = [both[a] + busy, there[a] + ended, service]
        if self._space.unfolding is None and (wait := self._reductions.waits((c, w), a, b)).any():
            terms.append(wait + ended)

        def on_spans(each: Array) -> Array:
            check_deadline()
            dense = np.full((len(kind), n + 1, n + 1), NEVER)
            dense[:, b, a] = np.where(fits, each, NEVER)
            return dense

        return *map(on_spans, terms), on_spans(finish + sums(self._first_weight))[:, :, 0]

    @property
    def _turns(self) -> bool:
        """Whether stages lie in a V."""
        return self._space.unfolding is not None and self._space.unfolding.laid.turns

    def _each_of(self, passes: Array) -> Array:
        """What passes of a device take on each of its stages in the mean."""
        each: Array = passes // self._space.model.rounds
        return each

    def _repeated(self, kind: Array, width: Array, a: Array, b: Array, held: Array) -> Array:
        """Least recomputed forward time with which spans fit; a lower bound, `IMPOSSIBLE` where nothing fits."""
        received, longer = self._received.min(axis=0), np.zeros((len(kind), len(a)), np.int64)
        at_once = max(SPANS // len(a), 1)
        for number, options in enumerate(self._options):
            every = np.flatnonzero(kind == number)
            kept = self._saved[number, b] - self._saved[number, a] + np.where(a > 0, received[number, a], 0)
            for own in (every[i : i + at_once] for i in range(0, len(every), at_once)):
                check_deadline()
                w, k = width[own], held[own]
                resident = self._resident[number, w, b] - self._resident[number, w, a]
                spare = self._limit[number] - resident - k * kept
                longer[own] = options.quick_lower_bound(a, b, k, spare)
        return longer

    def _repeated_of_all(self, kind: Array, width: Array, a: Array, b: Array, full: Array) -> Array:
        """The same, by what devices hold of all their stages at one moment.

        ``full``: micro-batches of each stage then, shape (rounds, modes).
        """
        if self._space.unfolding is None or not full.any():
            return np.zeros((len(kind), len(a)), np.int64)
        saved, freed = ((full[..., None] * row[:, kind]).sum(axis=0) for row in self._of_rounds)
        held, most = (sums_before(row) for row in (saved, freed))
        peak = np.stack([options.workspace.of(a, b) for options in self._options])[kind]
        resident = self._resident[kind[:, None], width, b] - self._resident[kind[:, None], width, a]
        short = held[:, b] - held[:, a] + peak + resident - self._limit[kind, None]
        again = np.diff(self._forward)[kind]
        rate = np.where(freed > 0, freed / np.maximum(again, 1e-9), 0.0).max(axis=1, keepdims=True)
        longer = np.minimum((1 - 1e-9) * np.maximum(short, 0) / np.maximum(rate, 1e-9), 2.0**60)
        found: Array = np.where(short > most[:, b] - most[:, a], IMPOSSIBLE, longer.astype(np.int64) * (short > 0))
        return found

    @cached_property
    def _of_rounds(self) -> tuple[Array, Array]:
        """Bytes saved of a micro-batch, and those that recomputation frees at most; shape (rounds, classes, n)."""
        space = self._space
        assert space.unfolding is not None
        tables = [space.unfolding.prices.table(each.kind, self._size) for each in space.classes]
        folding, again = space.unfolding.folding, space.prices.recomputable
        saved = np.stack([of_rounds(folding, table.saved) for table in tables], axis=1)
        output = np.stack([of_rounds(folding, table.output) for table in tables], axis=1)
        return saved, np.maximum(saved - output, 0) * again


def _ranges(many: int, fewest: int, late: int) -> Iterator[tuple[int, int]]:
    """Yield the least count of each range of counts of a stage, and the forwards behind the first backward of its most.

    ``many``: micro-batches of a replica, of which ``late`` at least are so. Each is twice as long as the last one.
    """
    most, size = many - late, 1
    while True:
        end = min(fewest + size, most + 1)
        yield fewest, max(many - max(end - 1, 1), 0)
        if end > most:
            return
        fewest, size = end, 2 * size
