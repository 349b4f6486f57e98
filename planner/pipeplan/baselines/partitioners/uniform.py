"""Equal numbers of layers per stage, rounded as three projects do it.

::

    14 blocks, 4 stages     torchtitan   3 4 4 3     embedding and head count as a block each
                            Megatron     3 4 4 3     the same, where only that divides evenly; else refused
    16 layers, 4 stages     DeepSpeed    4 4 4 4     embedding and head are layers; the remainder to the first stages

Megatron and torchtitan count blocks (`pipeplan.core.model.blocks_of`): what is ahead of them is on the first stage,
what is behind them on the last. Where a model has none that stand out, every layer is one.
"""

from collections.abc import Iterable
from itertools import accumulate

from pipeplan.baselines.partitioners.partitioner import NotApplicable, Partitioner, from_counts
from pipeplan.core.wording import counted
from pipeplan.costs.chain import Boundaries, Chain


def even_counts(layers: int, stages: int) -> list[int]:
    """Return n // S layers for each stage, and one more on the first n mod S stages."""
    share, extra = divmod(layers, stages)
    return [share + (stage < extra) for stage in range(stages)]


def deepspeed(chain: Chain, micro_batches: int) -> Boundaries:  # noqa: ARG001 (one signature for all)
    """Give the remainder to the first stages; with fewer layers than stages the last stages stay empty."""
    return from_counts(even_counts(chain.layers, chain.stages))


def from_blocks(chain: Chain, counts: Iterable[int]) -> Boundaries:
    """Return the boundaries of stages with these numbers of blocks; the ends have the layers beside the blocks."""
    ends = list(accumulate(counts))[:-1]
    return (0, *(chain.blocks[end] for end in ends), chain.layers)


def torchtitan(chain: Chain, micro_batches: int) -> Boundaries:  # noqa: ARG001
    """Distribute n + 2 blocks evenly; the first and the last stage each hold one that stands for its other layers."""
    if chain.stages == 1:
        return (0, chain.layers)
    blocks = len(chain.blocks) - 1
    counts = even_counts(blocks + 2, chain.stages)
    if counts[-1] < 1:
        raise NotApplicable(
            f"torchtitan needs one effective layer for every stage: {_named(chain)} and 2 for embedding and head "
            f"on {chain.stages} stages"
        )
    counts[0] -= 1
    counts[-1] -= 1
    return from_blocks(chain, counts)


def megatron(chain: Chain, micro_batches: int) -> Boundaries:  # noqa: ARG001
    """Use equal counts; add pseudo-layers for the loss, then also for the embedding, only if needed to reach them."""
    blocks, stages = len(chain.blocks) - 1, chain.stages
    for embedding, loss in ((0, 0), (0, 1), (1, 1)):
        share, remainder = divmod(blocks + embedding + loss, stages)
        if remainder == 0:
            counts = [share] * stages
            counts[0] -= embedding
            counts[-1] -= loss
            return from_blocks(chain, counts)
    raise NotApplicable(
        f"Megatron needs equal stages: {_named(chain)} do not divide by {stages}, nor do {blocks + 1} with the loss "
        f"counted, nor {blocks + 2} with loss and embedding"
    )


def _named(chain: Chain) -> str:
    """The number of blocks of a chain, or of layers where each is one."""
    blocks = len(chain.blocks) - 1
    return counted(blocks, "layer" if blocks == chain.layers else "block")


DEEPSPEED = Partitioner(
    "uniform-deepspeed",
    "equal layer counts, remainder to the first stages",
    "DeepSpeed, partition_method='uniform', as its code stands",
    deepspeed,
)
TORCHTITAN = Partitioner(
    "uniform-torchtitan",
    "equal numbers of blocks, one less on the first and the last stage",
    "torchtitan's default split with its default weights of 1 for embedding and head",
    torchtitan,
)
MEGATRON = Partitioner(
    "uniform-megatron",
    "equal numbers of blocks, or none",
    "Megatron-LM's default split, with account_for_loss and account_for_embedding set where that makes it divide",
    megatron,
)

PARTITIONERS = (DEEPSPEED, TORCHTITAN, MEGATRON)
