"""Equal numbers of layers per stage, rounded as three projects do it.

::

    14 layers, 4 stages     DeepSpeed    4 4 3 3     the remainder to the first stages
                            torchtitan   3 4 4 3     embedding and head count as a layer each
                            Megatron     3 4 4 3     the same, where only that divides evenly; else refused

A chain does not record which of its layers a project would count as a transformer layer, so all of them are counted.
"""

from pipeplan.baselines.partitioners.partitioner import NotApplicable, Partitioner, from_counts
from pipeplan.costs.chain import Boundaries, Chain


def even_counts(layers: int, stages: int) -> list[int]:
    """Return n // S layers for each stage, and one more on the first n mod S stages."""
    share, extra = divmod(layers, stages)
    return [share + (stage < extra) for stage in range(stages)]


def deepspeed(chain: Chain, micro_batches: int) -> Boundaries:  # noqa: ARG001 (one signature for all)
    """Give the remainder to the first stages; with fewer layers than stages the last stages stay empty."""
    return from_counts(even_counts(chain.layers, chain.stages))


def torchtitan(chain: Chain, micro_batches: int) -> Boundaries:  # noqa: ARG001
    """Distribute n + 2 layers evenly; the first and the last stage each hold one that is not in the chain."""
    if chain.stages == 1:
        return (0, chain.layers)
    counts = even_counts(chain.layers + 2, chain.stages)
    if counts[-1] < 1:
        raise NotApplicable(
            f"torchtitan needs one effective layer for every stage: {chain.layers} layers and 2 for embedding and head "
            f"on {chain.stages} stages"
        )
    counts[0] -= 1
    counts[-1] -= 1
    return from_counts(counts)


def megatron(chain: Chain, micro_batches: int) -> Boundaries:  # noqa: ARG001
    """Use equal counts; add pseudo-layers for the loss, then also for the embedding, only if needed to reach them."""
    layers, stages = chain.layers, chain.stages
    for embedding, loss in ((0, 0), (0, 1), (1, 1)):
        share, remainder = divmod(layers + embedding + loss, stages)
        if remainder == 0:
            counts = [share] * stages
            counts[0] -= embedding
            counts[-1] -= loss
            return from_counts(counts)
    raise NotApplicable(
        f"Megatron needs equal stages: {layers} layers do not divide by {stages}, nor do {layers + 1} with the loss "
        f"counted, nor {layers + 2} with loss and embedding"
    )


DEEPSPEED = Partitioner(
    "uniform-deepspeed",
    "equal layer counts, remainder to the first stages",
    "DeepSpeed, partition_method='uniform', as its code stands",
    deepspeed,
)
TORCHTITAN = Partitioner(
    "uniform-torchtitan",
    "equal layer counts, one less on the first and the last stage",
    "torchtitan's default split with its default weights of 1 for embedding and head, every layer of the chain counted",
    torchtitan,
)
MEGATRON = Partitioner(
    "uniform-megatron",
    "equal layer counts, or none",
    "Megatron-LM's default split, with account_for_loss and account_for_embedding set where that makes it divide",
    megatron,
)

PARTITIONERS = (DEEPSPEED, TORCHTITAN, MEGATRON)
