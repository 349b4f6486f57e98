"""`RowsNode`: rows of modes at a micro-batch size, bounded together (`nodes.row_tables`).

Rows below the incumbent are placed on devices, one by one. Of devices with several stages each partitions follow
(`nodes.folded_partitions`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import comb

from pipeplan.core.job import SHARDED
from pipeplan.costs.chain import Array
from pipeplan.costs.pricing import Prices
from pipeplan.search.branch_and_bound import Node, PlanSearch, Step, Turn
from pipeplan.search.nodes.device_groups import DeviceGroupsNode, SpaceNode, UnplacedNode
from pipeplan.search.nodes.folded_partitions import FoldedPartitionsNode
from pipeplan.search.nodes.row_tables import DEEP, LOT, Row, RowTables, bounds_rows
from pipeplan.search.space.space import PAIRS, Space
from pipeplan_formulations.partition.listing import few
from pipeplan_formulations.partition.spans import NEVER

FIRST_OF_LOT = 4
"""Rows that are bounded at once where only the first one is asked for."""


def turn_of(space: Space) -> Turn:
    """Return the turn of the nodes of all plans of a space: late where others are sought first.

    Those are plans of whole backwards, of rounds that are cut alike, and of one stage a device where they are soon
    found: where all pairs of a shape and a partition are listed. On very many devices nothing is soon found, and bounds
    of all plans rise together.
    """
    if space.model.unfolded is None or space.evenly:
        return Turn.BY_BOUND
    if space.splits or space.unlike_rounds:
        return Turn.LATE
    layers, devices = len(space.model.unfolded.layers), len(space.cluster.devices)
    return Turn.LATE if comb(layers - 1, min(devices, layers) - 1) <= PAIRS else Turn.BY_BOUND


def bounded_rows(
    space: Space, size: int, most: int | None = None, hiding: Prices | None = None, one: bool = False
) -> list[Row]:
    """Return the rows of modes that may fit, the least bound first; bounds above ``most`` are not close.

    ``hiding``: prices of layers that hide no less of sums and gathers. ``one``: only the first row is asked for.
    """
    high, found = NEVER if most is None else most, list[Row]()
    for rows in _in_tables(space, _rows_below(space, size, high)):
        found += _bounded(space, size, rows, high, hiding, one)
        high = min([high, *(row.bound for row in found)]) if one else high
    return sorted(found, key=Row.order)


def _bounded(space: Space, size: int, rows: list[Row], high: int, hiding: Prices | None, one: bool) -> list[Row]:
    """The rows of one table whose bounds are below ``high``, or some of them with the least."""
    if not bounds_rows(space):
        return rows
    tables = _tables(space, size, rows, hiding)
    if one or space.evenly or len(rows) > LOT:
        rows = sorted(tables.closer(rows, high, like=True), key=Row.order)
    found: list[Row] = []
    at_once = FIRST_OF_LOT if one else LOT
    for lot in (rows[i : i + at_once] for i in range(0, len(rows), at_once)):
        if one and min((row.bound for row in found), default=NEVER) <= lot[0].bound:
            break
        closer = tables.closer(lot, high)
        found += closer if space.unfolding is not None else tables.closer([*closer], high, ranged=True)
    return found


def least_row(space: Space, size: int, most: int) -> int:
    """Return a quick lower bound in nanoseconds on all rows, at most ``most``."""
    for rows in _in_tables(space, _rows_below(space, size, most)):
        tables = _tables(space, size, rows)
        for lot in (rows[i : i + LOT] for i in range(0, len(rows), LOT)):
            if lot[0].bound < most:
                most = min([most, *(row.bound for row in tables.closer(lot, most, like=True))])
    return most


def _rows_below(space: Space, size: int, high: int) -> list[Row]:
    """The rows whose cheap bounds are below ``high``, the least first."""
    return sorted((Row(bound, modes) for modes, bound in space.all_modes(size) if bound < high), key=Row.order)


def _in_tables(space: Space, rows: Sequence[Row]) -> list[list[Row]]:
    """The rows that are bounded by one table: from level 2 of ZeRO on those of one number of replicas."""
    tables: dict[int, list[Row]] = {}
    for row in rows:
        tables.setdefault(row.modes[0].replicas if space.job.level >= SHARDED else 0, []).append(row)
    return [*tables.values()]


def _tables(space: Space, size: int, rows: Sequence[Row], hiding: Prices | None = None) -> RowTables:
    return RowTables(space, size, sorted({mode.replicas for row in rows for mode in row.modes}), hiding)


def try_row(search: PlanSearch, space: Space, size: int, row: Row) -> None:
    """Simulate the partition of a row on its first devices, once; of split backwards in one of all ways of teams."""
    if row.partition is None:
        return
    boundaries = row.partition()
    alike = (space.unfolding.laid, space.split.teams) if space.splits and space.unfolding and space.split else space
    if search.is_new((alike, size, space.job.level, row.modes, boundaries)):
        for groups in islice(space.placing.of(row.modes), 1):
            search.submit_all(space.candidates(groups, size), boundaries)


@dataclass
class RowsNode(SpaceNode):
    """The rows of modes of a space that has few, at a micro-batch size.

    ``quick``: they have a quick bound, if they are of many devices.
    """

    quick: bool = False

    @property
    def rank(self) -> tuple[int, ...]:
        """Before device groups, which are below."""
        return (1, 0)

    @property
    def turn(self) -> Turn:
        """That of the space."""
        return turn_of(self.space)

    @property
    def shared(self) -> bool:
        """True."""
        return True

    def advance(self, search: PlanSearch) -> Step[Node]:
        """Open the rows that may be better than the incumbent, and try the best of them at once, but not late.

        Then there is an incumbent, and most rows are closed by it before they have their turn.
        """
        if not self.quick and search.cutoff is not None and self._many:
            self.quick = True
            self.bound = max(self.bound, least_row(self.space, self.size, search.cutoff))
            return Step.split([self])
        rows = bounded_rows(self.space, self.size, search.cutoff)
        for row in rows[:1]:
            if not search.fathoms(row.bound) and (search.cutoff is None or self.turn is not Turn.LATE):
                try_row(search, self.space, self.size, row)
        folded = self.space.unfolding is not None and bounds_rows(self.space)
        below = FoldedRowNode if folded else UnplacedNode
        nodes = [below(max(row.bound, self.bound), self.space, self.size, row.modes) for row in rows]
        return Step.split(nodes) if search.cutoff is None else Step.leave(search.cutoff, nodes)

    @property
    def _many(self) -> bool:
        """Whether rows are long, so that a close bound of all takes seconds."""
        return bounds_rows(self.space) and len(self.space.cluster.devices) > DEEP


@dataclass
class FoldedRowNode(UnplacedNode):
    """The device groups of one row of devices with several stages each."""

    def advance(self, search: PlanSearch) -> Step[Node]:
        """Place the row; below are lists of partitions, or the partitions in the order of the row's bounds."""
        stages: list[Array] = []
        nodes: list[Node] = []
        for groups in self.space.placing.of(self.modes):
            candidates = self.space.candidates(groups, self.size)
            if few(candidates[0].problem) and not self.space.unlike_rounds:
                nodes.append(DeviceGroupsNode(self.bound, self.space, groups, self.size))
                continue
            stages = stages or RowTables(self.space, self.size, [self.modes[0].replicas]).stages_of(self.modes)
            every = (FoldedPartitionsNode.of(self.bound, search, candidate, stages) for candidate in candidates)
            nodes += [node for node in every if node is not None]
        return Step.split(nodes)
