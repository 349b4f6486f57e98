"""By cumulative forward FLOPs, as GPipe's implementation in Lingvo does it.

::

    layer                 0    1    2    3    4    5        6 equal layers, 4 stages
    share done after it  1/6  2/6  3/6  4/6  5/6  6/6
    times 4, floor        0    1    2    2    3    4 → 3    a layer that ends on a boundary goes to the stage behind it
"""

import numpy as np

from pipeplan.baselines.partitioners.balancer import Balancer, NotApplicable
from pipeplan.costs.chain import Boundaries, Chain


def balance(chain: Chain, micro_batches: int) -> Boundaries:  # noqa: ARG001
    """Layer i goes to stage floor(S c_i), with c_i the share of all FLOPs up to and including it; 1 to the last stage.

    Exact: Python's integers, no rounding. Stages can be empty.
    """
    done = np.cumsum(chain.forward_flops.astype(object))
    total = done[-1]
    if total == 0:
        raise NotApplicable("GPipe divides by the forward FLOPs of the model, which are 0")
    stage_of = [min(int(part) * chain.stages // total, chain.stages - 1) for part in done]
    return (*(sum(stage < s for stage in stage_of) for s in range(chain.stages)), chain.layers)


BALANCER = Balancer(
    "gpipe",
    "equal shares of the cumulative forward FLOPs, rounded down",
    "GPipe, PartitionSequentialLayers in Lingvo, as its code stands",
    balance,
)
