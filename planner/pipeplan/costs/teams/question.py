"""A model and a cluster as teams see them: a team is a device, and a layer has the costs of one member."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from pipeplan.core.cluster import Cluster, DeviceKind
from pipeplan.core.errors import InputError
from pipeplan.core.job import SHARDED, Job, Order
from pipeplan.core.model import Layer, LayerCost, Model, Profile, Provenance, Tie
from pipeplan.core.operators import Mix, Split, Splitting
from pipeplan.core.shared_weights import merge_overlapping
from pipeplan.core.wording import listed, teams_of
from pipeplan.core.words import MeshSplit
from pipeplan.costs.layers import available_micro_batches
from pipeplan.costs.meshes.splits import MeshTeams
from pipeplan.costs.teams.mixed import kinds_of, mixed_cluster, mixes
from pipeplan.costs.teams.places import places, team_cluster
from pipeplan.costs.teams.splits import Teams


class TeamQuestion(NamedTuple):
    """A question in which teams are devices, for one split, or for one mix of teams of unlike sizes."""

    split: Splitting
    model: Model
    cluster: Cluster
    job: Job


def team_questions(model: Model, cluster: Cluster, job: Job) -> Iterator[TeamQuestion]:
    """Yield the questions of a job's teams of several devices: size by size each split, then mixes of sizes.

    Raises
    ------
    InputError
        If there are no teams of a size, nothing can be split over them, or the job excludes them.
    """
    every = {team: _teams(model, cluster, job, team) for team in job.teams if team > 1}
    splits: dict[int, list[Split]] = {team: [] for team in every}
    levels = tuple(level for level in job.zero if level < SHARDED)
    for team, teams in every.items():
        own = replace(
            job,
            teams=(),
            unlike_teams=False,
            micro_batches=tuple(job.batch // size for size in teams.sizes),
        )
        for split in teams.splits(job.sequence_parallel):
            splits[team].append(split)
            yield TeamQuestion(split, team_model(teams, split), team_cluster(cluster, team), own)
        on_mesh = MeshTeams.of(teams, job.batch) if job.meshes and (levels or not job.zero) else None
        ways = 0
        if on_mesh is not None:
            for way in on_mesh.splits(job.sequence_parallel):
                ways += 1
                model_of = mesh_model(on_mesh, way)
                yield TeamQuestion(way, model_of, team_cluster(cluster, team), replace(own, zero=levels))
        if not splits[team] and not ways:
            raise InputError(f"teams of {team}: no operator of {model.name!r} can be split over them")
    together = tied_layers(model)
    pinned = {name for names in together for name in names} & {name for name, _ in job.pin}
    mixed = job.unlike_teams and not pinned and job.order is Order.SEARCH
    if every and mixed and (levels or not job.zero):
        for mix in mixes(cluster, job.teams, splits, len(together)):
            homes = zip(together, map(teams_of, mix.tied), strict=True)
            pins = tuple((name, home) for names, home in homes for name in names)
            yield TeamQuestion(
                mix, mixed_model(every, mix), mixed_cluster(cluster, mix), replace(own, zero=levels, pin=own.pin + pins)
            )


def tied_layers(model: Model) -> tuple[tuple[str, ...], ...]:
    """Return the sets of layers that share weights with each other, by name."""
    place = {name: i for i, name in enumerate(model.names)}
    sets = merge_overlapping([place[name] for name in tie.layers] for tie in model.ties)
    return tuple(tuple(model.names[i] for i in own) for own in sets)


def _teams(model: Model, cluster: Cluster, job: Job, team: int) -> Teams:
    _require_teams(model, cluster, job, team)
    kinds = list({device.kind.name: device.kind for device in cluster.devices}.values())
    sizes = tuple(job.batch // count for count in job.micro_batches) or available_micro_batches(
        model, kinds, job.batch, extrapolate=job.extrapolate
    )
    wishes = job.vocabulary_parallel, job.context_parallel
    teams = Teams(model, cluster, team, sizes, job.optimizer, job.extrapolate, *wishes)
    if not teams.places:
        raise InputError(
            f"teams of {team}: no node of {cluster.name!r} has {team} devices of one kind, nor do equal nodes of one "
            f"kind have together; {_largest(cluster)}"
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


def team_model(teams: Teams, split: Split) -> Model:
    """Return the model whose layers have the parameters and the costs of one member of a team, as profiles.

    A layer without known operators is run whole by every member.
    """
    model = teams.model
    profiles = [
        profile
        for kind in teams.cluster.kinds.values()
        if kind.name in teams.places
        for profile in _profiles(teams, split, kind, kind.name)
    ]
    own = _own(model, split)
    layers = tuple(
        replace(layer, parameters=parameters, work=None, operators="")
        for layer, parameters in zip(model.layers, own, strict=True)
    )
    ties = _ties(model, dict.fromkeys(model.names, split))
    return replace(model, layers=layers, profiles=tuple(profiles), ties=ties, operators={})


def mesh_model(on_mesh: MeshTeams, split: MeshSplit) -> Model:
    """Return the model whose layers have the parameters and the costs of one device of a mesh, as profiles."""
    teams = on_mesh.teams
    model = teams.model
    profiles = [
        Profile(
            kind.name,
            size,
            tuple(
                on_mesh.member(split, i, kind, size) if layer.operators else cost
                for i, (layer, cost) in enumerate(zip(model.layers, teams.costs(kind, size), strict=True))
            ),
            Provenance("analytic", f"teams of {' x '.join(map(str, split.sizes))}"),
        )
        for kind in on_mesh.kinds
        for size in teams.sizes
    ]
    kept = [on_mesh.kept(split, i) if layer.operators else layer.parameters for i, layer in enumerate(model.layers)]
    layers = tuple(
        replace(layer, parameters=own, work=None, operators="") for layer, own in zip(model.layers, kept, strict=True)
    )
    ties = []
    for tie in model.ties:
        first = model.names.index(tie.layers[0])
        whole, own = on_mesh.shared(split, first) if model.layers[first].operators else (0, 0)
        ties.append(replace(tie, parameters=tie.parameters * own // whole if whole else tie.parameters))
    ties = [tie for tie in ties if tie.parameters]
    return replace(model, layers=layers, profiles=tuple(profiles), ties=tuple(ties), operators={})


def mixed_model(every: Mapping[int, Teams], mix: Mix) -> Model:
    """Return the model of a mix: costs and parameters of one member, for teams of each size on each kind of device."""
    some = next(iter(every.values()))
    model, parts = some.model, {}
    profiles: list[Profile] = []
    for name, (kind, team) in kinds_of(mix).items():
        split = mix.at(team)
        profiles += _profiles(every.get(team, some), split, some.cluster.kinds[kind], name)
        parts[name] = _own(model, split)
    layers = tuple(replace(layer, work=None, operators="") for layer in model.layers)
    homes = zip(tied_layers(model), mix.tied, strict=True)
    ties = _ties(model, {name: mix.at(team) for names, team in homes for name in names})
    return replace(model, layers=layers, profiles=tuple(profiles), ties=ties, operators={}, parts=parts)


def _profiles(teams: Teams, split: Split | None, kind: DeviceKind, name: str) -> Iterator[Profile]:
    """Yield the costs of one member's layers at each micro-batch size, as a profile of the device ``name``."""
    team = 1 if split is None else split.team
    for size in teams.sizes:
        costs = teams.costs(kind, size) if split is None else _costs(teams, split, kind, size)
        yield Profile(name, size, costs, Provenance("analytic", f"teams of {team}"))


