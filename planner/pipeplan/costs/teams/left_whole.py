"""What the devices of a team run whole, because nothing is known about it or its lengths cannot be divided."""

from collections.abc import Iterator
from typing import NamedTuple

from pipeplan.core.plan import Plan
from pipeplan.costs.meshes.joined import LAYER, UNKNOWN, Own
from pipeplan.costs.meshes.unsplit import Undivided, Unsplit, divides_nothing, notes, undivided, unsplit
from pipeplan.costs.teams.splits import Teams


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

    def in_words(self) -> Iterator[str]:
        """Yield a sentence for each."""
        yield from notes(self.operators, self.lengths, self.sizes, self.time)

    def as_json(self) -> dict[str, object]:
        """Return plain data; times in seconds."""
        return {
            "operators": [
                {
                    "kind": each.kind,
                    "names": list(each.names),
                    "time_s": each.time / 1e9,
                    "even_split_saves_s": each.lost / 1e9,
                    "weights_bytes": each.parameters,
                }
                for each in self.operators
            ],
            "lengths": [
                {"loop": each.loop, "parts": each.parts, "devices": self.sizes[each.axis], "nearest": each.nearest}
                for each in self.lengths
            ],
        }


def left_whole(plan: Plan, teams: Teams) -> LeftWhole:
    """Return what a plan's largest teams leave whole."""
    sizes = plan.mesh or (plan.team,)
    of = _operators(teams, plan.micro_batch)
    kind = next(kind for kind in teams.cluster.kinds.values() if kind.name in teams.places)
    costs = teams.costs(kind, plan.micro_batch)
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


def why_nothing(teams: Teams) -> str:
    """Return in words that a team divides no length of the model, and which sizes do; empty if it divides one."""
    return divides_nothing(_operators(teams, teams.sizes[0]), teams.team)


def _operators(teams: Teams, size: int) -> dict[str, Own]:
    """All operators of the model, by layer and name."""
    kind = next(kind for kind in teams.cluster.kinds.values() if kind.name in teams.places)
    return {
        f"{layer.name}/{each.name}": Own(own, each, i)
        for i, layer in enumerate(teams.model.layers)
        if layer.operators
        for own in [teams.problem(i, kind, size, ()).rooflines]
        for each in own.graph.operators
    }
