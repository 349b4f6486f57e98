"""`MixedSpace`: the choices of a search in which stages have teams of unlike sizes, and where their teams may lie.

::

    stages      4 x 2   2 x 3   1 x 2          team and replicas of each: 16 devices
    node 0      4   4                          a mix fills the nodes with teams; the stages take them in turn
    node 1      2   2   2   1   1

Teams of each size with each split are a *kind* here; all kinds of one class of devices take these from one pool. Rows
of modes are placed on mixes: on all that fill a small cluster in another way, else on one that packs the stages.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, StageDevices
from pipeplan.core.splits import Mix, Split
from pipeplan.costs.chain import Boundaries
from pipeplan.costs.sharding.mixed import NodeTeams, fill_up, fillings, kind_name, mixed_cluster
from pipeplan.costs.sharding.question import MixedQuestion
from pipeplan.search.regimes import REGIMES
from pipeplan.search.space.device_groups import Mode, device_classes, placements
from pipeplan.search.space.space import Space

MOST = REGIMES.mixed_fillings.most
"""Most ways to fill the nodes of which every one is tried for a row of modes; of more, one that packs the stages."""

Modes = tuple[Mode, ...]
"""Of each stage the number of its `MixedKind`, and its replicas."""
Nodes = tuple[NodeTeams, ...]
SpacesOf = Callable[[Mix], Sequence[Space]]
"""Returns the spaces of a mix, one for each level of ZeRO; none if it cannot be searched."""


@dataclass(frozen=True)
class MixedKind:
    """Teams of a class of devices.

    Attributes
    ----------
    pool : int
        The number of the class.
    kind : DeviceKind
        As in the tables of the costs.
    name : str
        The kind of one device.
    team : int
    split : Split or None
        None for single devices.
    """

    pool: int
    kind: DeviceKind
    name: str
    team: int
    split: Split | None


class MixedSpace:
    """The choices of all mixes of a question.

    Attributes
    ----------
    question : MixedQuestion
    spaces : tuple of Space
        Costs, schedules and sizes, one for each level of ZeRO. Their device groups mean nothing.
    classes : tuple of DeviceClass
        Of single devices, where some team has room: the pools.
    kinds : tuple of MixedKind
    """

    def __init__(self, question: MixedQuestion, spaces: Callable[[Cluster], tuple[Space, ...]], of: SpacesOf) -> None:
        self.question, self._of = question, of
        least = question.sizes[0]
        self.classes = tuple(each for each in device_classes(question.cluster) if each.per_node >= least)
        kinds = {question.name(kind.name, team, split): (kind, team, split) for kind, team, split in question.kinds}
        own = {
            name: replace(kind.as_team(team), name=name, members=kind.name) for name, (kind, team, _) in kinds.items()
        }
        self.spaces = spaces(_one_of_each(question.cluster, own))
        self.kinds = tuple(
            MixedKind(pool, own[name], kind.name, team, split)
            for pool, each in enumerate(self.classes)
            for name, (kind, team, split) in kinds.items()
            if kind.name == each.kind.name and team <= each.per_node
        )

    @property
    def space(self) -> Space:
        """The space of the lowest level."""
        return self.spaces[0]

    def link(self, kind: MixedKind) -> Link:
        """The link inside the nodes of a kind's devices."""
        return self.classes[kind.pool].link

    def lower_bound(self, size: int) -> int:
        """A cheap lower bound in nanoseconds on all plans at a micro-batch size."""
        return self.space.lower_bounds(size).of_teams(
            (len(each.devices), {kind.kind.name: kind.team for kind in self.kinds if kind.pool == pool})
            for pool, each in enumerate(self.classes)
        )

    def splits_of(self, modes: Modes) -> tuple[Split, ...] | None:
        """What teams of each size split, the largest first; None if those of one size split unlike ways."""
        found: dict[int, Split | None] = {}
        for mode in modes:
            kind = self.kinds[mode.device_class]
            if found.setdefault(kind.team, kind.split) != kind.split:
                return None
        return tuple(split for _, split in sorted(found.items(), reverse=True) if split is not None)

    def homes(self, modes: Modes, boundaries: Boundaries) -> tuple[int, ...] | None:
        """For each set of layers that share weights the size of their teams; None if these differ in size."""
        names = self.space.model.names
        team = {
            name: self.kinds[mode.device_class].team
            for mode, a, b in zip(modes, boundaries, boundaries[1:], strict=False)
            for name in names[a:b]
        }
        sizes = [{team[name] for name in own} for own in self.question.together]
        return tuple(min(own) for own in sizes) if all(len(own) == 1 for own in sizes) else None

    def every_home(self, modes: Modes) -> Iterator[tuple[int, ...]]:
        """The sizes of teams that sets of layers that share weights may have in a row of modes."""
        sizes = sorted({self.kinds[mode.device_class].team for mode in modes}, reverse=True)
        yield from product(sizes, repeat=len(self.question.together))

    def placed(self, modes: Modes, homes: tuple[int, ...]) -> Iterator[tuple[Space, StageDevices]]:
        """Yield the device groups of a row of modes, each in the space of a mix, at every level that differs.

        Of fillings that differ in unused teams only, one counts.
        """
        splits = self.splits_of(modes)
        assert splits is not None
        rows = [(self.kinds[mode.device_class], mode.replicas) for mode in modes]
        seen: set[tuple[tuple[int, ...], ...]] = set()
        for nodes in self._packed(rows) if self.ways is None else self.ways:
            names = {kind_name(kind.name, kind.team) for kind, _ in rows}
            present = {kind_name(*team) for node in nodes for team in node}
            if names <= present:
                yield from self._on(Mix(self._splits_in(nodes, splits), nodes, homes), rows, seen)

    @cached_property
    def ways(self) -> tuple[Nodes, ...] | None:
        """All ways to fill the nodes with teams of several sizes; None if there are more than `MOST`."""
        return fillings(self.question.cluster, self.question.sizes, MOST)

    @property
    def complete(self) -> bool:
        """True if every way to fill the nodes is tried."""
        return self.ways is not None

    def _splits_in(self, nodes: Nodes, splits: tuple[Split, ...]) -> tuple[Split, ...]:
        """What teams of all sizes in the nodes split: those of unused sizes their first way."""
        known = {split.team: split for split in splits}
        sizes = sorted({team for node in nodes for _, team in node if team > 1}, reverse=True)
        first = {split.team: split for split in reversed(self.question.splits)}
        return tuple(known.get(size, first[size]) for size in sizes)

    def _on(
        self, mix: Mix, rows: list[tuple[MixedKind, int]], seen: set[tuple[tuple[int, ...], ...]]
    ) -> Iterator[tuple[Space, StageDevices]]:
        """Yield the device groups on one mix whose nodes are not among those ``seen``."""
        cluster = mixed_cluster(self.question.cluster, mix)
        numbers = [number for number, node in enumerate(mix.nodes) if node]
        classes = device_classes(cluster)
        of = {(each.kind.name, each.link): number for number, each in enumerate(classes)}
        modes = []
        for kind, replicas in rows:
            number = of.get((kind_name(kind.name, kind.team), self.link(kind)))
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
        several = any(replicas > 1 for _, replicas in rows)
        for space in spaces if several else spaces[:1]:
            for groups in new:
                yield space, tuple(tuple(space.cluster.devices[device.index] for device in own) for own in groups)

    def _packed(self, rows: list[tuple[MixedKind, int]]) -> Iterator[Nodes]:
        """Yield fillings that hold the stages' teams: side by side as the stages are, and the largest first."""
        for order in (rows, sorted(rows, key=lambda row: -row[0].team)):
            nodes = self._fill(order)
            if nodes is not None:
                yield nodes

    def _fill(self, rows: Sequence[tuple[MixedKind, int]]) -> Nodes | None:
        """Put teams into the first nodes with room, and fill up the rest; None if some team has no room."""
        cluster = self.question.cluster
        left = [Counter(node.kinds) for node in cluster.nodes]
        found: list[list[tuple[str, int]]] = [[] for _ in cluster.nodes]
        for kind, replicas in rows:
            for _ in range(replicas):
                room = (
                    n
                    for n, node in enumerate(cluster.nodes)
                    if left[n][kind.name] >= kind.team and node.link == self.link(kind)
                )
                number = next(room, None)
                if number is None:
                    return None
                left[number][kind.name] -= kind.team
                found[number].append((kind.name, kind.team))
        nodes = fill_up(cluster, found, left, self.question.sizes)
        return nodes if len({team for own in nodes for _, team in own}) > 1 else None


def _one_of_each(cluster: Cluster, kinds: dict[str, DeviceKind]) -> Cluster:
    """A cluster with one device of each kind in each node that has members for it: for tables, not for plans."""
    nodes = tuple(
        Node(tuple(name for name, kind in kinds.items() if node.kinds.count(kind.members) >= kind.team), node.link)
        for node in cluster.nodes
    )
    own = {name: kind for name, kind in kinds.items() if any(name in node.kinds for node in nodes)}
    return Cluster(
        cluster.name, own, tuple(node for node in nodes if node.kinds), cluster.network, cluster.overlap, cluster.notes
    )
