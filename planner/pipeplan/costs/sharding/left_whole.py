"""Operators and lengths that the teams of a plan leave whole, as part of its answer."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.plan import Plan
from pipeplan.costs.sharding.unsplit import Undivided, Unsplit, divides_nothing, notes, undivided, unsplit

if TYPE_CHECKING:  # plans without teams need none of these, and functions below import them
    from pipeplan.costs.sharding.joined import Own
    from pipeplan.costs.sharding.teams import Teams


class LeftWhole(NamedTuple):
    """What is whole on every device of a team.

    Attributes
    ----------
    operators : tuple of Unsplit
        By kind, those that cost most first; times are those of a micro-batch on the first kind of device.
    lengths : tuple of Undivided
    sizes : tuple of int
        Devices along each axis of the team.
    time : int
        Nanoseconds of forward and backward of all layers for a micro-batch, on one device.
    """

    operators: tuple[Unsplit, ...] = ()
    lengths: tuple[Undivided, ...] = ()
    sizes: tuple[int, ...] = ()
    time: int = 0

    def as_text(self) -> Iterator[str]:
        """Yield a sentence for each."""
        yield from notes(self.operators, self.lengths, self.sizes, self.time)

    def as_json(self) -> dict[str, object]:
        """Return plain data; times in seconds."""
        return {
            "operators": [each.as_json() for each in self.operators],
            "lengths": [{"devices": self.sizes[each.axis]} | each.as_json() for each in self.lengths],
        }


def left_whole(plan: Plan, model: Model, cluster: Cluster, job: Job) -> LeftWhole:
    """Return what a plan's largest teams leave whole; nothing of a model whose layers are those of members already."""
    if plan.team == 1 or not model.operators:
        return LeftWhole()
    from pipeplan.costs.sharding.joined import LAYER, UNKNOWN
    from pipeplan.costs.sharding.teams import Teams

    teams = Teams(model, cluster, plan.team, (plan.micro_batch,), job.optimizer, job.extrapolate)
    sizes = next((stage.mesh for stage in plan.stages if stage.team == plan.team), ()) or (plan.team,)
    of = _operators(teams)
    costs = teams.costs(teams.kinds[0], plan.micro_batch)
    time = sum(cost.forward + cost.backward for cost in costs)
    unknown = [i for i, layer in enumerate(teams.model.layers) if not layer.operators]
    operators = list(unsplit(of, plan.team))
    if unknown:
        own = sum(costs[i].forward + costs[i].backward for i in unknown)
        kept = sum(teams.model.layers[i].parameters for i in unknown)
        names = tuple(teams.model.layers[i].name for i in unknown)
        operators.append(Unsplit(f"{UNKNOWN} {LAYER}", names, own, own - own // plan.team, kept))
    operators.sort(key=lambda each: -each.lost)
    return LeftWhole(tuple(operators), undivided(of, sizes), sizes, time)


def why_nothing(teams: "Teams") -> str:
    """Return in words that a team divides no length of the model, and which sizes do; empty if it divides one."""
    return divides_nothing(_operators(teams), teams.team)


def _operators(teams: "Teams") -> "dict[str, Own]":
    """All operators of the model at the first micro-batch size, by layer and name."""
    from pipeplan.costs.sharding.joined import Own

    kind, size = teams.kinds[0], teams.sizes[0]
    return {
        f"{layer.name}/{each.name}": Own(own, each, i)
        for i, layer in enumerate(teams.model.layers)
        if layer.operators
        for own in [teams.rooflines(i, kind, size)]
        for each in own.graph.operators
    }
