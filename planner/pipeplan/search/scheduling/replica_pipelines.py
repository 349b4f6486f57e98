"""Data-parallel replicas of a pipeline, which share nothing except the reduction of their gradients.

::

    stage                  0    1    2    3       0 and 3 share a device
    replica 0             d0   d1   d2   d0       micro-batches 0 2 4 …
    replica 1             d3   d4   d5   d3                     1 3 5 …
    data-parallel group    0    1    2    0

If every stage has r replicas, micro-batch m never leaves replica m mod r. An order for one replica is then an order
for all.
"""

from dataclasses import dataclass

from pipeplan.core.errors import InputError
from pipeplan.core.pipeline import Pipeline, Transfer


@dataclass(frozen=True)
class ReplicaPipelines:
    """A pipeline as replicas of one unreplicated pipeline.

    Attributes
    ----------
    groups : tuple of tuple of int
        For each data-parallel group the device of each replica. Groups are in ascending order.
    group_of : tuple of int
        The data-parallel group of each stage.
    """

    groups: tuple[tuple[int, ...], ...]
    group_of: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of replicas."""
        return len(self.groups[0])

    def hosted(self, group: int) -> list[int]:
        """The stages of a data-parallel group, ascending."""
        return [stage for stage, own in enumerate(self.group_of) if own == group]

    def crosses(self, boundary: int) -> bool:
        """Return True if the stages on both sides of a boundary lie on different devices."""
        return self.group_of[boundary] != self.group_of[boundary + 1]


def replica_pipelines(pipeline: Pipeline) -> ReplicaPipelines:
    """Return the replicas of a pipeline.

    Raises
    ------
    InputError
        If stages have different numbers of replicas, a device runs stages of several replicas, or two stages share a
        device in one replica and not in another.
    """
    widths = set(pipeline.replicas)
    if len(widths) != 1:
        raise InputError(
            f"orders are searched for stages with equal numbers of replicas, and these have "
            f"{'-'.join(map(str, pipeline.replicas))} replicas; give all the same number, or choose a schedule family"
        )
    groups = sorted(set(pipeline.placement))
    devices = [device for group in groups for device in group]
    if len(set(devices)) != len(devices):
        shared = next(device for device in devices if devices.count(device) > 1)
        raise InputError(
            f"device {shared} runs stages of several data-parallel replicas (stages lie on {pipeline.placement}); "
            "orders are searched only where each replica of the pipeline has devices of its own"
        )
    return ReplicaPipelines(tuple(groups), tuple(groups.index(own) for own in pipeline.placement))


def micro_batches_of(pipelines: ReplicaPipelines, replica: int, micro_batches: int) -> int:
    """Number of micro-batches of a replica: ⌈(M − replica) / r⌉."""
    return max(0, -(-(micro_batches - replica) // pipelines.count))


def tightest_pipeline(pipelines: ReplicaPipelines, pipeline: Pipeline, micro_batches: int) -> int:
    """Return a replica with the most micro-batches and nowhere more memory than another: its orders fit all replicas.

    If there are several, it is the one whose transfers take longest.

    Raises
    ------
    InputError
        If there is none.
    """
    most = micro_batches_of(pipelines, 0, micro_batches)
    busiest = [
        replica for replica in range(pipelines.count) if micro_batches_of(pipelines, replica, micro_batches) == most
    ]
    memory = [
        [pipeline.limits[own[replica]] - pipeline.runtime[own[replica]] for own in pipelines.groups]
        for replica in range(pipelines.count)
    ]
    least = [min(group) for group in zip(*memory, strict=True)]
    tight = [replica for replica in busiest if memory[replica] == least]
    if not tight:
        raise InputError(
            f"replicas have different memory beside their runtime ({memory} bytes, per replica and device), and none "
            f"of the replicas {busiest} has the least on every device; orders are searched for replicas that are "
            "alike: use devices of one kind per stage"
        )
    return max(tight, key=lambda replica: sum(_duration(transfer) for transfer in _transfers_of(pipeline, replica)))


def _transfers_of(pipeline: Pipeline, replica: int) -> list[Transfer]:
    return [transfers[replica] for transfers in (*pipeline.transfers, *pipeline.returns)]


def _duration(transfer: Transfer) -> int:
    return transfer.occupancy + transfer.latency
