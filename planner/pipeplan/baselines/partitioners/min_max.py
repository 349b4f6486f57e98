"""Partitioners that solve the chain min-max problem exactly, by dynamic programming: PipeDream's and the textbook's.

With w[s, a, b] the load of stage s on layers a … b − 1 and t[s, c] that of link s at cut c, let V_s(b) be the least
possible maximum when stages 0 … s hold the first b layers::

    V_0(b) = w[0, 0, b]          V_s(b) = min over a of max( V_{s−1}(a), w[s, a, b], t[s − 1, a − 1] )
"""

import numpy as np

from pipeplan.baselines.partitioners.partitioner import (
    NotApplicable,
    Partitioner,
    by_matrices,
    prefix_sums,
    require_few_layers,
)
from pipeplan.costs.chain import UNLIMITED, Array, Boundaries, Chain


def smallest_maximum(times: Array, links: Array, *, empty: bool = False) -> tuple[int, Boundaries] | None:
    """Return the least maximum of all stage and link loads, and boundaries that reach it.

    Parameters
    ----------
    times : array of int, shape (S, n)
        Time of every layer on every stage; row sums must stay below 2⁶².
    links : array of int, shape (S − 1, n − 1)
        Load of link s for each cut.
    empty : bool
        Whether stages may be empty. The link loads of empty stages are not defined: give zeros then.

    Returns
    -------
    (int, boundaries) or None
        None if the stages cannot all be filled. Among equal optima every cut, from the last on, is the earliest.

    Notes
    -----
    O(S n²), in S steps on n × n matrices.
    """
    stages, n = times.shape
    require_few_layers(n)
    allowed = np.tri(n + 1, n + 1, 0 if empty else -1, dtype=bool)  # [b, a]: a stage of layers a … b − 1
    best: Array = np.full(n + 1, UNLIMITED)  # V_{s−1}(b), before the first stage only V(0) = 0
    best[0] = 0
    cuts = []
    for s in range(stages):
        prefix = prefix_sums(times[s])
        before = best
        if s:  # the link load counts at every boundary a except the ends of the chain
            before = best.copy()
            before[1:n] = np.maximum(best[1:n], links[s - 1])
        # [b, a]: the maximum with stage s on layers a … b − 1
        value = np.where(allowed, np.maximum(before[None, :], prefix[:, None] - prefix[None, :]), UNLIMITED)
        cuts.append(np.argmin(value, axis=1))
        best = value.min(axis=1)
    if best[n] >= UNLIMITED:
        return None
    edges = [n]  # boundaries, read back from the last
    for earliest in reversed(cuts):
        edges.append(int(earliest[edges[-1]]))
    return int(best[n]), tuple(reversed(edges))


def _pipedream(chain: Chain, micro_batches: int) -> Boundaries:  # noqa: ARG001 (an endless pipeline has no number)
    """Run PipeDream's dynamic programme for pipelines without replicas: one stage for every device, none empty.

    PipeDream minimises the slowest stage of an endless pipeline. A cut of a bytes takes 2 a / bandwidth (the
    activation, and its gradient back), which overlaps with the compute time of a stage instead of adding to it:

        minimise  max( F_s + B_s over stages s,  2 a_c / bandwidth over cuts c )

    Here a cut costs 2 send[s, c], the time on its actual link, and every stage is timed on its own device; on equal
    devices and links that is PipeDream's formula. The original counts transfers only when it is given an activation
    compression ratio (1.0 compresses nothing); they are always counted here.
    """
    found = smallest_maximum(chain.forward + chain.backward, 2 * chain.send)
    if found is None:
        raise NotApplicable(f"PipeDream fills every stage: {chain.layers} layers, {chain.stages} stages")
    return found[1]


PIPEDREAM = Partitioner(
    "pipedream",
    "exact least maximum of stage times and transfer times",
    "PipeDream's optimizer with --straight_pipeline, transfers counted, on a chain instead of a graph's antichains",
    _pipedream,
    by_matrices,
)


def _chain_minmax(chain: Chain, micro_batches: int) -> Boundaries:  # noqa: ARG001
    """Minimise the largest forward-and-backward time, each stage on its own device; ignore transfers and memory.

    A stage stays empty only where that is strictly better (a device too slow for any layer) or layers are too few.
    """
    times, free = chain.forward + chain.backward, np.zeros_like(chain.send)
    filled = smallest_maximum(times, free)
    relaxed = smallest_maximum(times, free, empty=True)
    assert relaxed is not None  # one stage can hold everything
    value, boundaries = relaxed
    return boundaries if filled is None or value < filled[0] else filled[1]


CHAIN_MINMAX = Partitioner(
    "chain-minmax",
    "exact least maximum of forward and backward time, unequal devices included",
    "the textbook dynamic programme for the linear partition problem, on the times of each stage's own device",
    _chain_minmax,
    by_matrices,
)

PARTITIONERS = (PIPEDREAM, CHAIN_MINMAX)
