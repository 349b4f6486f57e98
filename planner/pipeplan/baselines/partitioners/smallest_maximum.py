"""The plain chain min-max problem, solved exactly by a dynamic programme.

With w[s, a, b] the load of stage s on layers a … b − 1 and t[s, c] that of link s at cut c, let V_s(b) be the least
possible maximum when stages 0 … s hold the first b layers::

    V_0(b) = w[0, 0, b]          V_s(b) = min over a of max( V_{s−1}(a), w[s, a, b], t[s − 1, a − 1] )
"""

import numpy as np

from pipeplan.baselines.partitioners.balancer import from_zero, require_room
from pipeplan.costs.chain import UNLIMITED, Array, Boundaries


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
