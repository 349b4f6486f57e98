"""GPipe whole: its balancer's cuts, one device a stage, under its own schedule, with its recomputation or without.

GPipe keeps only what enters a stage and computes the rest again (Huang et al., NeurIPS 2019, section 2.3).
Recomputation is a choice per layer here, and a recomputed layer keeps its output, so what GPipe would hold is a little
less.
"""

from itertools import pairwise

from pipeplan.balance import gpipe
from pipeplan.balance.structured.structure import Arrangement, Structure
from pipeplan.cluster import Cluster
from pipeplan.job import Job
from pipeplan.model import Model
from pipeplan.pricing import price


def arrange(model: Model, cluster: Cluster, job: Job, micro_batch: int) -> tuple[Arrangement, ...]:
    """All devices in the cluster's order; those whose stage stays empty are left out.

    Raises
    ------
    NotApplicable
        If the balancer has no cut.
    """
    chain = price(model, cluster, cluster.devices, micro_batch, job)
    boundaries = gpipe.balance(chain, job.batch // micro_batch)
    filled = [s for s, (a, b) in enumerate(pairwise(boundaries)) if a < b]
    kept = Arrangement((0, *(boundaries[s + 1] for s in filled)), tuple((s,) for s in filled))
    return kept, Arrangement(kept.boundaries, kept.devices, tuple(range(chain.layers)))


STRUCTURE = Structure(
    "gpipe-whole",
    "GPipe's cuts under GPipe's schedule, activations kept or recomputed",
    "GPipe, PartitionSequentialLayers in Lingvo, as its code stands; recomputation by layer instead of by stage",
    ("gpipe",),
    arrange,
)
