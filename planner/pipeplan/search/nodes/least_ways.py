"""`LeastWaysNode`: several ways to split layers at one micro-batch size, bounded together by their least way.

::

    way 1 … way 40          the least of all: closed, or
    1 … 23     24 … 40      the least of each half, and so on down to
    way 7                   a way whose bound is below the best plan: it has the nodes of its own
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from pipeplan.core.changed import changed
from pipeplan.core.cluster import Cluster, Overlap
from pipeplan.core.folding import Laid
from pipeplan.core.job import Objective
from pipeplan.core.model import Model
from pipeplan.core.splits import Split
from pipeplan.costs.chain import Boundaries
from pipeplan.costs.folded import folded
from pipeplan.costs.pricing import Prices
from pipeplan.costs.sharding.least_way import least_model, most_model
from pipeplan.search import least_shared, nodes_of
from pipeplan.search.branch_and_bound import Node, PlanSearch, Step, Turn
from pipeplan.search.infeasible import promising
from pipeplan.search.nodes.device_groups import SpaceNode
from pipeplan.search.nodes.joined_spaces import halves
from pipeplan.search.nodes.row_tables import DEEP, Row, bounds_rows
from pipeplan.search.nodes.rows import RowsNode, bounded_rows, try_row, turn_of
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.lower_bounds import LowerBounds
from pipeplan.search.space.space import ANY, MANY_UNITS, Space
from pipeplan.search.space.spaces import Spaces
from pipeplan_formulations.common.sentinels import UNLIMITED


def bounds_ways(space: Space) -> bool:
    """Whether plans are bounded by the least way of several: not where that is unproved, or takes seconds.

    Only small spaces are bounded in milliseconds; `JoinedSpacesNode` bounds large ones of ways that are priced.
    """
    return space.small and _proved(space)


def bounds_rounds(own: Spaces) -> bool:
    """Whether plans of a way with several stages of a device each are bounded by the least way of several."""
    spaces = [*own.in_one_round]
    return bool(spaces) and all(map(_proved if _in_rows(own) else bounds_ways, spaces))


def _in_rows(own: Spaces) -> bool:
    """Whether such plans are bounded by rows of modes: where teams, or their partitions, are many."""
    many = len(own.cluster.devices) > MANY_UNITS or (own.lowest.unfolding is None and not own.lowest.small)
    return many and own.cluster.overlap is Overlap.COPY


def _proved(space: Space) -> bool:
    job = space.job
    step = job.objective is Objective.STEP and not job.staleness and ANY not in job.schedules
    whole = space.model.slicing is None and (space.unfolding is not None or not space.splits)
    return step and whole and space.cluster.overlap is not Overlap.STREAM


@dataclass(kw_only=True, eq=False)
class BoundSearch(PlanSearch):
    """A search that simulates no plan. It ends where the bound of some partition is below the best plan."""

    def submit_all(self, candidates: Iterable[Candidate], boundaries: Boundaries) -> None:
        """Simulate nothing."""

    def affords(self, candidate: Candidate) -> bool:  # noqa: ARG002
        """Return False: partitions are bounded, and left."""
        return False

    def raise_bound(self) -> int:
        """Search until the bound reaches the cutoff or can no longer be raised; return it.

        `UNLIMITED` if there are no plans.
        """
        while self.open and self.left > 0 and not self.fathoms(self.bound) and not self._ends:
            self.step()
        return UNLIMITED if self.refuted else self.bound

    @property
    def _ends(self) -> bool:
        return self._rest is not None and not self.fathoms(self._rest)


def lower_bound(spaces: Iterable[Space], search: PlanSearch) -> int:
    """Return a lower bound in nanoseconds on the plans of some spaces, at most the search's cutoff.

    `UNLIMITED` if there are no plans.
    """
    every = promising(spaces)
    for space in every:
        space.prices.sync.sums = space.unfolding is None  # backwards that count in part hide sums of super layers
    own = BoundSearch(
        replace(search.limits, time=max(search.left / 2, 0.0), gap=0.0),
        cluster_of=lambda _: every[0].cluster,  # that of all
        backend="exact",
    )
    # Gradients of a copy of shared weights are summed within a nanosecond of their share.
    rounding = max((len(space.cluster.devices) for space in every if space.model.ties), default=0)
    own.value = None if search.cutoff is None else search.cutoff + rounding
    for node in nodes_of(every):
        if node.turn is not Turn.EARLY:  # which only finds plans
            own.push(node)
    own.resume()
    bound = own.raise_bound()
    return bound if bound == UNLIMITED else max(bound - rounding, 0)


def _closed(bound: int, search: PlanSearch) -> Step[Node] | None:
    """The end of a node whose plans have a bound: none fits, or none is better; None if some plan may."""
    if bound >= UNLIMITED:
        return Step.nothing()
    return Step.leave(bound) if search.fathoms(bound) else None


def by_rows(node: SpaceNode) -> bool:
    """Whether a node's ways are bounded by rows of modes: those of small spaces are by what lies below, too."""
    return isinstance(node, RowsNode) and bounds_rows(node.space)


