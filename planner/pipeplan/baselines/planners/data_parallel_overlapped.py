"""Data parallelism whose gradients are summed in buckets while the last backward runs.

::

    d0   F0 B0 F2 B2 │ R U       2 devices, 4 micro-batches; R sums what the last backwards have not hidden
    d1   F1 B1 F3 B3 │ R U
                  ▒▒▒▒           sums of the last layers' gradients
"""

from pipeplan.baselines.partitioners.partitioner import NotApplicable
from pipeplan.baselines.planners import data_parallel
from pipeplan.baselines.planners.planner import Arrangement, BaselinePlanner
from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Job
from pipeplan.core.model import Model


def arrange(model: Model, cluster: Cluster, job: Job, micro_batch: int) -> tuple[Arrangement, ...]:
    """Return the arrangements of data parallelism.

    Raises
    ------
    NotApplicable
        If the job sums all gradients behind the last backward, and as `data_parallel.arrange`.
    """
    if not job.overlap_reduction:
        raise NotApplicable("gradients are summed behind the last backward; --overlap-reduction sums them earlier")
    return data_parallel.arrange(model, cluster, job, micro_batch)


PLANNER = BaselinePlanner(
    "data-parallel-overlapped",
    "the whole model on every device, gradients summed in buckets while the last backward runs",
    "torch's DistributedDataParallel, with the best buckets instead of those of 25 MB",
    (),
    arrange,
)
