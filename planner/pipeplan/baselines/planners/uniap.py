"""UniAP's programme: boundaries and strategies at once, for every number of stages, under GPipe's schedule.

Lin et al., "UniAP: Unifying Inter- and Intra-Layer Automatic Parallelism by Mixed Integer Quadratic Programming"
(CVPR 2025). For each number of stages S, on equal shares of all devices, and c micro-batches ::

    min  Σ p_s + Σ o_s + (c − 1) max(p_1, …, p_S, o_1, …, o_{S−1})

p_s is the time of a micro-batch on stage s, o_s that of sending it and its gradient over the boundary behind. Every
stage holds all c micro-batches. The original is a quadratic programme for a commercial solver. On a chain the least
time p of a stage depends on its layers only, so a programme over (stages, layers) minimises the sum under a cap on all
p and o, and branch-and-bound over the caps proves the optimum (`sum_and_largest`).

What differs from the original: the strategies of a layer are to keep what it saves or to be recomputed. Teams split all
layers alike, at one level of ZeRO: this module is asked once for each split and level, and the least value counts.
c is the number of micro-batches of a replica, and p = F + B + recomputation + all-reduce / c.
"""

from itertools import pairwise

import numpy as np

from pipeplan.baselines.partitioners.partitioner import NotApplicable
from pipeplan.baselines.planners.even_pipelines import EvenPipeline, even_pipelines
from pipeplan.baselines.planners.planner import Arrangement, BaselinePlanner
from pipeplan.baselines.planners.spans import Real
from pipeplan.baselines.planners.sum_and_largest import least
from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.costs.chain import Boundaries


def least_step(times: Real, sends: Real, rounds: int, below: float = np.inf) -> tuple[float, Boundaries] | None:
    """Return the least Σ p + Σ o + (c − 1) max(p, o) and its boundaries; None if there are none with less than below.

    Parameters
    ----------
    times : array of float, shape (n + 1, n + 1)
        [a, b]: time of layers a … b − 1 on a stage; infinite where they do not fit.
    sends : array of float, shape (S − 1, n − 1)
        Time of each boundary at each cut.
    rounds : int
        c: micro-batches.
    """
    layers, links = len(times) - 1, len(sends)

    def solve(cap: float) -> tuple[float, float, Boundaries] | None:
        spans = np.where(times <= cap, times, np.inf)
        ends = np.full((links + 1, layers + 1), np.inf)  # [s, b]: least sum of stages up to s on the first b layers
        starts = np.full(layers + 1, np.inf)
        starts[0] = 0.0
        before = [starts]
        for s in range(links + 1):
            ends[s] = (before[s][:, None] + spans).min(axis=0)
            if s < links:
                sent = np.where(sends[s] <= cap, sends[s], np.inf)
                before.append(np.concatenate([[np.inf], ends[s, 1:-1] + sent, [np.inf]]))
        if np.isinf(ends[links, layers]):
            return None
        edges = [layers]
        for s in range(links, -1, -1):
            edges.append(int((before[s] + spans[:, edges[-1]]).argmin()))
        bounds = tuple(reversed(edges))
        taken = [times[a, b] for a, b in pairwise(bounds)] + [sends[s, cut - 1] for s, cut in enumerate(bounds[1:-1])]
        return float(ends[links, layers]), float(max(taken)), bounds

    return least(solve, np.concatenate([times.ravel(), sends.ravel()]), rounds - 1, below)


def stage_times(pipeline: EvenPipeline) -> Real:
    """Return [a, b]: the time of a micro-batch on a stage, with the least recomputation that fits."""
    spans = pipeline.spans
    found: Real = spans.work + spans.least_repeated(pipeline.held) + spans.once / pipeline.rounds
    return found


def arrange(
    model: Model, cluster: Cluster, job: Job, micro_batch: int, below: float = np.inf
) -> tuple[Arrangement, ...]:
    """Return the best stages on all devices, with a value below a limit in nanoseconds.

    Raises
    ------
    NotApplicable
        If there are none, or devices are of several kinds.
    """
    found: tuple[Arrangement, ...] = ()
    for pipeline in even_pipelines("UniAP", model, cluster, job, micro_batch, below):
        chain = pipeline.prices.chain(pipeline.groups, micro_batch)
        sends = (2 * (chain.send + chain.latency[:, None])).astype(np.float64)
        solved = least_step(stage_times(pipeline), sends, pipeline.rounds, below)
        if solved is not None:
            below = solved[0]
            found = (pipeline.arrangement(solved[1], solved[0]),)
    if not found:
        raise NotApplicable(
            f"UniAP has no stages that fit on all {len(cluster.devices)} devices in micro-batches of {micro_batch}"
        )
    return found


PLANNER = BaselinePlanner(
    "uniap",
    "least sum of stage and boundary times and (c − 1) times the largest, on equal shares of all devices",
    "UniAP's programme (CVPR 2025) on chains, recomputation as strategies of layers; GPipe",
    ("gpipe",),
    arrange,
    lambda model, cluster: 30 * len(cluster.devices) * len(model.layers) ** 2,
    splits=True,
)
