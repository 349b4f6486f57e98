"""GPipe whole: its balancer's cuts, one device a stage, under its own schedule.

GPipe computes everything but a stage's input again in the backward (Huang et al., NeurIPS 2019, section 2.3). Here only
what it takes to fit is computed again, layer by layer, as in every other plan; that is never slower.
"""

from itertools import pairwise

from pipeplan.baselines.partitioners.gpipe import gpipe
from pipeplan.baselines.planners.planner import Arrangement, BaselinePlanner
from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.costs.pricing import price


def arrange(model: Model, cluster: Cluster, job: Job, micro_batch: int) -> tuple[Arrangement, ...]:
    """All devices in the cluster's order; those whose stage stays empty are left out.

    Raises
    ------
    NotApplicable
        If the balancer has no cut.
    """
    chain = price(model, cluster, cluster.devices, micro_batch, job)
    boundaries = gpipe(chain, job.batch // micro_batch)
    filled = [s for s, (a, b) in enumerate(pairwise(boundaries)) if a < b]
    return (Arrangement((0, *(boundaries[s + 1] for s in filled)), tuple((s,) for s in filled)),)


STRUCTURE = BaselinePlanner(
    "gpipe-whole",
    "GPipe's cuts under GPipe's schedule",
    "GPipe, PartitionSequentialLayers in Lingvo, as its code stands; recomputation where it takes some to fit",
    ("gpipe",),
    arrange,
)
