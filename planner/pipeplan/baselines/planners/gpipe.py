"""GPipe as a planner: its partitioner's boundaries, one device per stage, its own schedule.

GPipe recomputes everything except a stage's input in the backward (Huang et al., NeurIPS 2019, section 2.3). Here only
the layers needed for the plan to fit are recomputed, as in every other plan; that is never slower.
"""

from itertools import pairwise

from pipeplan.baselines.partitioners.gpipe import equal_shares
from pipeplan.baselines.planners.planner import Arrangement, BaselinePlanner
from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.costs.pricing import price


def arrange(model: Model, cluster: Cluster, job: Job, micro_batch: int) -> tuple[Arrangement, ...]:
    """Return the stages on all devices in the cluster's order, without the empty ones.

    Raises
    ------
    NotApplicable
        If the partitioner has no partition.
    """
    chain = price(model, cluster, cluster.devices[:1], micro_batch, job)
    boundaries = equal_shares(chain.forward_flops, len(cluster.devices))
    filled = [s for s, (a, b) in enumerate(pairwise(boundaries)) if a < b]
    return (Arrangement((0, *(boundaries[s + 1] for s in filled)), tuple((s,) for s in filled)),)


PLANNER = BaselinePlanner(
    "gpipe-whole",
    "GPipe's boundaries under GPipe's schedule",
    "GPipe, PartitionSequentialLayers in Lingvo, as its code stands; recomputation only as needed to fit",
    ("gpipe",),
    arrange,
)
