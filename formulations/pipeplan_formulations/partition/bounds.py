"""Closed-form bounds of the chain partition problem: a lower bound, and the largest number that can occur."""

from fractions import Fraction
from math import ceil, prod

import numpy as np

from pipeplan_formulations.common.layer_tables import Array
from pipeplan_formulations.partition.tables import PartitionTables


def lower_bound(problem: PartitionTables) -> int:
    """A lower bound on the objective, with each layer on its fastest device and nothing recomputed.

    Bottleneck: w_s ≤ T N / M_s. The sum of all w_s is at least all work, and some stage has the largest layer.
    Step: by the way-back bound, w_s ≤ (T − ρ Σ_{t<s} w_t) / M_s, so all work is at most T (1 − Π (1 − ρ / M_s)) / ρ,
    where a stage ahead counts at least a part ρ of its own work. By the services bound for any stage s,
    T ≥ Σ w + (M_s − 1) max(F_s, B_s), so Σ F_s ≤ (T − Σ w) Σ 1 / (M_s − 1).
    """
    counts: list[int] = [count.stage for count in problem.through]
    both = problem.forward + problem.backward
    work = int(both.min(axis=0).sum())
    column = np.array(counts)[:, None]
    if problem.endless:
        share = ceil(Fraction(work) / sum(Fraction(problem.divisor, count) for count in counts))
        return max(share, int((-(-column * both // problem.divisor)).min(axis=0).max()))
    # Largest layer alone, then all work spread over the stages by the way-back bound.
    layer = int((column * (both if problem.weight is None else both + problem.weight)).min(axis=0).max())
    spread = _spread(work, counts, _least_share(problem, both))
    # Services by forward and backward times: the largest layer alone, then all layers spread over the stages.
    lanes = [0]
    for times in problem.of_layers("service"):
        lanes.append(int(((column - 1) * times).min(axis=0).max()))
        if min(counts) > 1:
            some = int(times.min(axis=0).sum())
            lanes.append(ceil(some / sum(Fraction(1, count - 1) for count in counts)))
    passing = problem.of_layers("trip")
    return max(layer, spread, int(passing.work.min(axis=0).sum()) + max(lanes))


def _spread(work: int, counts: list[int], share: Fraction) -> int:
    """The least T at which all work fits on the stages by the way-back bound, with ρ = ``share``."""
    if not share:
        return ceil(work / sum(Fraction(1, count) for count in counts))
    part, whole = share.as_integer_ratio()
    full = prod(whole * count for count in counts)
    return -(-work * part * full // (whole * (full - prod(whole * count - part for count in counts))))


def _least_share(problem: PartitionTables, work: Array) -> Fraction:
    """ρ: at most what any layer's work ahead is of its own ``work``."""
    if "ahead" not in problem.apart:
        return Fraction(1)
    way = problem.of_layers("ahead")
    some = work > 0
    shares = way.work[some], work[some]
    return min((Fraction(int(a), int(b)) for a, b in zip(*shares, strict=True)), default=Fraction(1))


def largest(problem: PartitionTables) -> int:
    """An upper bound on the objective and on every intermediate sum of the formulations.

    Every layer runs on its slowest device, recomputed, with its slowest sends, M times. The result determines which
    integers a solver needs.
    """
    again = np.where(problem.bytes.useful, problem.forward, 0)
    tables = [problem.forward, problem.backward + again, problem.update]
    tables += [problem.reduce, problem.gather, *([] if problem.weight is None else [problem.weight])]
    # Every stage may pay the bases of its sums and of its gathers, and its part of each tie.
    tied = sum(sum(tie.update) + sum(tie.reduce) + sum(tie.home) for tie in problem.ties)
    once = problem.stages * int((problem.reduce_base + problem.gather_base).max()) + tied
    once += max(int(count.slower) for count in problem.through)
    work = sum(int(table.max(axis=0).sum(dtype=object)) for table in tables)
    links = (problem.send, problem.send_back, problem.link)
    sends = sum(int(table.max(axis=1).sum(dtype=object)) for table in links if table.size)
    shared = sum(int(row.max(initial=0)) for w in problem.resources for row in (w.busy, w.beyond) if row is not None)
    step = (problem.micro_batches + 1) * (work + sends) + once + shared + 2 * int(problem.latency.sum(dtype=object))
    return max(
        [
            step,
            *(abs(path.constant) + path.most_surplus + path.largest * (work + sends + once) for path in problem.paths),
        ]
    )