def _costs(teams: Teams, split: Split, kind: DeviceKind, size: int) -> tuple[LayerCost, ...]:
    pairs = enumerate(zip(teams.model.layers, teams.costs(kind, size), strict=True))
    return tuple(
        teams.problem(i, kind, size, split.sequence).member(tuple(split.of(layer.operators).items()))
        if layer.operators
        else cost
        for i, (layer, cost) in pairs
    )


def _own(model: Model, split: Split | None) -> tuple[int, ...]:
    """Return the bytes of each layer's parameters on one member; without a split, on a device by itself."""
    return tuple(
        layer.parameters if split is None or not layer.operators else _kept(model, layer, split)
        for layer in model.layers
    )


def _kept(model: Model, layer: Layer, split: Split) -> int:
    graph, shards = model.operators[layer.operators], split.of(layer.operators)
    return sum(
        weight.size // (split.team if weight.name in shards else 1) for weight in graph.counted(layer.parameters)
    )


def _ties(model: Model, splits: Mapping[str, Split | None]) -> tuple[Tie, ...]:
    """Return the ties of one member; ``splits``: by layer."""
    found = (Tie(tie.layers, _shared(model, tie, splits[tie.layers[0]])) for tie in model.ties)
    return tuple(tie for tie in found if tie.parameters)


def _shared(model: Model, tie: Tie, split: Split | None) -> int:
    """Return the bytes on one member of the weights that layers share, in proportion to what it has of the first's."""
    name = next(layer.operators for layer in model.layers if layer.name == tie.layers[0])
    if not name or split is None:
        return tie.parameters
    shards = split.of(name)
    shared = [weight for weight in model.operators[name].weights if weight.shared]
    whole = sum(weight.size for weight in shared)
    own = sum(weight.size // (split.team if weight.name in shards else 1) for weight in shared)
    return tie.parameters * own // whole if whole else tie.parameters
