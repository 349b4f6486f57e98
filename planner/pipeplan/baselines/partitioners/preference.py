"""Which schedule BaPipe would choose for a partition, as we understand it.

=============  =========================================================  =========
overlap        condition                                                  family
=============  =========================================================  =========
none           —                                                          1f1b-sno
copy           memory holds the doubled warm-up of 2(S − s) − 1           1f1b-so
copy           it does not                                                1f1b-sno
stream         a tensor takes longer to send than its forward takes,      fbp-as
               and memory holds 2(S − s) in flight
stream         otherwise                                                  1f1b-as
=============  =========================================================  =========
"""

from itertools import pairwise

from pipeplan.baselines.partitioners.room import stage_bytes
from pipeplan.core.cluster import Overlap
from pipeplan.costs.chain import Boundaries, Chain


def preferred_family(chain: Chain, micro_batches: int, boundaries: Boundaries) -> str:
    """The name of the schedule family for these boundaries; empty stages are left out first."""
    kept = [s for s, (a, b) in enumerate(pairwise(boundaries)) if a < b]
    row = chain.select(tuple(kept))
    edges = (0, *(boundaries[s + 1] for s in kept))
    if row.overlap is Overlap.NONE:
        return "1f1b-sno"
    if row.overlap is Overlap.COPY:
        return "1f1b-so" if _fits(row, micro_batches, edges, spare=-1) else "1f1b-sno"
    link_bound = any(
        int(row.send[s, b - 1]) > int(row.forward[s, a:b].sum()) for s, (a, b) in enumerate(pairwise(edges[:-1]))
    )
    return "fbp-as" if link_bound and _fits(row, micro_batches, edges, spare=0, lanes=2) else "1f1b-as"


def _fits(row: Chain, micro_batches: int, edges: Boundaries, spare: int, lanes: int = 1) -> bool:
    """Whether memory holds min(M, 2(S − s) + spare) micro-batches on every stage, with a workspace for every lane."""
    in_flight = [min(micro_batches, 2 * (row.stages - s) + spare) for s in range(row.stages)]
    need = stage_bytes(row, edges, in_flight)
    second = [(lanes - 1) * int(row.forward_workspace[s, a:b].max()) for s, (a, b) in enumerate(pairwise(edges))]
    return all(used + more <= int(limit) for used, more, limit in zip(need, second, row.limit, strict=True))
