"""Costs, parameters and shared weights of one member of a team: of one size and one split, or of a device by itself."""

from collections.abc import Iterator, Mapping

from pipeplan.core.cluster import DeviceKind
from pipeplan.core.model import Layer, LayerCost, Model, Profile, Provenance, Tie
from pipeplan.core.operators import Split
from pipeplan.costs.teams.splits import TeamSplits


def profiles(teams: TeamSplits, split: Split | None, kind: DeviceKind, name: str) -> Iterator[Profile]:
    """Yield the costs of one member's layers at each micro-batch size, as a profile of the device ``name``."""
    team = 1 if split is None else split.team
    for size in teams.sizes:
        costs = teams.costs(kind, size) if split is None else _costs(teams, split, kind, size)
        yield Profile(name, size, costs, Provenance("analytic", f"teams of {team}"))


def _costs(teams: TeamSplits, split: Split, kind: DeviceKind, size: int) -> tuple[LayerCost, ...]:
    pairs = enumerate(zip(teams.model.layers, teams.costs(kind, size), strict=True))
    return tuple(
        teams.problem(i, kind, size, split.sequence).member(tuple(split.of(layer.operators).items()))
        if layer.operators
        else cost
        for i, (layer, cost) in pairs
    )


def parameters(model: Model, split: Split | None) -> tuple[int, ...]:
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


def ties(model: Model, splits: Mapping[str, Split | None]) -> tuple[Tie, ...]:
    """Return the ties of one member; ``splits``: by layer."""
    found = (Tie(tie.layers, _shared(model, tie, splits[tie.layers[0]]), tie.frozen) for tie in model.ties)
    return tuple(tie for tie in found if tie.parameters or tie.frozen)


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
