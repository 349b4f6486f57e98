"""Teams of one size: where they lie, and what layers and their operators take on one device."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from pipeplan.core.cluster import Cluster, DeviceKind, Link
from pipeplan.core.model import LayerCost, Model
from pipeplan.core.operators import OperatorGraph
from pipeplan.costs.layers import layer_costs
from pipeplan.costs.sharding.batches import has_samples
from pipeplan.costs.sharding.places import Place, places, team_cluster
from pipeplan.costs.sharding.rooflines import Rooflines, rates_of
from pipeplan.costs.sharding.shapes import Mesh, mesh_on
from pipeplan_formulations.common.clock import Clock


@dataclass(frozen=True)
class Teams:
    """Teams of one size on a cluster, for a model and micro-batch sizes.

    Attributes
    ----------
    model : Model
    cluster : Cluster
    team : int
    sizes : tuple of int
        Micro-batch sizes.
    optimizer : str
    extrapolate, vocabulary_parallel, context_parallel : bool
        As in a job.
    again : bool
        Whether layers may be recomputed.
    state_bytes : int or None
        As in a job.
    strategy : str
        As in a job.
    clock : Clock or None
        The time in which splits are found.
    """

    model: Model
    cluster: Cluster
    team: int
    sizes: tuple[int, ...]
    optimizer: str
    extrapolate: bool
    vocabulary_parallel: bool = True
    context_parallel: bool = True
    again: bool = False
    state_bytes: int | None = None
    strategy: str = ""
    clock: Clock | None = field(default=None, repr=False, compare=False)
    _costs: dict[tuple[str, int], tuple[LayerCost, ...]] = field(default_factory=dict, init=False, repr=False)
    _rooflines: dict[tuple[object, ...], Rooflines] = field(default_factory=dict, init=False, repr=False)

    def check(self) -> None:
        """Raise `OutOfTimeError` once the time is over."""
        if self.clock is not None:
            self.clock.check()

    def at(self, sizes: tuple[int, ...]) -> "Teams":
        """Return the same teams at other micro-batch sizes, with what is known of layers."""
        found = replace(self, sizes=sizes)
        found._costs.update(self._costs)
        found._rooflines.update(self._rooflines)
        return found

    @cached_property
    def places(self) -> Mapping[str, Place]:
        """For each kind that has teams where these lie."""
        return places(self.cluster, self.team)

    @cached_property
    def as_devices(self) -> Cluster:
        """The cluster whose devices are these teams."""
        return team_cluster(self.cluster, self.team)

    @cached_property
    def kinds(self) -> tuple[DeviceKind, ...]:
        """The kinds of device that have teams."""
        return tuple(kind for kind in self.cluster.kinds.values() if kind.name in self.places)

    @cached_property
    def plain(self) -> bool:
        """Whether no tensor of the model has an axis of samples, so that each gets one."""
        return not any(map(has_samples, self.model.operators.values()))

    def mesh(self, kind: DeviceKind, sizes: tuple[int, ...]) -> Mesh:
        """Return the mesh of these sizes of teams of a kind of device."""
        place = self.places[kind.name]
        return mesh_on(sizes, self.team // place.nodes, place.inside, self.cluster.network or place.inside)

    def links(self, sizes: tuple[int, ...]) -> tuple[tuple[tuple[str, tuple[Link, ...]], ...], tuple[int, ...]]:
        """Return the links along the axes of a mesh of each kind, as collectives find them, and the sharing of each."""
        meshes = {kind.name: self.mesh(kind, sizes) for kind in self.kinds}
        rows = ((name, tuple(link.in_collectives for link in mesh.links)) for name, mesh in meshes.items())
        return tuple(rows), next(iter(meshes.values())).sharing

    def costs(self, kind: DeviceKind, size: int) -> tuple[LayerCost, ...]:
        """Costs of the layers on one device."""
        if (kind.name, size) not in self._costs:
            self._costs[kind.name, size] = layer_costs(
                self.model, kind, size, extrapolate=self.extrapolate, optimizer=self.optimizer
            )
        return self._costs[kind.name, size]

    def rooflines(self, number: int, kind: DeviceKind, size: int) -> Rooflines:
        """What the operators of a layer take; one object for equal layers."""
        layer, cost = self.model.layers[number], self.costs(kind, size)[number]
        key = layer.operators, layer.parameters, cost, kind.name, size
        if key not in self._rooflines:
            graph, rates = self.model.operators[layer.operators], rates_of(kind, self.model.dtype)
            self._rooflines[key] = Rooflines(graph, cost, layer.parameters, kind, rates, size)
        return self._rooflines[key]

    def with_graph(self, whole: Rooflines, graph: OperatorGraph) -> Rooflines:
        """What operators take that have more axes than those of the model; one object for equal layers."""
        key = id(whole), id(graph)
        if key not in self._rooflines:
            self._rooflines[key] = replace(whole, graph=graph)
        return self._rooflines[key]

    def different(self, layers: Sequence[int], kind: DeviceKind, size: int) -> tuple[tuple[Rooflines, int], ...]:
        """Return what the operators of layers take, each once with how many are equal to it; if all are, 1."""
        every = [self.rooflines(i, kind, size) for i in layers]
        counts, by_id = Counter(map(id, every)), {id(own): own for own in every}
        return tuple((own, counts[key] if len(by_id) > 1 else 1) for key, own in by_id.items())
