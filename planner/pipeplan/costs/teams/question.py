"""A model and a cluster as teams see them: a team is a device, and a layer has the costs of one member."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from pipeplan.core.cluster import Cluster, DeviceKind, Node
from pipeplan.core.errors import InputError
from pipeplan.core.job import SHARDED, Job
from pipeplan.core.model import Layer, LayerCost, Model, Profile, Provenance, Tie
from pipeplan.core.operators import Split
from pipeplan.costs.layers import available_micro_batches
from pipeplan.costs.teams.splits import Teams


class TeamQuestion(NamedTuple):
    """A question in which teams are devices, for one split."""

    split: Split
    model: Model
    cluster: Cluster
    job: Job


def team_questions(model: Model, cluster: Cluster, job: Job, team: int) -> Iterator[TeamQuestion]:
    """Yield the question of each split over teams of a size that is worth searching.

    Raises
    ------
    InputError
        If there are no such teams, nothing can be split over them, or the job excludes them.
    """
    _require_teams(model, cluster, job, team)
    kinds = list({device.kind.name: device.kind for device in cluster.devices}.values())
    sizes = tuple(job.batch // count for count in job.micro_batches) or available_micro_batches(
        model, kinds, job.batch, extrapolate=job.extrapolate
    )
    teams = Teams(model, cluster, team, sizes, job.optimizer, job.extrapolate)
    if not teams.links:
        raise InputError(f"teams of {team}: no node of {cluster.name!r} has {team} devices of one kind")
    own = replace(
        job,
        teams=(),
        micro_batches=tuple(job.batch // size for size in sizes),
        zero=tuple(level for level in job.zero if level < SHARDED),
    )
    found = False
    for split in teams.splits(job.sequence_parallel):
        found = True
        yield TeamQuestion(split, team_model(teams, split), team_cluster(cluster, team), own)
    if not found:
        raise InputError(f"teams of {team}: no operator of {model.name!r} can be split over them")


def _require_teams(model: Model, cluster: Cluster, job: Job, team: int) -> None:
    """Refuse what teams of several devices exclude."""
    if not model.operators:
        raise InputError(
            f"teams of {team}: the operators of {model.name!r} are not known, so nothing can be split; profile "
            "it again, or ask for teams of 1"
        )
    if job.zero and min(job.zero) >= SHARDED:
        raise InputError(f"teams of {team} run at levels 0 and 1 of ZeRO (zero), and the job names others only")
    if not job.objective.simulated:
        raise InputError(f"teams of {team} are planned for the time of steps; ask for the objective 'step' or 'period'")
    named = [where for _, where in job.pin if where not in cluster.kinds]
    if named:
        raise InputError(f"teams of {team}: a layer is pinned to {named[0]!r}, one device; pin it to a kind")
    if any(kind.on_chip is not None for kind in cluster.kinds.values()):
        raise InputError(f"teams of {team}: devices with on-chip memory have no teams; ask for teams of 1")


def team_cluster(cluster: Cluster, team: int) -> Cluster:
    """Return the cluster whose devices are teams of neighbours of one kind in one node; leftover devices are unused.

    Members of two teams exchange tensors pairwise: inside a node each pair has a link of its own, between nodes see
    `Cluster.between`. Times of a member are those of its kind's tables, so relative speeds are part of them.
    """
    nodes = []
    for node in cluster.nodes:
        kinds = [kind for kind in dict.fromkeys(node.kinds) for _ in range(node.kinds.count(kind) // team)]
        nodes.append(Node(tuple(kinds), node.link))
    nodes = [node for node in nodes if node.kinds]
    used = {kind for node in nodes for kind in node.kinds}
    own = {name: team_kind(kind, team) for name, kind in cluster.kinds.items() if name in used}
    return Cluster(cluster.name, own, tuple(nodes), cluster.network, cluster.overlap, cluster.notes)


def team_kind(kind: DeviceKind, team: int) -> DeviceKind:
    """Return the kind of teams of a kind of device; its times are in its tables."""
    price = None if kind.price is None else kind.price * team
    return replace(kind, speed=1.0, timed_as=None, team=team, price=price)


def team_model(teams: Teams, split: Split) -> Model:
    """Return the model whose layers have the parameters and the costs of one member of a team, as profiles.

    A layer without known operators is run whole by every member.
    """
    model = teams.model
    profiles = [
        Profile(kind.name, size, _costs(teams, split, kind, size), Provenance("analytic", f"teams of {teams.team}"))
        for kind in teams.cluster.kinds.values()
        if kind.name in teams.links
        for size in teams.sizes
    ]
    layers = tuple(
        replace(layer, parameters=_own(model, layer, split), work=None, operators="") for layer in model.layers
    )
    ties = (Tie(tie.layers, _shared(model, tie, split)) for tie in model.ties)
    kept = tuple(tie for tie in ties if tie.parameters)
    return replace(model, layers=layers, profiles=tuple(profiles), ties=kept, operators={})


def _costs(teams: Teams, split: Split, kind: DeviceKind, size: int) -> tuple[LayerCost, ...]:
    pairs = enumerate(zip(teams.model.layers, teams.costs(kind, size), strict=True))
    return tuple(
        teams.problem(i, kind, size, split.sequence).member(tuple(split.of(layer.operators).items()))
        if layer.operators
        else cost
        for i, (layer, cost) in pairs
    )


def _own(model: Model, layer: Layer, split: Split) -> int:
    """Return the bytes of a layer's parameters on one member."""
    if not layer.operators:
        return layer.parameters
    graph, shards = model.operators[layer.operators], split.of(layer.operators)
    return sum(
        weight.size // (split.team if weight.name in shards else 1) for weight in graph.counted(layer.parameters)
    )


def _shared(model: Model, tie: Tie, split: Split) -> int:
    """Return the bytes on one member of the weights that layers share, in proportion to what it has of the first's."""
    name = next(layer.operators for layer in model.layers if layer.name == tie.layers[0])
    if not name:
        return tie.parameters
    shards = split.of(name)
    shared = [weight for weight in model.operators[name].weights if weight.shared]
    whole = sum(weight.size for weight in shared)
    own = sum(weight.size // (split.team if weight.name in shards else 1) for weight in shared)
    return tie.parameters * own // whole if whole else tie.parameters
