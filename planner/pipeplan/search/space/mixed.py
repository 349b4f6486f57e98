"""`MixedSpace`: the choices of a search in which stages have teams of unlike sizes, and where their teams may lie.

::

    stages      4 x 2   2 x 3   1 x 2          team and replicas of each: 16 devices
    node 0      4   4                          a mix fills the nodes with teams; the stages take them in turn
    node 1      2   2   2   1   1

    pool        v100                           all devices of a class
    groups      4 x v100   2 x v100   v100     teams of a size, which take so many devices of their pool
    classes     way 1, 2   way 1, 2            one for each way to split; a group is joined until its way is chosen

Teams of all sizes and ways stand side by side in its cluster, though their devices are the same: it is for tables, and
plans have spaces of their own. Rows of modes, each a group with its replicas, are placed on mixes: on all that fill a
small cluster in another way, else on one that packs the stages.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import pairwise, product

from pipeplan.core.cluster import Cluster, Node
from pipeplan.core.splits import Mix, Split
from pipeplan.costs.chain import Boundaries
from pipeplan.costs.sharding.mixed import NodeTeams, fill_up, fillings, kind_name, mixed_cluster
from pipeplan.costs.sharding.question import MixedQuestion
from pipeplan.search.regimes import REGIMES
from pipeplan.search.space.device_groups import DeviceClass, Mode, Modes, device_classes, placements
from pipeplan.search.space.space import Placed, Space

MOST = REGIMES.mixed_fillings.most
"""Most ways to fill the nodes of which every one is tried for a row of modes; of more, one that packs the stages."""

Nodes = tuple[NodeTeams, ...]
SpacesOf = Callable[[Mix], Sequence[Space]]
"""Returns the spaces of a mix, one for each level of ZeRO; none if it cannot be searched."""
Ways = Mapping[int, tuple[Split | None, ...]]
"""Ways to split layers over teams of each size; single devices split nothing."""
Row = tuple[DeviceClass, int, int]
"""Of a stage the pool, the size of its teams, and the replicas."""


class MixedSpace(Space):
    """The choices of all mixes of a question, at its lowest level of ZeRO.

    Attributes
    ----------
    question : MixedQuestion
    levels : tuple of Space
        The same costs at each level, this one first.
    pools : tuple of DeviceClass
        Of single devices, where some team has room.
    teams : tuple of (int, int)
        For each group its pool and the size of its teams.
    home : tuple of int
        The group of each class.
    groups : tuple of tuple of int
        The classes of each group, of the ways that are open.
    """

    def __init__(self, question: MixedQuestion, of: SpacesOf) -> None:
        levels = question.job.zero or (0, 1)
        cluster = _side_by_side(question)
        super().__init__(question.model, cluster, replace(question.job, zero=levels[:1]))
        others = (Space(question.model, cluster, replace(question.job, zero=(level,))) for level in levels[1:])
        self.question, self._of, self.levels = question, of, (self, *others)
        self.pools = tuple(each for each in device_classes(question.cluster) if each.per_node >= question.sizes[0])
        number = {(each.kind.name, each.link): pool for pool, each in enumerate(self.pools)}
        place = [(number[each.kind.members, each.link], each.kind.team) for each in self.classes]
        self.teams = tuple(dict.fromkeys(place))
        self.home = tuple(self.teams.index(own) for own in place)
        names = {question.name(kind.name, team, split): split for kind, team, split in question.kinds}
        self._splits = tuple(names[each.kind.name] for each in self.classes)
        self._narrow(
            {
                size: tuple(s for s in question.splits if s.team == size) if size > 1 else (None,)
                for size in question.sizes
            }
        )

    def _narrow(self, ways: Ways) -> None:
        self._ways = ways
        self.groups = tuple(
            tuple(c for c, home in enumerate(self.home) if home == group and self._splits[c] in ways[team])
            for group, (_, team) in enumerate(self.teams)
        )

    def only(self, ways: Ways) -> "MixedSpace":
        """The space with these ways to split over teams of these sizes, and all that were open for others."""
        space = copy(self)
        space._narrow({**self._ways, **ways})
        return space

    def with_mode(self, mode: Mode) -> Iterator["MixedSpace"]:
        """Yield the spaces in which a stage has a mode: one for each way to split over its teams."""
        _, team = self.teams[mode.device_class]
        several = len(self._ways[team]) > 1
        yield from (self.only({team: (split,)}) if several else self for split in self._ways[team])

    def chosen(self, size: int) -> tuple["MixedSpace", ...]:
        """The spaces in which teams of each size split in their fastest way, or in their leanest."""
        tables = [self.prices.table(each.kind, size) for each in self.classes]
        times = [int((table.forward + table.backward).sum()) for table in tables]
        kept = [self.prices.kept.resident(each.kind, 1) for each in self.classes]
        sizes = [int(own.sum() + table.saved.sum()) for own, table in zip(kept, tables, strict=True)]
        members: dict[int, list[int]] = {}
        for (_, team), group in zip(self.teams, self.groups, strict=True):
            members.setdefault(team, []).extend(group)
        rows: list[Ways] = [
            {team: (self._splits[min(own, key=measure.__getitem__)],) for team, own in members.items()}
            for measure in (times, sizes)
        ]
        return tuple(self.only(row) for number, row in enumerate(rows) if row not in rows[:number])

    @property
    def suffix(self) -> str:
        """What teams hold in parts between layers."""
        return ", sequence-parallel" * any(self.question.splits[0].sequence)

    @property
    def teams_of_pools(self) -> Iterator[tuple[int, Mapping[str, int]]]:
        """The devices of each pool, and the sizes of the teams of its kinds."""
        for pool, each in enumerate(self.pools):
            own = (c for c, home in enumerate(self.home) if self.teams[home][0] == pool)
            yield len(each.devices), {self.classes[c].kind.name: self.classes[c].kind.team for c in own}

    def placed(
        self,
        modes: Modes,
        boundaries: Boundaries,
        tile: int | None = None,  # noqa: ARG002
    ) -> Iterator[Placed]:
        """Yield the device groups of a row of modes that suit a partition, each in the space of a mix and a level."""
        rows, names = self._rows(modes), self.model.names
        team = {
            name: size for (_, size, _), (a, b) in zip(rows, pairwise(boundaries), strict=True) for name in names[a:b]
        }
        homes = [{team[name] for name in together} for together in self.question.together]
        if all(len(sizes) == 1 for sizes in homes):
            yield from self._on_mixes(rows, tuple(min(sizes) for sizes in homes))

    def every_placed(self, modes: Modes, tile: int | None = None) -> Iterator[Placed]:  # noqa: ARG002
        """Yield the device groups of a row of modes, whatever the partition."""
        rows, names = self._rows(modes), self.model.names
        ends = {names[0]: {rows[0][1]}, names[-1]: {rows[-1][1]}}
        sizes = {team for _, team, _ in rows}
        able = (sizes.intersection(*(ends.get(name, sizes) for name in own)) for own in self.question.together)
        for homes in product(*(sorted(own, reverse=True) for own in able)):
            yield from self._on_mixes(rows, homes)

    def _rows(self, modes: Modes) -> list[Row]:
        places = ((*self.teams[mode.device_class], mode.replicas) for mode in modes)
        return [(self.pools[pool], team, replicas) for pool, team, replicas in places]

    def _on_mixes(self, rows: Sequence[Row], homes: tuple[int, ...]) -> Iterator[Placed]:
        """Yield the device groups of some stages, each in the space of a mix, at every level that differs.

        ``homes``: for each set of layers that share weights the size of their teams. Of fillings that differ in unused
        teams only, one counts. Teams of one size are in no mix.
        """
        if len({team for _, team, _ in rows}) == 1:
            return
        seen: set[tuple[tuple[int, ...], ...]] = set()
        names = {kind_name(pool.kind.name, team) for pool, team, _ in rows}
        for nodes in self._packed(rows) if self.ways is None else self.ways:
            if names <= {kind_name(*team) for node in nodes for team in node}:
                yield from self._on(Mix(self._splits_in(nodes, rows), nodes, homes), rows, seen)

    @cached_property
    def ways(self) -> tuple[Nodes, ...] | None:
        """All ways to fill the nodes with teams of several sizes; None if there are more than `MOST`."""
        return fillings(self.question.cluster, self.question.sizes, MOST)

    @property
    def complete(self) -> bool:
        """True if every way to fill the nodes is tried."""
        return self.ways is not None

    def _splits_in(self, nodes: Nodes, rows: Sequence[Row]) -> tuple[Split, ...]:
        """What teams of all sizes in the nodes split: those of unused sizes their first way."""
        used = {team for _, team, _ in rows}
        sizes = sorted({team for node in nodes for _, team in node if team > 1}, reverse=True)
        first = {split.team: split for split in reversed(self.question.splits)}
        ways = (self._ways[size][0] if size in used else first[size] for size in sizes)
        return tuple(split for split in ways if split is not None)

    def _on(self, mix: Mix, rows: Sequence[Row], seen: set[tuple[tuple[int, ...], ...]]) -> Iterator[Placed]:
        """Yield the device groups on one mix whose nodes are not among those ``seen``."""
        cluster = mixed_cluster(self.question.cluster, mix)
        numbers = [number for number, node in enumerate(mix.nodes) if node]
        classes = device_classes(cluster)
        of = {(each.kind.name, each.link): number for number, each in enumerate(classes)}
        modes = []
        for pool, team, replicas in rows:
            number = of.get((kind_name(pool.kind.name, team), pool.link))
            if number is None:
                return
            modes.append(Mode(number, replicas))
        wanted = Counter[int]()
        for mode in modes:
            wanted[mode.device_class] += mode.replicas
        if any(count > len(classes[number].devices) for number, count in wanted.items()):
            return
        new = []
        for groups in placements(cluster, self.question.job, classes, tuple(modes)):
            key = tuple(tuple(numbers[device.node] for device in own) for own in groups)
            if key not in seen:
                seen.add(key)
                new.append(groups)
        if not new:
            return
        spaces = self._of(mix)
        several = any(replicas > 1 for _, _, replicas in rows)
        for space in spaces if several else spaces[:1]:
            for groups in new:
                yield space, tuple(tuple(space.cluster.devices[device.index] for device in own) for own in groups)

    def _packed(self, rows: Sequence[Row]) -> Iterator[Nodes]:
        """Yield fillings that hold the stages' teams: side by side as the stages are, and the largest first."""
        for order in (rows, sorted(rows, key=lambda row: -row[1])):
            nodes = self._fill(order)
            if nodes is not None:
                yield nodes

    def _fill(self, rows: Sequence[Row]) -> Nodes | None:
        """Put teams into the first nodes with room, and fill up the rest; None if some team has no room."""
        cluster = self.question.cluster
        left = [Counter(node.kinds) for node in cluster.nodes]
        filled: list[list[tuple[str, int]]] = [[] for _ in cluster.nodes]
        for pool, team, replicas in rows:
            name = pool.kind.name
            for _ in range(replicas):
                room = (n for n, node in enumerate(cluster.nodes) if left[n][name] >= team and node.link == pool.link)
                number = next(room, None)
                if number is None:
                    return None
                left[number][name] -= team
                filled[number].append((name, team))
        nodes = fill_up(cluster, filled, left, self.question.sizes)
        return nodes if len({team for own in nodes for _, team in own}) > 1 else None


def _side_by_side(question: MixedQuestion) -> Cluster:
    """A cluster with all teams of all sizes and ways that have room in each node: for tables, not for plans.

    Of many like nodes two are enough.
    """
    kinds = {question.name(kind.name, team, split): (kind, team) for kind, team, split in question.kinds}
    nodes = [
        Node(
            tuple(name for name, (kind, team) in kinds.items() for _ in range(node.kinds.count(kind.name) // team)),
            node.link,
        )
        for node, like in Counter(question.cluster.nodes).items()
        for _ in range(min(like, 2))
    ]
    filled = tuple(node for node in nodes if node.kinds)
    used = {name for node in filled for name in node.kinds}
    own = {
        name: replace(kind.as_team(team), name=name, members=kind.name)
        for name, (kind, team) in kinds.items()
        if name in used
    }
    return replace(question.cluster, kinds=own, nodes=filled)