def together(nodes: Iterable[Node]) -> Iterator[Node]:
    """Yield root nodes, those of ways over equal teams at one micro-batch size together."""
    groups: dict[Hashable, dict[Split, list[SpaceNode]]] = {}
    for node in nodes:
        if isinstance(node, SpaceNode) and isinstance(node.space.split, Split):
            split, rows = node.space.split, by_rows(node)
            if rows or bounds_ways(node.space):
                laid = node.space.unfolding and node.space.unfolding.laid
                alike = split.sizes, split.placements, split.passes, node.size, laid, rows
                ways = groups.setdefault(alike, {})
                ways.setdefault(split, []).append(node)
                continue
        yield node
    for ways in groups.values():
        yield LeastWaysNode.of([*ways.values()])


def in_rounds(every: Iterable[Spaces]) -> Iterator["RoundsNode"]:
    """Yield the nodes of plans with several stages on each team, or split backwards.

    There is one for ways between the same placements and all loops of whole backwards, and one for each way to lay
    stages whose backwards are split.
    """
    groups: dict[Hashable, list[Spaces]] = {}
    for own in every:
        if isinstance(own.split, Split):
            split = own.split
            groups.setdefault((split.sizes, split.placements, split.passes, own.lowest.sizes), []).append(own)
    for ways in groups.values():
        laid = dict.fromkeys(laid for own in ways for laid in own.every_laid)
        loops = [each for each in laid if not ways[0].rounds.splits(each)]
        spaces = [own.lowest for own in ways]
        for size in spaces[0].sizes:
            whole = min(each.lower_bounds(size).evenly_shared(each.cluster) for each in spaces)
            yield from [RoundsNode(whole, ways, size, loops)] * bool(loops)
            halved = (LowerBounds(each.prices, size, splits=True) for each in spaces if len(loops) < len(laid))
            least = min((bounds.evenly_shared(spaces[0].cluster) for bounds in halved), default=0)
            yield from (RoundsNode(least, ways, size, [each]) for each in laid if each not in loops)


