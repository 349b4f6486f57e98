"""DeepSpeed's dynamic programme on measured times, which DeepSpeed itself does not offer (``'profile'`` is missing)."""

from pipeplan.baselines.partitioners.balancer import Balancer, by_matrices, work
from pipeplan.baselines.partitioners.smallest_range import smallest_range
from pipeplan.costs.chain import Boundaries, Chain


def balance(chain: Chain, micro_batches: int) -> Boundaries:  # noqa: ARG001
    """The smallest range of forward and backward time, as the first device takes it."""
    return smallest_range(work(chain), chain.stages)


BALANCER = Balancer(
    "deepspeed-time",
    "smallest range of forward and backward time over the stages",
    "DeepSpeed's partition_balanced, given times instead of parameter counts",
    balance,
    by_matrices,
)
