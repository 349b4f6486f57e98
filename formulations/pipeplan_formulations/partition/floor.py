"""A lower bound of the chain partition problem that needs no solver."""

from fractions import Fraction
from math import ceil, prod
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pipeplan_formulations.partition.instance import ChainPartition


def lower_bound(problem: "ChainPartition") -> int:
    """A bound from each layer's fastest device, nothing recomputed.

    Bottleneck: (3) says w_s ≤ T N / M_s; the w_s together are at least all work, and some stage has the largest layer.
    Step: (4a) says w_s ≤ (T − Σ_{t<s} w_t) / M_s, so all work together is at most T (1 − Π (1 − 1 / M_s)); and
    (5) with s any stage gives T ≥ Σ w + (M_s − 1) max(F_s, B_s), so Σ F_s ≤ (T − Σ w) Σ 1 / (M_s − 1).
    """
    counts = [count.stage for count in problem.through]
    both = problem.forward + problem.backward
    work = int(both.min(axis=0).sum())
    column = np.array(counts)[:, None]
    if problem.objective == "bottleneck":
        share = ceil(Fraction(work) / sum(Fraction(problem.divisor, count) for count in counts))
        return max(share, int((-(-column * both // problem.divisor)).min(axis=0).max()))
    layer = int((column * (both if problem.weight is None else both + problem.weight)).min(axis=0).max())
    full = prod(counts)
    spread = -(-work * full // (full - prod(count - 1 for count in counts)))
    lanes = [0]
    for times in (problem.forward, problem.backward):
        lanes.append(int(((column - 1) * times).min(axis=0).max()))
        if min(counts) > 1:
            some = int(times.min(axis=0).sum())
            lanes.append(ceil(some / sum(Fraction(1, count - 1) for count in counts)))
    return max(layer, spread, work + max(lanes))
