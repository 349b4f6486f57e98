"""Nodes of small spaces: all shapes (classes and numbers of devices, stage by stage), sorted by a bound.

::

    shape          v100 v100 v100 | p100       a row of classes and widths, with every placement on the nodes
    partition      0 1 2 3 | 4 5               of the layers
    bound          the value of the partition problem, with the least of every number that depends on the placement

All pairs of a shape and a partition are evaluated in arrays. Pairs that fit in no way are left out, and the least bound
over the partitions of a shape is that of its device groups. These are priced in the order of the bounds, and only below
the incumbent.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, islice, pairwise
from math import lcm

import numpy as np

from pipeplan.core.cluster import Link
from pipeplan.core.cluster import Overlap as Waits
from pipeplan.core.job import SHARDED
from pipeplan.costs.chain import Array
from pipeplan.costs.occupancy import occupancies
from pipeplan.costs.pricing import Prices, usable_memory
from pipeplan.schedules import Family
from pipeplan.search.branch_and_bound import Node, PlanSearch, Step, Turn
from pipeplan.search.nodes.device_groups import DeviceGroupsNode, SpaceNode
from pipeplan.search.space.candidates import in_flight
from pipeplan.search.space.device_groups import DeviceClass, Modes
from pipeplan.search.space.in_flight import InFlightBox
from pipeplan.search.space.least import LeastTables, least_passes, possible_links, possible_rings
from pipeplan.search.space.space import Space
from pipeplan_formulations.common.exposed import Collectives, Exposed, InTurn
from pipeplan_formulations.common.layer_tables import sums_before
from pipeplan_formulations.common.objective import Objective
from pipeplan_formulations.common.recomputation import shared_recomputation
from pipeplan_formulations.common.span_options import IMPOSSIBLE, SpanOptions
from pipeplan_formulations.partition.listing import partitions
from pipeplan_formulations.partition.objective import RoleSums, Sums, values
from pipeplan_formulations.partition.parts import LinkResource, PathCut
from pipeplan_formulations.partition.spans import NEVER
from pipeplan_formulations.partition.terms import Counts, Overlap

LOT = 16
"""Shapes whose device groups are opened at once."""


@dataclass
class ShapesNode(SpaceNode):
    """Node of all device groups at a micro-batch size whose shapes are not opened yet."""

    _rows: Iterator[tuple[int, bool | None, Modes]] | None = field(default=None, repr=False)

    @property
    def rank(self) -> tuple[int, ...]:
        """After opened device groups."""
        return (3, self.size)

    @property
    def turn(self) -> Turn:
        """Late where devices have several stages: plans of one are sought first."""
        return Turn.BY_BOUND if self.space.unfolding is None else Turn.LATE

    def advance(self, search: PlanSearch) -> Step[Node]:
        """Open the shapes of least bound, unless the time is over."""
        if search.left <= 0:
            return Step.split([self])
        if self._rows is None:
            self._rows = iter(sorted_shapes(self.space, self.size, search.cutoff))
        nodes: list[Node] = []
        lot = list(islice(self._rows, LOT))
        for bound, alternating, modes in lot:
            if search.fathoms(bound):
                return Step.leave(max(bound, self.bound), nodes)
            for groups in self.space.placing.of(modes):
                nodes.append(DeviceGroupsNode(max(bound, self.bound), self.space, groups, self.size, alternating))
        if len(lot) < LOT:
            return Step.split(nodes)
        self.bound = max(self.bound, lot[-1][0])
        return Step.split([*nodes, self])


def sorted_shapes(space: Space, size: int, most: int | None = None) -> list[tuple[int, bool | None, Modes]]:
    """Bounds in nanoseconds of all shapes that may fit, ascending: under 1F1B families (True), and under the others.

    Shapes whose cheap bound is ``most`` or more have that bound, under all families (None).
    """
    many, high = space.job.batch // size, NEVER if most is None else most
    every = list(space.all_modes(size))
    rows: list[tuple[int, bool | None, Modes]] = [(bound, None, modes) for modes, bound in every if bound >= high]
    close = sorted((modes for modes, bound in every if bound < high), key=len)
    tables = ShapeTables(space, size) if close else None
    for depth, same in groupby(close, key=len):
        shapes = list(same)
        numbers = np.array([[(mode.device_class, mode.replicas) for mode in modes] for modes in shapes], np.int64)
        for alternating in (True, False):
            families = [each for each in space.families if each.alternates is alternating]
            if tables is not None and (families or (alternating and space.free)):
                bounds = tables.bounds(
                    numbers, counts_in_flight(space, families, alternating, numbers[..., 1], many), depth
                )
                found = zip(bounds.tolist(), shapes, strict=True)
                rows += [(bound, alternating, modes) for bound, modes in found if bound < NEVER]
    return sorted(rows, key=lambda row: (row[0], len(row[2])))


def counts_in_flight(space: Space, families: Sequence[Family], alternating: bool, widths: Array, many: int) -> Array:
    """Least and most micro-batches in flight over the families: shape (2, shapes, stages)."""
    two_lanes = any(each.two_lanes for each in families)
    rows, place = np.unique(widths, axis=0, return_inverse=True)
    found = []
    for replicas in map(tuple, rows.tolist()):
        counts = [in_flight(each, replicas, many, space.job.objective) for each in families]
        if alternating and space.free:
            box = InFlightBox.of(replicas, many)
            counts += [box.low, box.high]
        begun = -(-np.max(counts, axis=0) // space.model.slices)
        most = [many] * len(replicas) if two_lanes else begun  # warm-up bound is for one lane
        found.append((np.min(counts, axis=0), most))
    ends: Array = np.array(found, np.int64)[place.ravel()].transpose(1, 0, 2)
    return ends


@dataclass(frozen=True)
class _Terms:
    """The numbers of the objective, as arrays over pairs; see `pipeplan_formulations.partition.objective.Terms`."""

    overlap: Overlap
    objective: Objective
    divisor: int
    through: tuple[Counts, ...]
    latency: tuple[Array, ...]
    ends_together: bool = False
    resources: tuple[LinkResource, ...] = ()
    paths: tuple[PathCut, ...] = ()


class ShapeTables:
    """Least times and bytes of layers by class and replicas, over all placements of a shape on the nodes.

    ``widths``: the numbers of replicas of a stage that are asked about, ascending; by default all, and one from level 2
    of ZeRO on, where passes depend on it. ``hiding``: prices of layers that hide no less of sums and gathers, if those
    of the space are not to.
    """

    def __init__(
        self, space: Space, size: int, widths: Sequence[int] | None = None, hiding: Prices | None = None
    ) -> None:
        self._space, self._size, self._many = space, size, space.job.batch // size
        classes, prices, job = space.classes, space.prices, space.job
        tables = [prices.table(each.kind, size) for each in classes]
        widths = widths or range(1, min(max(len(each.devices) for each in classes), self._many) + 1)
        self._widths = [*widths]

        # By class and boundary; by class, replicas less one, and boundary.
        self._saved = sums_before(np.stack([table.saved for table in tables]))
        networks = [space.cluster.between(each.kind, each.kind) for each in classes]
        rings = [
            [possible_rings(each, network, r) for r in widths] for each, network in zip(classes, networks, strict=True)
        ]
        joins = any(each.joins for each in space.families)
        passes = [table.split_passes(joins) if space.splits else table.whole_passes for table in tables]
        if job.level >= SHARDED:
            assert len(self._widths) == 1, "passes of other numbers of replicas take other times"
            least_times = [least_passes(prices, each, size, own[0]) for each, own in zip(classes, rings, strict=True)]
            passes = [(*own, none, *own, none) for own, (_, _, none, *_) in zip(least_times, passes, strict=True)]
        rows = (sums_before(np.stack(each)) for each in zip(*passes, strict=True))
        self._forward, self._backward, self._weight, self._first_forward, self._first_backward, self._first_weight = (
            rows
        )
        least = LeastTables.of(prices, [each.kind for each in classes], size, rings)
        self._resident, self._update = sums_before(least.resident), sums_before(least.update)
        hides = np.stack([(hiding or prices).sync.hides(each.kind, size, space.splits) for each in classes])
        ahead = least.gather_hides.max(axis=1)
        if hiding is not None:
            ahead = ahead.any() * np.stack([hiding.table(each.kind, size).forward for each in classes])
        some = Exposed(least.reduce, hides[:, None], least.reduce_base)
        sums: Exposed | InTurn = some
        if space.unfolding is not None and not space.splits:
            every = zip(classes, rings, strict=True)
            all_sums = [[prices.sync.least_sums(each.kind, own) for own in row] for each, row in every]
            sums = InTurn(some, np.array(all_sums, np.int64) - hides[:, None])
        self._reductions = Collectives(
            sums,
            Exposed(least.gather, ahead[:, None], least.gather_base),
            everywhere=job.objective.value == "period",
        )
        self._limit = np.array([usable_memory(each.kind, job) for each in classes], np.int64)
        self._options = []
        for each, table, own in zip(classes, tables, passes, strict=True):
            peak, again = (
                prices.kept.with_buffers(each.kind, beside, table.backward, self._widths[0])
                for beside in (table.workspace, table.saved + table.workspace)
            )
            useful = prices.recomputable & (table.output < table.saved)
            self._options.append(shared_recomputation(own[0], table.saved - table.output, peak, again, useful))
        # By class before and behind a boundary: bytes received, and the least time and latency of a hop.
        links = [[hops_between(space, a, b) for b in classes] for a in classes]
        crossing = [[prices.crossing(a.kind, b.kind, size) for b in classes] for a in classes]
        self._received = np.stack([[np.pad(each.received, 1) for each in row] for row in crossing])
        self._send = np.stack(
            [
                [
                    np.minimum.reduce([occupancies(link, each.sent) for link in own])
                    for own, each in zip(*rows, strict=True)
                ]
                for rows in zip(links, crossing, strict=True)
            ]
        )
        self._latency = np.array([[min(link.latency for link in own) for own in row] for row in links], np.int64)

    def bounds(self, shapes: Array, counts: Array, depth: int) -> Array:
        """The least bound over all partitions of each shape, in nanoseconds; `NEVER` where none fits.

        Parameters
        ----------
        shapes : array, shape (K, S, 2)
            Class and replicas of each stage.
        counts : array, shape (2, K, S)
            Micro-batches that the memory must hold, and most forwards of a replica before its first backward.
        """
        edges = partitions(self._space.constraints.cuts, depth, self._forward.shape[1] - 1)
        if not len(edges):
            return np.full(len(shapes), NEVER)
        # One entry for each pair of a shape and a partition, shape by shape.
        shape, part = (grid.ravel() for grid in np.indices((len(shapes), len(edges))))
        kind, width = (list(numbers[shape].T) for numbers in (shapes[..., 0], shapes[..., 1]))
        edge, warm_up = list(edges[part].T), list(counts[1][shape].T)
        spans = list(zip(kind, [w - 1 for w in width], edge[:-1], edge[1:], strict=True))
        ends = [(kind[s], kind[s + 1], edge[s + 1] - 1) for s in range(depth - 1)]
        # Least recomputation of each stage, `IMPOSSIBLE` where it does not fit.
        stages = np.concatenate([shapes, counts[0][..., None]], axis=2)
        longer = [
            self._recomputed(stages[:, max(s - 1, 0), 0], stages[:, s], shape, *spans[s][2:]) for s in range(depth)
        ]
        fits = np.logical_and.reduce([row < IMPOSSIBLE for row in longer])
        longer = [np.where(fits, row, 0) for row in longer]
        send = [self._send[end] for end in ends]
        first, late = self._first_to_pass(spans), self._late_behind
        sums = Sums(
            forward=[self._forward[c, b] - self._forward[c, a] for c, _, a, b in spans],
            backward=[
                self._backward[c, b] - self._backward[c, a] + row
                for (c, _, a, b), row in zip(spans, longer, strict=True)
            ],
            update=[self._update[c, w, b] - self._update[c, w, a] for c, w, a, b in spans],
            weight=[0] * depth,
            reduce=[self._reductions((c, w), a, b) for c, w, a, b in spans],
            send=send,
            back=send,
            link=send,
            cut=[cut for _, _, cut in ends],
            ahead=first,
            trip=first,
            behind=None if late is None else [late[b] for *_, b in spans],
        )
        share = [-(-self._many // w) for w in width]
        following = [np.maximum(most - np.maximum(k, 1), 0) for most, k in zip(share, warm_up, strict=True)]
        if self._space.unfolding is not None:  # forwards of a device's stages differ
            following = [0 * k for k in warm_up]
        hop = [np.ones_like(shape), *(self._busiest(*pair) for pair in pairwise(width))]
        hop.append(hop[0])
        space = self._space
        terms = _Terms(
            overlap=space.cluster.overlap.value,
            objective=space.job.minimised,
            divisor=1 if space.job.staleness else space.job.batch,
            through=tuple(Counts(share[s], following[s], hop[s + 1], hop[s]) for s in range(depth)),
            latency=tuple(self._latency[a, b] for a, b, _ in ends),
        )
        found = np.where(fits, values(terms, sums), NEVER)
        least: Array = found.reshape(len(shapes), len(edges)).min(axis=1, initial=NEVER)
        return least

    def _first_to_pass(self, spans: list[tuple[Array, Array, Array, Array]]) -> RoleSums | None:
        """Times ahead: of the first slice of each stage, or of a device's least stage; None where all is ahead."""
        if self._space.model.slices == 1 and self._space.unfolding is None:
            return None
        forward, backward = (
            [row[c, b] - row[c, a] for c, _, a, b in spans] for row in (self._first_forward, self._first_backward)
        )
        return RoleSums(forward, backward, [0] * len(spans))

    @cached_property
    def _late_behind(self) -> Array | None:
        """The least time of the last of equal slices, which grow by equal steps, behind each boundary."""
        slices = self._space.model.slices
        if slices == 1 or self._space.cluster.overlap is Waits.NONE:
            return None
        every, first = self._forward + self._backward, self._first_forward + self._first_backward
        late = np.diff(2 * every // slices - first, axis=-1).min(axis=0)
        behind: Array = late.sum() - sums_before(late)
        return behind

    def _recomputed(self, before: Array, stages: Array, shape: Array, a: Array, b: Array) -> Array:
        """Least recomputed forward time with which a stage fits in each pair, a lower bound where that is unknown.

        ``before``, ``stages``: by shapes, the class of the stage before, shape (K,), and the stage's class, replicas
        and micro-batches that it holds, shape (K, 3). ``shape``: that of each pair.
        """
        modes, mode = np.unique(np.column_stack([before, stages]), axis=0, return_inverse=True)
        n = self._forward.shape[1]
        # Each question once: many pairs share a stage.
        every, place = np.unique((mode.ravel()[shape] * n + a) * n + b, return_inverse=True)
        a, b, (before, kind, width, held) = every // n % n, every % n, modes[every // n**2].T
        resident = self._resident[kind, width - 1, b] - self._resident[kind, width - 1, a]
        kept = self._saved[kind, b] - self._saved[kind, a] + self._received[before, kind, a]
        spare = self._limit[kind] - resident - held * kept
        longer = np.zeros(len(every), np.int64)
        for number, options in enumerate(self._options):
            short = np.flatnonzero((kind == number) & (options.workspace.of(a, b) > spare))
            if len(short):
                longer[short] = _least(options, a[short], b[short], held[short], spare[short])
        return longer[place.ravel()]

    def _busiest(self, width: Array, behind: Array) -> Array:
        """Least micro-batches on the busiest resource of a hop: every lcm-th joins the same replicas."""
        most = int(max(width.max(), behind.max())) + 1
        period = np.array([[lcm(a, b) for b in range(most)] for a in range(most)])
        passages = self._space.model.slices * self._space.model.rounds
        counts: Array = passages * -(-self._many // period[width, behind])
        return counts


def _least(options: SpanOptions, a: Array, b: Array, held: Array, spare: Array) -> Array:
    """Least extra time of spans that need some; `IMPOSSIBLE` where nothing fits."""
    least = np.full(len(a), IMPOSSIBLE)
    fits = options.fewest_bytes(a, b, held) <= spare
    crowded = options.crowded(a, b)
    quick, exact = np.flatnonzero(fits & crowded), np.flatnonzero(fits & ~crowded)
    least[quick] = options.quick_lower_bound(a[quick], b[quick], held[quick], spare[quick])
    least[exact] = options.least_each(a[exact], b[exact], held[exact], spare[exact])[0]
    return least


def hops_between(space: Space, before: DeviceClass, behind: DeviceClass) -> list[Link]:
    """The links that may join a stage on devices of one class to one of another class, or of the same."""
    links = possible_links(before, behind, space.cluster.between(before.kind, behind.kind))
    if before is behind and before.per_node == 1:
        links = links[1:]
    return links or [before.link]
