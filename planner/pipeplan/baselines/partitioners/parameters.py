"""By parameters: what DeepSpeed does unless told otherwise."""

from pipeplan.baselines.partitioners.balancer import Balancer, by_matrices
from pipeplan.baselines.partitioners.smallest_range import smallest_range
from pipeplan.costs.chain import Boundaries, Chain


def balance(chain: Chain, micro_batches: int) -> Boundaries:  # noqa: ARG001
    """The smallest range of parameter bytes (which are parameter counts, times one number size)."""
    return smallest_range(chain.parameters, chain.stages)


BALANCER = Balancer(
    "parameters",
    "smallest range of parameters over the stages",
    "DeepSpeed, partition_method='parameters' (its default), as its code stands since 2023",
    balance,
    by_matrices,
)
