"""Fully sharded data parallelism: every device works on its share of the micro-batches and keeps a share of the model.

::

    d0   ▒F0 ▒B0▒ F2▒ ▒B2▒  U      2 devices, 4 micro-batches; ▒: parameters are gathered, gradients summed, layer by
    d1   ▒F1 ▒B1▒ F3▒ ▒B3▒  U      layer beside the computation
"""

from pipeplan.baselines.partitioners.partitioner import NotApplicable
from pipeplan.baselines.planners import data_parallel
from pipeplan.baselines.planners.planner import Arrangement, BaselinePlanner
from pipeplan.core.cluster import Cluster
from pipeplan.core.job import WHOLLY_SHARDED, Job, Objective
from pipeplan.core.model import Model


def arrange(model: Model, cluster: Cluster, job: Job, micro_batch: int) -> tuple[Arrangement, ...]:
    """Return the arrangements of data parallelism in which all devices have equally many micro-batches.

    Raises
    ------
    NotApplicable
        If there are none, for the bottleneck, and as `data_parallel.arrange`.
    """
    if job.objective is Objective.BOTTLENECK:
        raise NotApplicable("it is planned for the time of steps")
    shares = job.batch // micro_batch
    found = [each for each in data_parallel.arrange(model, cluster, job, micro_batch) if not shares % each.replicas[0]]
    if not found:
        raise NotApplicable(f"{shares} micro-batches of {micro_batch} cannot be shared equally")
    return tuple(found)


PLANNER = BaselinePlanner(
    "fully-sharded",
    "a share of the model on every device; parameters gathered and gradients summed layer by layer",
    "torch's fully_shard by layers, each collective awaited one layer later; ZeRO-3 (Rajbhandari et al., 2020)",
    (),
    arrange,
    level=WHOLLY_SHARDED,
)
