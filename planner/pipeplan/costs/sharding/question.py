"""A model and a cluster as teams see them: a team is a device, and a layer has the costs of one member."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from pipeplan.core.changed import changed
from pipeplan.core.cluster import Cluster, DeviceKind
from pipeplan.core.errors import InputError
from pipeplan.core.job import SHARDED, Job, Order, Recompute
from pipeplan.core.model import Model, Profile, Provenance, Tie
from pipeplan.core.shared_weights import merge_overlapping
from pipeplan.core.splits import Mix, Split, Splitting
from pipeplan.core.wording import counted, listed, teams_of
from pipeplan.costs.layers import available_micro_batches
from pipeplan.costs.sharding.mixed import MOST, kind_name, kinds_of, mixed_cluster, mixes
from pipeplan.costs.sharding.places import places
from pipeplan_formulations.common.clock import Clock

if TYPE_CHECKING:  # models without operators need none of these, and functions below import them
    from pipeplan.costs.sharding.teams import Teams
    from pipeplan.costs.sharding.ways import Asked, TeamWays


class TeamQuestion(NamedTuple):
    """A question in which teams are devices, for one split, or for one mix of teams of unlike sizes."""

    split: Splitting
    model: Model
    cluster: Cluster
    job: Job

    def under(self, schedules: tuple[str, ...]) -> "TeamQuestion":
        """Return the same question under other schedules."""
        return self._replace(job=replace(self.job, schedules=schedules))


@dataclass(frozen=True)
class MixedQuestion:
    """All mixes of teams of unlike sizes that hold the same tensors between layers in parts.

    Attributes
    ----------
    model : Model
        Costs and parameters of one member of teams of each size, for each split, on each kind of device (`name`).
    cluster : Cluster
        Of single devices.
    job : Job
        Of each mix, without the pins of layers that share weights.
    whole : Model
        The model that was asked about.
    splits : tuple of Split
        Those worth searching, of all sizes but 1.
    sizes : tuple of int
        Of teams, ascending; 1 is a device by itself.
    ties : mapping of Split to tuple of Tie
        What layers share on a device of each split.
    """

    model: Model
    cluster: Cluster
    job: Job
    whole: Model
    splits: tuple[Split, ...]
    sizes: tuple[int, ...]
    ties: Mapping[Split, tuple[Tie, ...]] = field(default_factory=dict, compare=False, repr=False)

    def under(self, schedules: tuple[str, ...]) -> "MixedQuestion":
        """Return the same question under other schedules."""
        return replace(self, job=replace(self.job, schedules=schedules))

    @staticmethod
    def name(kind: str, team: int, split: Split | None) -> str:
        """Return the name of teams of a kind of device with a split: ``'2 x v100 (way 1)'``."""
        return kind if split is None else f"{kind_name(kind, team)} (way {split.number + 1})"

    @property
    def kinds(self) -> Iterator[tuple[DeviceKind, int, Split | None]]:
        """The kinds of device, each with the sizes of its teams and the splits of these."""
        for kind in self.cluster.kinds.values():
            most = max(node.kinds.count(kind.name) for node in self.cluster.nodes)
            if 1 in self.sizes and most:
                yield kind, 1, None
            yield from ((kind, split.team, split) for split in self.splits if split.team <= most)

    @cached_property
    def together(self) -> tuple[tuple[str, ...], ...]:
        """The sets of layers that share weights, each on teams of one size."""
        return tied_layers(self.whole)

    def mix(self, mix: Mix) -> TeamQuestion:
        """Return the question of one mix."""
        names = {self.name(kind, team, mix.at(team)): name for name, (kind, team) in kinds_of(mix).items()}
        profiles = (
            replace(profile, device=names[profile.device]) for profile in self.model.profiles if profile.device in names
        )
        parts = {name: self.model.parts[known] for known, name in names.items()}
        homes = list(zip(self.together, mix.tied, strict=True))
        at = {name: mix.at(team) for layers, team in homes for name in layers}
        shared = ((tie, at[tie.layers[0]]) for tie in self.whole.ties)
        ties = (tie if split is None else self._on(split, tie) for tie, split in shared)
        model = replace(self.model, profiles=tuple(profiles), parts=parts, ties=tuple(tie for tie in ties if tie))
        pins = tuple((name, teams_of(team)) for layers, team in homes for name in layers)
        return TeamQuestion(mix, model, mixed_cluster(self.cluster, mix), replace(self.job, pin=self.job.pin + pins))

    def _on(self, split: Split, tie: Tie) -> Tie | None:
        """What layers share on a device of a split; None if nothing."""
        return next((shared for shared in self.ties[split] if shared.layers == tie.layers), None)

    def every(self, most: int = MOST) -> tuple[Mix, ...] | None:
        """Return all mixes; None if they are more than ``most``."""
        by_size = {size: [split for split in self.splits if split.team == size] for size in self.sizes if size > 1}
        return mixes(self.cluster, self.sizes, by_size, len(self.together), most)


AnyQuestion = TeamQuestion | MixedQuestion
Questions = Callable[["Asked | None"], Iterator[AnyQuestion]]
"""Takes what may pass between layers at which micro-batch sizes (None: all) and yields the questions of each way to
split layers, as they are priced."""


def every_way(model: Model, cluster: Cluster, job: Job, clock: Clock | None = None) -> "dict[int, TeamWays]":
    """Return the ways of a job's teams of several devices by size, none of which is priced yet.

    Raises
    ------
    InputError
        See `every_team`.
    """
    from pipeplan.costs.sharding.ways import TeamWays

    teams = every_team(model, cluster, job)
    return {team: TeamWays(replace(own, clock=clock)) for team, own in teams.items()}


def team_questions(
    model: Model, cluster: Cluster, job: Job, clock: Clock | None = None, known: "Mapping[int, TeamWays] | None" = None
) -> Iterator[TeamQuestion | MixedQuestion]:
    """Yield the questions of a job's teams of several devices: size by size each split, then mixes of sizes.

    ``known``: those of `every_way`, maybe of more sizes, of teams and of micro-batches, whose prices so far are used.

    Raises
    ------
    InputError
        If there are no teams of a size, nothing can be split over them, or the job excludes them.
    OutOfTimeError
        Once the clock is over, if there is one.
    """
    every = every_way(model, cluster, job, clock)
    if known is not None:
        every = {team: known[team].at(own.teams.sizes) for team, own in every.items()}
    return _questions(every, model, cluster, job)


def every_team(model: Model, cluster: Cluster, job: Job) -> "dict[int, Teams]":
    """Return the teams of several devices of a job, by size; sizes without room are left out if others have some.

    Raises
    ------
    InputError
        If there are no teams of any size, or the job excludes them.
    """
    fitting = sizes_with_room(cluster, job) or ([] if _without(job) else [team for team in job.teams if team > 1][:1])
    return {team: _teams(model, cluster, job, team) for team in fitting}


def sizes_with_room(cluster: Cluster, job: Job) -> list[int]:
    """Return the sizes of a job's teams of several devices for which a cluster has room, also where layers are pinned.

    Beside teams of other sizes those of one size need not be of all kinds that layers are pinned to.
    """
    roomy = [team for team in job.teams if team > 1 and places(cluster, team)]
    alone = [team for team in roomy if homeless(cluster, job, team) is None]
    return roomy if job.unlike_teams and (alone or _without(job)) else alone


def homeless(cluster: Cluster, job: Job, team: int) -> str | None:
    """Return a kind of device that a layer is pinned to, and of which there is no team of a size; None if none is."""
    known = places(cluster, team)
    return next((where for _, where in job.pin if where in cluster.kinds and where not in known), None)


def _without(job: Job) -> bool:
    """Whether plans without teams of several devices are an answer too."""
    return 1 in job.teams and not job.strategy


def _questions(
    every: "Mapping[int, TeamWays]", model: Model, cluster: Cluster, job: Job
) -> Iterator[TeamQuestion | MixedQuestion]:
    from pipeplan.costs.sharding.left_whole import why_nothing
    from pipeplan.costs.sharding.splits import MeshTeams, mesh_ways

    ways: dict[Split, Model] = {}
    nothing: list[str] = []
    alone = False
    for team, own in every.items():
        teams = own.teams
        at_home = homeless(cluster, job, team) is None
        ways_of_team = {}
        for split, costs in () if job.strategy else own.ways(job.sequence_parallel):
            ways_of_team[split] = costs
            if at_home:
                yield _question(split, costs, teams, job)
        ways |= ways_of_team
        meshes = MeshTeams.of(teams, job.batch, job.mesh_axes)
        for split, costs in mesh_ways(meshes, job.sequence_parallel, [*ways_of_team.values()]) if at_home else ():
            ways_of_team[split] = costs
            yield _question(split, costs, teams, job)
        alone = alone or bool(at_home and ways_of_team)
        if not ways_of_team:
            why = why_nothing(teams)
            nothing.append(
                f"teams of {team}: no operator of {model.name!r} can be split over them"
                + f" by strategy {job.strategy}" * bool(job.strategy)
                + (f": they have {counted(team, 'device')}, {why}" if why else "")
            )
    if nothing and not alone and not _without(job):
        raise InputError(nothing[0])
    if every:
        yield from _mixes({team: own.teams for team, own in every.items()}, ways, model, cluster, job)


def _question(split: Split, costs: Model, teams: "Teams", job: Job) -> TeamQuestion:
    """The question of one way, at the micro-batch sizes for which it is priced."""
    counts = tuple(dict.fromkeys(job.batch // profile.micro_batch for profile in costs.profiles))
    team_job = changed(job, teams=(), unlike_teams=False, micro_batches=counts)
    return TeamQuestion(split, costs, teams.as_devices, team_job)


def _mixes(
    every: "Mapping[int, Teams]", ways: Mapping[Split, Model], model: Model, cluster: Cluster, job: Job
) -> Iterator[MixedQuestion]:
    """Yield the questions of teams of unlike sizes, if they are asked for: one for all placements between layers."""
    counts = tuple(job.batch // size for size in next(iter(every.values())).sizes)
    levels = tuple(level for level in job.zero if level < SHARDED)
    pinned = {name for names in tied_layers(model) for name in names} & {name for name, _ in job.pin}
    if job.unlike_teams and not pinned and job.order is Order.SEARCH and (levels or not job.zero):
        largest = max(node.kinds.count(kind) for node in cluster.nodes for kind in node.kinds)
        for sequence in dict.fromkeys(split.sequence for split in ways):
            alike = {
                split: costs for split, costs in ways.items() if split.sequence == sequence and split.team <= largest
            }
            sizes = tuple(sorted({split.team for split in alike} | ({1} & set(job.teams))))
            if len(sizes) > 1:
                mixed_job = replace(job, teams=(), unlike_teams=False, micro_batches=counts, zero=levels)
                yield _mixed(every, alike, sizes, mixed_job)


def _mixed(
    every: "Mapping[int, Teams]", ways: Mapping[Split, Model], sizes: tuple[int, ...], job: Job
) -> MixedQuestion:
    some = next(iter(every.values()))
    whole, profiles = some.model, list[Profile]()
    layers = tuple(replace(layer, work=None, operators="") for layer in whole.layers)
    ties = {split: costs.ties for split, costs in ways.items()}
    bare = MixedQuestion(whole, some.cluster, job, whole, tuple(ways), sizes, ties)
    parts: dict[str, tuple[int, ...]] = {}
    for kind, team, split in bare.kinds:
        name = bare.name(kind.name, team, split)
        if split is None:
            said = Provenance("analytic", "teams of 1")
            profiles += [Profile(name, size, some.costs(kind, size), said) for size in some.sizes]
            parts[name] = tuple(layer.parameters for layer in whole.layers)
        else:
            known = [profile for profile in ways[split].profiles if profile.device == kind.name]
            profiles += [replace(profile, device=name) for profile in known]
            parts[name] = tuple(layer.parameters for layer in ways[split].layers)
    model = replace(
        whole, layers=layers, profiles=tuple(profiles), ties=(), operators={}, parts=parts, slice_profiles=()
    )
    return replace(bare, model=model)


def tied_layers(model: Model) -> tuple[tuple[str, ...], ...]:
    """Return the sets of layers that share weights with each other, by name."""
    place = {name: i for i, name in enumerate(model.names)}
    sets = merge_overlapping([place[name] for name in tie.layers] for tie in model.ties)
    return tuple(tuple(model.names[i] for i in tied) for tied in sets)


def _teams(model: Model, cluster: Cluster, job: Job, team: int) -> "Teams":
    from pipeplan.costs.sharding.teams import Teams

    _require_teams(model, cluster, job, team)
    kinds = list({device.kind.name: device.kind for device in cluster.devices}.values())
    sizes = tuple(job.batch // count for count in job.micro_batches) or available_micro_batches(
        model, kinds, job.batch, extrapolate=job.extrapolate
    )
    wishes = job.vocabulary_parallel, job.context_parallel
    again = job.recompute is not Recompute.NONE
    teams = Teams(
        model,
        cluster,
        team,
        sizes,
        job.optimizer,
        job.extrapolate,
        *wishes,
        again=again,
        state_bytes=job.state_bytes,
        strategy=job.strategy,
    )
    if not teams.places:
        raise InputError(
            f"teams of {team}: no node of {cluster.name!r} has {team} devices of one kind, nor do equal nodes of one "
            f"kind have together; {_largest(cluster)}"
        )
    if team not in sizes_with_room(cluster, job):
        raise InputError(
            f"teams of {team}: a layer is pinned to {homeless(cluster, job, team)!r}, of which {cluster.name!r} has no "
            f"team of {team}; pin it to another kind, or ask for teams of 1 too"
        )
    return teams


def _largest(cluster: Cluster) -> str:
    """Return in words which teams there are room for."""
    sizes = [size for size in range(2, len(cluster.devices) + 1) if places(cluster, size)]
    return f"there is room for teams of {listed(sizes)}" if sizes else "there is room for no team of several devices"


def _require_teams(model: Model, cluster: Cluster, job: Job, team: int) -> None:
    """Refuse what teams of several devices exclude."""
    if not model.operators:
        raise InputError(
            f"teams of {team}: the operators of {model.name!r} are not known, so nothing can be split; profile "
            "it again, or ask for teams of 1"
        )
    if not job.objective.simulated:
        raise InputError(f"teams of {team} are planned for the time of steps; ask for the objective 'step' or 'period'")
    named = [where for _, where in job.pin if where not in cluster.kinds]
    if named:
        raise InputError(f"teams of {team}: a layer is pinned to {named[0]!r}, one device; pin it to a kind")
    if any(kind.on_chip is not None for kind in cluster.kinds.values()):
        raise InputError(f"teams of {team}: devices with on-chip memory have no teams; ask for teams of 1")
