"""Partitioners that solve the chain min-max problem exactly, by dynamic programming: PipeDream's and the textbook's.

With w[s, a, b] the load of stage s on layers a … b − 1 and t[s, c] that of link s at cut c, let V_s(b) be the least
possible maximum when stages 0 … s hold the first b layers::

    V_0(b) = w[0, 0, b]          V_s(b) = min over a of max( V_{s−1}(a), w[s, a, b], t[s − 1, a − 1] )
"""

import numpy as np

from pipeplan.baselines.partitioners.partitioner import NotApplicable, Partitioner, by_matrices, from_zero, require_room
from pipeplan.costs.chain import UNLIMITED, Array, Boundaries, Chain


def smallest_maximum(times: Array, links: Array, *, empty: bool = False) -> tuple[int, Boundaries] | None:
    """The least maximum of all stage and link loads, and boundaries that reach it.

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
        None if the stages cannot all be filled. Among equals every cut, from the last on, is the earliest.

    Notes
    -----
    O(S n²), in S steps on n × n matrices.
    """
    stages, n = times.shape
    require_room(n)
    allowed = np.tri(n + 1, n + 1, 0 if empty else -1, dtype=bool)  # [b, a]: a stage of layers a … b − 1
    best: Array = np.full(n + 1, UNLIMITED)
    best[0] = 0
    cuts = []
    for s in range(stages):
        prefix = from_zero(times[s])
        before = best
        if s:  # boundary a has a cut ahead of it unless it is an end of the chain
            before = best.copy()
            before[1:n] = np.maximum(best[1:n], links[s - 1])
        value = np.where(allowed, np.maximum(before[None, :], prefix[:, None] - prefix[None, :]), UNLIMITED)
        cuts.append(np.argmin(value, axis=1))
        best = value.min(axis=1)
    if best[n] >= UNLIMITED:
        return None
    edges = [n]
    for earliest in reversed(cuts):
        edges.append(int(earliest[edges[-1]]))
    return int(best[n]), tuple(reversed(edges))


def _pipedream(chain: Chain, micro_batches: int) -> Boundaries:  # noqa: ARG001 (an endless pipeline has no number)
    """PipeDream's dynamic programme for pipelines without replicas: one stage for every device, none empty.

    PipeDream minimises the slowest stage of an endless pipeline, where what crosses a cut of a bytes takes 2 a /
    bandwidth (the activation, and its gradient on the way back) and counts beside the compute time of a stage, not on
    top of it:

        minimise  max( F_s + B_s over stages s,  2 a_c / bandwidth over cuts c )

    Here a cut costs 2 send[s, c], the times of the link that it really lies on, and every stage is timed on its own
    device; on equal devices and links that is PipeDream's formula. The original counts transfers only when it is given
    an activation compression ratio (1.0 compresses nothing); they are always counted here.
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
    """Least largest forward-and-backward time, each stage on its own device; transfers and memory are ignored.

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
