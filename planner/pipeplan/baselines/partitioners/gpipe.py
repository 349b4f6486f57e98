"""Partitioners of GPipe (Lingvo) and torchgpipe: shares of cumulative FLOPs, and block partition of times."""

from bisect import bisect_left

import numpy as np

from pipeplan.baselines.partitioners.partitioner import (
    NotApplicable,
    Partitioner,
    first_device_times,
    prefix_sums,
    require_filled,
)
from pipeplan.costs.chain import Array, Boundaries, Chain


def gpipe(chain: Chain, micro_batches: int) -> Boundaries:  # noqa: ARG001
    """Compute `equal_shares` of the forward FLOPs."""
    return equal_shares(chain.forward_flops, chain.stages)


def equal_shares(flops: Array, stages: int) -> Boundaries:
    """Put layer i on stage ⌊S c_i⌋, with c_i the share of all FLOPs up to and including it; c_i = 1 on the last stage.

    ::

        layer                 0    1    2    3    4    5     6 equal layers, 4 stages
        share done after it  1/6  2/6  3/6  4/6  5/6  6/6
        times 4, floor        0    1    2    2    3    4 → 3 a layer that ends on a boundary goes to the stage behind it

    Exact: Python's integers, no rounding. Stages can be empty.
    """
    done = np.cumsum(flops.astype(object))
    total = done[-1]
    if total == 0:
        raise NotApplicable("GPipe divides by the forward FLOPs of the model, which are 0")
    stage_of = [min(int(part) * stages // total, stages - 1) for part in done]
    return (*(bisect_left(stage_of, s) for s in range(stages)), len(flops))


GPIPE = Partitioner(
    "gpipe",
    "equal shares of the cumulative forward FLOPs, rounded down",
    "GPipe, PartitionSequentialLayers in Lingvo, as its code stands",
    gpipe,
)


_NS_PER_US = 1000
"""torchgpipe measures in whole microseconds."""


def torchgpipe(chain: Chain, micro_batches: int) -> Boundaries:  # noqa: ARG001
    """Compute the block partition of forward and backward time on the first device, in whole microseconds."""
    require_filled(chain, "torchgpipe")
    return block_partition(first_device_times(chain) // _NS_PER_US, chain.stages)


def block_partition(weights: Array, blocks: int) -> Boundaries:
    """Move layers until max − min of the blocks is at most the largest layer (all less the smallest layer).

    The procedure follows Bárány and Grinberg, "Block partitions of sequences" (arXiv 1308.2452). It starts from equal
    counts, with the remainder on the last block, and moves one layer at a time towards the smallest block until the
    largest block exceeds the smallest one by no more than the largest layer::

        p = a largest block                  q = a smallest block, anywhere
        [ · · ][ · · · · ][ · · ][ · ]       a block between them, next to q, gives q its nearest layer
            q ◀─── h ... p                   if the giver was p itself, a largest block is sought again

    The weights are x_i − min x, as the original scales times to [0, 1]. Equal layers therefore have weight 0, and are
    never moved.

    Exact integers replace the original's quotients. Among largest blocks the last is taken, among smallest blocks the
    first (the paper takes the one nearest to the largest, which the original does not).

    Raises
    ------
    NotApplicable
        If the original does not end in a partition. With several smallest blocks it can take a layer from an empty
        block, after which two blocks hold the same layer; torchgpipe then refuses the result, or never ends.
    """
    n, shift = len(weights), int(weights.min())
    largest_layer = int(weights.max()) - shift
    sums = [int(total) for total in prefix_sums(weights - shift)]
    ends = [n // blocks * (block + 1) for block in range(blocks - 1)] + [n]

    def size(block: int) -> int:
        start, end = ends[block - 1] if block else 0, ends[block]
        return sums[end] - sums[start] if start < end else 0

    sizes = [size(block) for block in range(blocks)]
    seen: set[tuple[int, ...]] = set()  # the largest block and the ends determine all later moves
    while True:
        largest = max(sizes)
        p = blocks - 1 - sizes[::-1].index(largest)
        giver = None
        while giver != p:  # move one layer per round, until the largest block itself has given one
            smallest = min(sizes)
            q = sizes.index(smallest)
            if largest <= smallest + largest_layer:
                return _checked(ends)
            if p < q:
                giver = q - 1
                ends[giver] -= 1
            else:
                giver = q + 1
                ends[q] += 1
            if ends[q] > n or (p, *ends) in seen:
                raise NotApplicable(f"torchgpipe's procedure does not end: block {q} takes layers for ever")
            seen.add((p, *ends))
            sizes[giver], sizes[q] = size(giver), size(q)


def _checked(ends: list[int]) -> Boundaries:
    if ends != sorted(ends):
        raise NotApplicable(f"torchgpipe's blocks overlap: they end behind layers {', '.join(map(str, ends))}")
    return (0, *ends)


TORCHGPIPE = Partitioner(
    "torchgpipe",
    "block partition of the times less their minimum",
    "torchgpipe, balance_by_time, as its code stands; one measurement of every layer instead of a sum of repeats",
    torchgpipe,
)

PARTITIONERS = (GPIPE, TORCHGPIPE)
