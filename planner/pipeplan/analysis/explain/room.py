"""Free memory of each device, and the bytes of one more micro-batch or layer."""

from dataclasses import dataclass

from pipeplan.analysis.explain.setting import Setting
from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.units import format_bytes
from pipeplan.costs.chain import UNLIMITED
from pipeplan.costs.layers import gradient_bytes, layer_costs, optimizer_bytes
from pipeplan.simulate import memory_of_ranks


@dataclass(frozen=True, slots=True)
class Room:
    """Memory of a device at its peak, as the plan counts it, in bytes.

    Attributes
    ----------
    device : str
    stage : int
        Its first one.
    peak, limit : int
        ``limit`` is `pipeplan.costs.chain.UNLIMITED` where there is none.
    micro_batch : int
        Bytes of one more micro-batch in flight, on the stage on which it takes least.
    layer : int or None
        Bytes of the smaller of the adjacent layers of the neighbouring stages; None if there is no neighbour, if
        the model is not given, or if teams share layers.
    """

    device: str
    stage: int
    peak: int
    limit: int
    micro_batch: int
    layer: int | None = None

    @property
    def left(self) -> int:
        """Bytes between the peak and the limit."""
        return self.limit - self.peak

    @property
    def tight(self) -> bool:
        """True if one more micro-batch or layer would not fit."""
        return self.limit != UNLIMITED and self.left < max(self.micro_batch, self.layer or 0)

    def __str__(self) -> str:
        if self.limit == UNLIMITED:
            return f"{self.device}: {format_bytes(self.peak)}, no limit"
        text = f"{self.device}: {format_bytes(self.peak)} of {format_bytes(self.limit)}"
        wants = [("micro-batch", self.micro_batch), ("layer", self.layer or 0)]
        missing = [f"one more {what} takes {format_bytes(size)}" for what, size in wants if size > self.left]
        return f"{text}, {format_bytes(self.left)} left; {' and '.join(missing)}" if missing else text


def rooms(setting: Setting, model: Model | None, cluster: Cluster | None, job: Job | None) -> tuple[Room, ...]:
    """Every device of the plan, by rank; without model and cluster, neighbouring layers are left out."""
    pipeline, found = setting.pipeline, []
    layers: list[int | None] = [None] * len(pipeline.stages)
    if model is not None and cluster is not None and setting.plan.team == 1:
        layers = [_smallest_neighbour(setting, s, model, cluster, job) for s in range(len(layers))]
    for rank, (own, peak) in enumerate(zip(pipeline.stages_on, memory_of_ranks(setting.plan), strict=True)):
        held = min(pipeline.stages[s].held for s in own)
        layer = min((layer for s in own if (layer := layers[s]) is not None), default=None)
        found.append(Room(setting.device(rank), own[0], peak, pipeline.limits[rank], held, layer))
    return tuple(found)


def _smallest_neighbour(setting: Setting, s: int, model: Model, cluster: Cluster, job: Job | None) -> int | None:
    """Static and activation bytes of the cheaper layer that stage s could take over from a neighbour."""
    plan = setting.plan
    neighbours = [plan.stages[t].layers[i] for t, i in ((s - 1, -1), (s + 1, 0)) if 0 <= t < len(plan.stages)]
    if not neighbours:
        return None
    kind = cluster.devices[plan.stages[s].devices[0]].kind
    extrapolate = job is not None and job.extrapolate
    costs = layer_costs(model, kind, plan.micro_batch, extrapolate=extrapolate, optimizer=plan.optimizer)

    def need(name: str) -> int:
        i = model.names.index(name)
        parameters = model.layers[i].parameters
        resident = parameters + gradient_bytes(parameters, model.dtype, plan.gradient_bytes)
        resident += optimizer_bytes(parameters, model.dtype, plan.optimizer, plan.state_bytes) + model.layers[i].frozen
        return resident + plan.stages[s].in_flight * costs[i].saved

    return min(map(need, neighbours))
