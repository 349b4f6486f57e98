"""Pipelines whose stages have equally many replicas, for planners that enumerate the number of stages."""

from collections.abc import Iterator
from dataclasses import dataclass

from pipeplan.baselines.deadline import check_deadline
from pipeplan.baselines.partitioners.partitioner import NotApplicable, require_few_layers
from pipeplan.baselines.planners.planner import Arrangement
from pipeplan.baselines.planners.spans import Spans
from pipeplan.core.cluster import Cluster, Device
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.costs.chain import Boundaries
from pipeplan.costs.pricing import Prices


@dataclass(frozen=True)
class EvenPipeline:
    """Stages on equal numbers of consecutive devices, which are all those of the cluster.

    Attributes
    ----------
    groups : tuple of tuple of Device
        The devices of each stage.
    spans : Spans
        Layers on the devices of a stage.
    rounds : int
        Micro-batches of a replica; those that replicas run at the same time are one micro-batch to the planner.
    prices : Prices
    size : int
        Samples of a replica's micro-batch.
    """

    groups: tuple[tuple[Device, ...], ...]
    spans: Spans
    rounds: int
    prices: Prices
    size: int

    @property
    def held(self) -> int:
        """Micro-batches in flight on a replica under GPipe's schedule: all; a single stage runs one after the other."""
        return self.rounds if len(self.groups) > 1 else 1

    def arrangement(self, boundaries: Boundaries, value: float) -> Arrangement:
        """Return these stages on the pipeline's devices."""
        return Arrangement(boundaries, tuple(tuple(device.index for device in group) for group in self.groups), value)


def even_pipelines(
    name: str, model: Model, cluster: Cluster, job: Job, size: int, below: float
) -> Iterator[EvenPipeline]:
    """Yield the pipelines of 1, 2, … stages on all devices whose sum and largest stage may have a value below a limit.

    That is Σ t + (c − 1) max t ≥ (1 + (c − 1) / S) W, W being the work of a micro-batch.

    Raises
    ------
    NotApplicable
        If devices are of several kinds.
    """
    require_few_layers(len(model.layers))
    devices, count = cluster.devices, job.batch // size
    if len({device.kind.name for device in devices}) > 1:
        raise NotApplicable(f"{name} plans for devices of one kind")
    prices = Prices(model, cluster, job)
    for stages in range(1, min(len(devices), len(model.layers)) + 1):
        width, rest = divmod(len(devices), stages)
        asked = stages in (job.depths or (stages,)) and width in (job.replicas or (width,))
        if rest or width > count or not asked:
            continue
        check_deadline()
        rounds = -(-count // width)
        table = prices.table(devices[0].kind, size)
        if float((table.forward + table.backward).sum()) * (1 + (rounds - 1) / stages) >= below:
            continue
        groups = tuple(devices[place : place + width] for place in range(0, len(devices), width))
        yield EvenPipeline(groups, Spans(prices, groups[0], size), rounds, prices, size)
