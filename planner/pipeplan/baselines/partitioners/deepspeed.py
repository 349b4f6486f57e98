"""DeepSpeed's dynamic programme, which minimises the range of the stage weights: by parameters, and by time.

State (j, i) holds one partition of the first i layers into j stages: the one with the least difference of largest and
smallest weight, its last boundary as late as possible among equals. One partition per state is not enough to find the
smallest range overall, and the smallest range is not the smallest maximum; both are properties of the original.

DeepSpeed balances parameters by default. It offers no balance by measured times (``'profile'`` is missing).
"""

import numpy as np

from pipeplan.baselines.partitioners.partitioner import (
    Partitioner,
    by_matrices,
    first_device_times,
    from_counts,
    prefix_sums,
    require_few_layers,
)
from pipeplan.baselines.partitioners.uniform import even_counts
from pipeplan.costs.chain import UNLIMITED, Array, Boundaries, Chain


def smallest_range(weights: Array, stages: int) -> Boundaries:
    """Return boundaries of S non-empty stages with a small range of weights; even counts if n ≤ S.

    Parameters
    ----------
    weights : array of int, shape (n,)
        Not negative; their sum must stay below 2⁶².

    Notes
    -----
    ``partition_balanced`` of DeepSpeed since 2023 (pull request 4312). O(S n²), in S steps on n × n matrices.
    """
    n = len(weights)
    if n <= stages:
        return from_counts(even_counts(n, stages))
    require_few_layers(n)
    prefix = prefix_sums(weights)
    filled = np.tri(n + 1, n + 1, -1, dtype=bool)  # [i, k]: a last stage of layers k … i − 1
    last = np.where(filled, prefix[:, None] - prefix[None, :], UNLIMITED)
    # of the chosen partition of the first i layers: the largest and the smallest weight of its stages
    largest: Array = np.full(n + 1, UNLIMITED)
    largest[0] = 0
    smallest: Array = np.full(n + 1, UNLIMITED)
    cuts = []
    for _ in range(stages):  # add one stage; [i, k]: the range with a last stage of layers k … i − 1
        top, bottom = np.maximum(largest[None, :], last), np.minimum(smallest[None, :], last)
        spread = np.where(top < UNLIMITED, top - bottom, UNLIMITED)
        latest = n - np.argmin(spread[:, ::-1], axis=1)  # argmin finds the first of equals, and the original the last
        rows = np.arange(n + 1)
        largest, smallest = top[rows, latest], bottom[rows, latest]
        cuts.append(latest)
    edges = [n]  # boundaries, read back from the last
    for latest in reversed(cuts):
        edges.append(int(latest[edges[-1]]))
    return tuple(reversed(edges))


def _by_parameters(chain: Chain, micro_batches: int) -> Boundaries:  # noqa: ARG001
    """Minimise the range of parameter bytes (parameter counts times one element size).

    DeepSpeed builds each layer to count its parameters, so weights that layers share count for each of them.
    """
    weights = chain.parameters.copy()
    for shared in chain.shared:
        weights[list(shared.layers[1:])] += shared.parameters
    return smallest_range(weights, chain.stages)


PARAMETERS = Partitioner(
    "parameters",
    "smallest range of parameters over the stages",
    "DeepSpeed, partition_method='parameters' (its default), as its code stands since 2023",
    _by_parameters,
    by_matrices,
)


def _by_time(chain: Chain, micro_batches: int) -> Boundaries:  # noqa: ARG001
    """Minimise the range of forward and backward time on the first device."""
    return smallest_range(first_device_times(chain), chain.stages)


TIME = Partitioner(
    "deepspeed-time",
    "smallest range of forward and backward time over the stages",
    "DeepSpeed's partition_balanced, given times instead of parameter counts",
    _by_time,
    by_matrices,
)

PARTITIONERS = (PARAMETERS, TIME)
