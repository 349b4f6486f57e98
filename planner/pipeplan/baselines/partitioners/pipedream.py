"""PipeDream's dynamic programme for pipelines without replicas.

PipeDream minimises the slowest stage of an endless pipeline, where what crosses a cut of a bytes takes 2 a / bandwidth
(the activation, and its gradient on the way back) and counts beside the compute time of a stage, not on top of it:

    minimise  max( F_s + B_s over stages s,  2 a_c / bandwidth over cuts c )

Here a cut costs 2 send[s, c], the times of the link that it really lies on, and every stage is timed on its own
device; on equal devices and links that is PipeDream's formula. The original counts transfers only when it is given an
activation compression ratio (1.0 compresses nothing); they are always counted here.
"""

from pipeplan.baselines.partitioners.balancer import Balancer, NotApplicable, by_matrices
from pipeplan.baselines.partitioners.smallest_maximum import smallest_maximum
from pipeplan.costs.chain import Boundaries, Chain


def balance(chain: Chain, micro_batches: int) -> Boundaries:  # noqa: ARG001 (an endless pipeline has no number)
    """One stage for every device, none empty: the least maximum of stage times and doubled send times."""
    found = smallest_maximum(chain.forward + chain.backward, 2 * chain.send)
    if found is None:
        raise NotApplicable(f"PipeDream fills every stage: {chain.layers} layers, {chain.stages} stages")
    return found[1]


BALANCER = Balancer(
    "pipedream",
    "exact least maximum of stage times and transfer times",
    "PipeDream's optimizer with --straight_pipeline, transfers counted, on a chain instead of a graph's antichains",
    balance,
    by_matrices,
)