@dataclass
class RoundsNode(Node):
    """Plans of several ways at one micro-batch size with several stages on each team, laid in these ways.

    They are bounded together before each has spaces of such plans; on many teams by rows of modes, and then those of
    each half of the ways. ``open``: which foldings and levels of ZeRO may still have better plans; None is all.
    """

    bound: int
    ways: Sequence[Spaces] = field(repr=False)
    size: int
    laid: Sequence[Laid]
    open: frozenset[Hashable] | None = None
    raised: bool = False

    @property
    def rank(self) -> tuple[int, ...]:
        """Before single ways, as `LeastWaysNode`."""
        return (0, -len(self.ways))

    @property
    def turn(self) -> Turn:
        """Late, as all plans with several stages of a device, but on many teams."""
        return Turn.BY_BOUND if self._many else Turn.LATE

    @property
    def _many(self) -> bool:
        return _in_rows(self.ways[0])

    @property
    def shared(self) -> bool:
        """True."""
        return True

    def advance(self, search: PlanSearch) -> Step[Node]:
        """Bound all plans by the least way, then open the nodes of each way if some plan may fit and be better."""
        if self._many and not self.raised:
            self.raised = True
            bounds = (least_shared(own, self.size) for own in self._least())
            self.bound = max(self.bound, min(bounds, default=UNLIMITED))
            return _closed(self.bound, search) or Step.split([self])
        self.bound = max(self.bound, self._of_rows(search) if self._many else lower_bound(self._least(), search))
        if closed := _closed(self.bound, search):
            return closed
        if self._many and len(self.ways) > 1:
            below = halves(self.ways, lambda own: _measures(own.lowest, self.size))
            return Step.split([replace(self, ways=own) for own in below])
        every = nodes_of(promising(chain.from_iterable(map(self._spaces, self.ways))))
        nodes = [node for node in every if isinstance(node, SpaceNode) and node.size == self.size]
        for node in nodes:
            node.bound = max(node.bound, self.bound)
        apart = len(self.laid) == 1 and _cheap(self.ways[0].cluster)
        return Step.split(nodes if apart else [*together(nodes)])

    def _of_rows(self, search: PlanSearch) -> int:
        """A lower bound on the plans of the least way, by rows of modes, at most the cutoff; `UNLIMITED` without any.

        The row that has it is tried on the fastest way.
        """
        most, found = most_model([own.model for own in self.ways], self.size), dict[Hashable, Row]()
        for space in self._least():
            folding = space.model.folding
            assert folding is not None, "its devices have several stages"
            hiding = folded(most, folding.laid)
            assert hiding is not None, "as many layers as in each of the ways"
            prices = Prices(hiding, space.cluster, space.job, space.split)
            rows = bounded_rows(space, self.size, search.cutoff, prices, one=True)
            found |= {_kind(space): row for row in rows[:1] if not search.fathoms(row.bound)}
        self.open = frozenset(found)
        if not found:
            return UNLIMITED if search.cutoff is None else search.cutoff
        best = min(found, key=lambda kind: found[kind].bound)
        fastest = min(self.ways, key=lambda own: _measures(own.lowest, self.size))
        for own in self._spaces(fastest):
            if _kind(own) == best:
                try_row(search, own, self.size, found[best])
        return found[best].bound

    def _least(self) -> Iterator[Space]:
        """The spaces of the least way."""
        first = self.ways[0]
        job = changed(first.job, micro_batches=(first.job.batch // self.size,))
        model = least_model([own.model for own in self.ways], self.size)
        return self._spaces(Spaces(model, first.cluster, job, first.split, halved=first.rounds.halved))

    def _spaces(self, own: Spaces) -> Iterator[Space]:
        """The spaces of a way that may still have better plans."""
        every = chain.from_iterable(own.at(laid) or () for laid in self.laid)
        return (space for space in every if self.open is None or _kind(space) in self.open)


def _kind(space: Space) -> Hashable:
    """What a device's stages are, and the level of ZeRO."""
    return space.model.folding, space.job.level


@dataclass
class LeastWaysNode(Node):
    """Root nodes of several ways at one micro-batch size.

    Plans are those of the nodes; this one only bounds them. Without a plan to beat they are opened at once.

    Attributes
    ----------
    ways : sequence of sequence of Node
        The nodes of each way.
    """

    bound: int
    ways: Sequence[Sequence[SpaceNode]] = field(repr=False)

    @classmethod
    def of(cls, ways: Sequence[Sequence[SpaceNode]]) -> "LeastWaysNode":
        """The node of these, with the least of their bounds."""
        return cls(min(node.bound for own in ways for node in own), ways)

    @property
    def rank(self) -> tuple[int, ...]:
        """Before single ways: one bound for many."""
        return (0, -len(self.ways))

    @property
    def turn(self) -> Turn:
        """As the nodes: often late where devices have several stages."""
        return turn_of(self.ways[0][0].space)

    @property
    def shared(self) -> bool:
        """True."""
        return True

    def advance(self, search: PlanSearch) -> Step[Node]:
        """Raise the bound of all; divide them in two if that is not enough, or open all if there is no plan to beat."""
        if len(self.ways) == 1:
            return Step.split(self._nodes)
        rows, most = by_rows(self._nodes[0]), UNLIMITED if search.cutoff is None else search.cutoff
        self.bound = max(self.bound, self._of_rows(search, most) if rows else self._below(search))
        if closed := _closed(self.bound, search):
            return closed
        if search.cutoff is None:
            return Step.split(self._nodes)
        for node in self._nodes:
            node.bound = max(node.bound, self.bound)
        if rows and _cheap(self._nodes[0].space.cluster):
            return Step.split(self._nodes)
        below = halves(self.ways, lambda own: _measures(own[0].space, own[0].size))
        return Step.split([LeastWaysNode.of(own) for own in below])

    @property
    def _nodes(self) -> list[SpaceNode]:
        return [node for own in self.ways for node in own]

    def _below(self, search: PlanSearch) -> int:
        """A lower bound on the plans of the least way, by its nodes."""
        return lower_bound((least_space(own, self._nodes[0].size) for own in self._levels().values()), search)

    def _of_rows(self, search: PlanSearch, cutoff: int) -> int:
        """A lower bound on the plans of the least way, by rows of modes, at most the cutoff.

        The row that has it is tried on the fastest way.
        """
        size, least = self._nodes[0].size, cutoff
        fastest = min(self.ways, key=lambda own: _measures(own[0].space, size))
        for level, spaces in self._levels().items():
            for row in least_rows(spaces, size, cutoff, one=True)[:1]:
                least = min(least, row.bound)
                for node in fastest:
                    if node.space.job.level == level and not search.fathoms(row.bound):
                        try_row(search, node.space, size, row)
        return least

    def _levels(self) -> dict[int, list[Space]]:
        """The spaces of each level of ZeRO."""
        levels: dict[int, dict[Space, None]] = {}
        for node in self._nodes:
            levels.setdefault(node.space.job.level, {})[node.space] = None
        return {level: list(spaces) for level, spaces in levels.items()}


def _cheap(cluster: Cluster) -> bool:
    """Whether the rows of one way are bounded in milliseconds, as soon as those of the least way."""
    return len(cluster.devices) <= DEEP


def least_space(spaces: Sequence[Space], size: int) -> Space:
    """Return the space of the least way of all at one micro-batch size."""
    first = spaces[0]
    job = changed(first.job, micro_batches=(first.job.batch // size,))
    return Space(
        _of_model(least_model, spaces, size), first.cluster, job, first.split, shares=all(own.shares for own in spaces)
    )


def least_rows(spaces: Sequence[Space], size: int, most: int | None = None, one: bool = False) -> list[Row]:
    """Return the rows of modes of the least way of all, bounded as `bounded_rows` does: for each of the ways.

    Their sums and gathers are hidden as in the way that hides most.
    """
    space = least_space(spaces, size)
    hiding = Prices(_of_model(most_model, spaces, size), space.cluster, space.job, space.split)
    return bounded_rows(space, size, most, hiding, one)


def _of_model(join: Callable[[Sequence[Model], int], Model], spaces: Sequence[Space], size: int) -> Model:
    """The model that is joined of those of spaces, folded as they are."""
    first = spaces[0].model
    whole = join([space.model.unfolded or space.model for space in spaces], size)
    own = whole if first.folding is None else folded(whole, first.folding.laid)
    assert own is not None, "as many layers as in each of the ways"
    return own


def _measures(space: Space, size: int) -> tuple[int, int, int]:
    """Time, saved bytes and parameters of all layers of a way on the first kind of device."""
    prices = space.prices if space.unfolding is None else space.unfolding.prices
    table = prices.table(space.classes[0].kind, size)
    parameters = sum(layer.parameters for layer in space.model.layers)
    return int((table.forward + table.backward).sum()), int(table.saved.sum()), parameters
