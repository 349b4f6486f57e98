"""The least way: of each layer the least time and bytes of several strategies, or of several ways, as one way.

::

    block      way 1   4.45 ms   47 MB   44 MB of weights
               way 2   4.54 ms   49 MB   14 MB              no plan of these ways is faster than the best one of the
               way 3   5.02 ms   28 MB   14 MB              least way, or fits where none of that does
               least   4.45 ms   28 MB   14 MB

docs/bounds/teams.md has the proof ("The least way").
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from fractions import Fraction
from operator import attrgetter
from typing import Any

import numpy as np

from pipeplan.core.changed import changed
from pipeplan.core.cluster import DeviceKind
from pipeplan.core.job import Job
from pipeplan.core.model import LayerCost, Model, Profile, Provenance, Tie
from pipeplan.core.splits import Split
from pipeplan.costs.sharding.coordinates import combined
from pipeplan.costs.sharding.device_costs import if_split, least_output
from pipeplan.costs.sharding.layer_ways import LayerWays
from pipeplan.costs.sharding.members import device_model
from pipeplan.costs.sharding.placements import ends_of
from pipeplan.costs.sharding.question import TeamQuestion
from pipeplan.costs.sharding.ties import shared_bytes
from pipeplan.costs.sharding.ways import Between, TeamWays
from pipeplan_formulations.common.clock import Clock, no_limit
from pipeplan_formulations.sharding import least_sums

FIGURES = (("forward",), ("backward",), ("update", "summed"), ("saved",), ("parameters",))
HALVES = (("input_gradient",), ("weight_gradient",))
"""What is the least of all strategies, each by itself; of backwards that are split, also these."""
LEAST = Provenance("analytic", "the least of several ways")

_figures = attrgetter(*(field.name for field in fields(LayerCost)))

Least = tuple[LayerCost, int]
"""The least costs of a layer, and bytes of its parameters."""


def least_way(ways: TeamWays, between: Between, size: int, job: Job, splits: bool = False) -> TeamQuestion | None:
    """Return the question of the least of all ways along one axis at one micro-batch size; None if there is no way.

    ``splits``: with both parts of backwards.

    Raises
    ------
    BeyondIntegersError, OutOfTimeError, TooLargeError
    """
    teams, model = ways.teams, ways.model
    known: dict[LayerWays, Least | None] = {}
    profiles, kept = list[Profile](), [layer.parameters for layer in model.layers]
    for kind in teams.kinds:
        costs = []
        for i, (layer, whole) in enumerate(zip(model.layers, teams.costs(kind, size), strict=True)):
            least: Least | None = (whole, layer.parameters)
            if layer.operators:
                own = ways.layer(i, kind, size, *ends_of(*between, i))
                if own not in known:
                    known[own] = _least(own, whole, teams.clock or no_limit(), splits)
                least = known[own]
            if least is None:
                return None
            costs.append(least[0])
            kept[i] = min(kept[i], least[1])
        profiles.append(Profile(kind.name, size, tuple(costs), LEAST))
    shared = [_shared(ways, between, size, teams.kinds[0], tie, kept) for tie in model.ties]
    split = Split((teams.team,), *between, 0, *teams.links((teams.team,)))
    job = changed(job, teams=(), unlike_teams=False, micro_batches=(job.batch // size,))
    return TeamQuestion(split, device_model(model, profiles, kept, shared), teams.as_devices, job)


def _least(own: LayerWays, whole: LayerCost, clock: Clock, splits: bool) -> Least | None:
    """The least of a layer; whole operators may be faster than split ones with what this adds to each."""
    found = least_sums(own.problem.sharding.project(combined(*FIGURES, *HALVES * splits)), clock)
    if not found:
        return None
    forward, backward, update, saved, parameters, *halves = found
    more, layer = if_split(own.problem), own.rooflines
    times = zip(
        ("forward", "backward", "input_gradient", "weight_gradient"), (forward, backward, *halves), strict=False
    )
    least = {name: min(getattr(whole, name), time + layer.constant(name) + more[name]) for name, time in times}
    cost = LayerCost(
        **{"input_gradient": 0, "weight_gradient": 0} | least,
        saved=saved,
        output=least_output(own.problem),
        workspace=whole.workspace_for(saved),
        update=update,
    )
    return cost, parameters


def _shared(ways: TeamWays, between: Between, size: int, kind: DeviceKind, tie: Tie, kept: Sequence[int]) -> int:
    """Bytes on a device of what layers share: in no way are they less, or less of the first layer's parameters."""
    first = ways.model.names.index(tie.layers[0])
    layer = ways.model.layers[first]
    if not layer.operators:
        return tie.parameters
    own = ways.layer(first, kind, size, *ends_of(*between, first))
    sizes = (ways.teams.team,)
    least = min(shared_bytes(tie, own.graph, strategies, sizes) for strategies in own.shared_strategies)
    return least * kept[first] // max(layer.parameters, 1)


def least_model(models: Sequence[Model], size: int) -> Model:
    """Return the model whose layers have the least of these models' costs at one micro-batch size, and parameters."""
    first = models[0]
    kept = np.array([[layer.parameters for layer in model.layers] for model in models]).min(0).tolist()
    ties = []
    for tie in first.ties:
        at = first.names.index(tie.layers[0])
        least = min(_share(model, tie, at) for model in models)
        ties.append(int(least * kept[at]))
    return device_model(first, _profiles(models, size, np.min), kept, ties)


def most_model(models: Sequence[Model], size: int) -> Model:
    """Return the first of these models with the most of their costs at one micro-batch size."""
    return replace(models[0], profiles=tuple(_profiles(models, size, np.max)))


def _profiles(models: Sequence[Model], size: int, choose: Callable[..., Any]) -> list[Profile]:
    rows = [{profile.device: profile for profile in model.profiles if profile.micro_batch == size} for model in models]
    profiles = []
    for kind in rows[0]:
        every = choose([[*map(_figures, row[kind].costs)] for row in rows], axis=0)
        profiles.append(Profile(kind, size, tuple(LayerCost(*cost) for cost in every.tolist()), LEAST))
    return profiles


def _share(model: Model, tie: Tie, first: int) -> Fraction:
    """The part of the first layer's parameters that layers share in a way."""
    own = next((own.parameters for own in model.ties if own.layers == tie.layers), 0)
    return Fraction(own, max(model.layers[first].parameters, 1))
