"""The pipeline that a partition of a chain makes: times, bytes, transfers and reductions of its stages."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from pipeplan.core.cluster import Cluster
from pipeplan.core.job import SHARDED
from pipeplan.core.pipeline import Bucket, Hop, Pipeline, Placement, Stage, Times, exposed
from pipeplan.core.shared_weights import merge_overlapping
from pipeplan.core.slicing import PASSES
from pipeplan.costs.buckets import best_buckets, given_buckets
from pipeplan.costs.chain import Boundaries, Chain
from pipeplan.costs.in_turn import Holders, gathered_in_turn, summed_in_turn
from pipeplan.costs.network import together, transfers


def assemble(
    chain: Chain,
    cluster: Cluster,
    boundaries: Boundaries,
    recompute: Sequence[Sequence[int]] | None = None,
    buckets: Sequence[Sequence[int]] | None = None,
    gather_buckets: Sequence[Sequence[int] | None] | None = None,
    placement: Placement = (),
) -> Pipeline:
    """Build the pipeline of a partition of the chain.

    Parameters
    ----------
    recompute : sequence of sequence of int, optional
        For each stage the layers that are recomputed in the backward; none by default.
    buckets, gather_buckets : sequence of sequence of int, optional
        For each stage the numbers of layers of its buckets, its last layers first; by default the best ones, also of
        stages whose entry is None.
    placement : tuple of tuple of int, optional
        The ranks of each stage, of which several stages may share some; by default each stage has ranks of its own, in
        the order of the stages.
    """
    spans = [(s, a, b) for s, (a, b) in enumerate(pairwise(boundaries))]
    again = [set(recompute[s]) if recompute is not None else set() for s, _, _ in spans]
    groups = chain.groups
    hops = [_hop(chain, cluster, s, int(chain.boundary[s, b - 1])) for s, _, b in spans[:-1]]
    homes = placement or own_ranks([len(group) for group in groups])
    stage_on = {rank: s for s, ranks in enumerate(homes) for rank in ranks}
    kept = Holders.of(chain, boundaries, homes)
    sums = [together(cluster, groups, each.stages, each.weights.parameters) for each in kept]
    shared = list(zip(kept, sums, strict=True))
    sizes = [tuple(None if each is None else each[s] for each in (buckets, gather_buckets)) for s, _, _ in spans]
    stages = tuple(
        _stage(chain, spans[s], again[s], shared, total, most, sizes[s])
        for s, (total, most) in enumerate(zip(*_of_spans(chain, boundaries), strict=True))
    )
    if placement:
        hides = [int(chain.hides[s, a:b].sum()) for s, a, b in spans]
        stages = gathered_in_turn(stages if chain.halves else summed_in_turn(stages, placement, hides), placement)
    return Pipeline(
        stages=stages,
        placement=homes,
        transfers=tuple(onward for onward, _ in hops),
        returns=tuple(back for _, back in hops),
        overlap=chain.overlap,
        runtime=tuple(int(chain.runtime[stage_on[rank]]) for rank in range(len(stage_on))),
        limits=tuple(int(chain.limit[stage_on[rank]]) for rank in range(len(stage_on))),
        tied=merge_overlapping(each.stages for each in kept if each.weights.parameters and len(each.stages) > 1),
        coupled=chain.zero >= SHARDED,
    )


def own_ranks(replicas: Sequence[int]) -> Placement:
    """Ranks of stages that share none, counted up from stage 0, for the number of replicas of each."""
    return tuple(tuple(range(a, b)) for a, b in pairwise(accumulate(replicas, initial=0)))


def _hop(chain: Chain, cluster: Cluster, link: int, size: int) -> Hop:
    """Return the transfers of ``size`` bytes over a link of the chain, in both directions."""
    key = link, size
    if key not in chain.hops:
        source, target = chain.groups[link], chain.groups[link + 1]
        chain.hops[key] = transfers(cluster, source, target, size), transfers(cluster, target, source, size)
    return chain.hops[key]


REPEATING = ("backward", "input_gradient")
"""Passes that repeat the forward of a recomputed layer."""
SUMMED = (*PASSES, "update", "reduce", "resident", "saved")
LARGEST = ("workspace", "forward_workspace")


def _of_spans(chain: Chain, boundaries: Boundaries) -> tuple[list[list[int]], list[list[int]]]:
    """Return for each stage the sums of its layers in each table of `SUMMED`, and the maxima in those of `LARGEST`."""
    stage, layer = np.repeat(np.arange(len(boundaries) - 1), np.diff(boundaries)), np.arange(boundaries[-1])
    begins = boundaries[:-1]
    totals = [np.add.reduceat(getattr(chain, name)[stage, layer], begins) for name in SUMMED]
    maxima = [np.maximum.reduceat(getattr(chain, name)[stage, layer], begins) for name in LARGEST]
    return np.array(totals).T.tolist(), np.array(maxima).T.tolist()


def _stage(
    chain: Chain,
    span: tuple[int, int, int],
    again: set[int],
    shared: Sequence[tuple[Holders, int]],
    totals: list[int],
    most: list[int],
    sizes: tuple[Sequence[int] | None, ...],
) -> Stage:
    """Return the stage of layers a … b − 1.

    Parameters
    ----------
    span : (int, int, int)
        The stage's number, a and b.
    again : set of int
        Layers that are recomputed.
    shared : sequence of (Holders, int)
        Shared weights, and the nanoseconds of each one's gradient sum.
    totals, most : list of int
        The stage's row of each list of `_of_spans`.
    sizes : (sequence of int or None, sequence of int or None)
        Numbers of layers of its buckets of sums, and of gathers; None for the best ones.
    """
    s, a, b = span
    forward, backward, input_gradient, weight_gradient, update, reduce, resident, saved = totals
    workspace, forward_workspace = most
    copies, passes = [own.weights for own, _ in shared if own.copied(s)], chain.passes[s]
    if passes is not None:
        forward, backward = passes.of(a, b)
    reduce, buckets = _reduction(chain, span, shared, reduce + int(chain.reduce_base[s]) if reduce else 0, sizes[0])
    gather, gather_buckets = _gather(chain, span, sum(int(shared.gather[s]) for shared in copies), sizes[1])
    received = int(chain.received[s - 1, a - 1]) if a else 0
    input_gradient += _without_parts(chain, span)
    late = int(chain.lost[s, a:b].sum()) if chain.staleness else 0  # beside sums of the batch before
    # Recomputed layers: added time, bytes not stored, bytes rebuilt while the backward runs.
    repeated = sum(int(chain.forward[s, i]) for i in again)
    times = forward, backward + repeated, input_gradient + repeated, weight_gradient
    freed = sum(int(chain.saved[s, i] - chain.output[s, i]) for i in again)
    rebuilt = [int(chain.again[s, i]) for i in again]
    forwards, backwards, inputs, weights = _slice_times(chain, span, again, times)
    return Stage(
        forward=forwards,
        backward=backwards,
        input_gradient=inputs,
        weight_gradient=weights,
        update=update + sum(int(shared.update[s]) for shared in copies) + late,
        gather=gather,
        reduce=reduce,
        resident=resident + sum(int(shared.resident[s]) for shared in copies),
        held=saved + received - freed,
        workspace=max(workspace, *rebuilt, 0),
        forward_workspace=forward_workspace,
        buckets=buckets,
        gather_buckets=gather_buckets,
    )


def _slice_times(chain: Chain, span: tuple[int, int, int], again: set[int], totals: tuple[int, ...]) -> Sequence[Times]:
    """Return the times of the slices of a stage for each of `PASSES`, given those of all of them together."""
    s, a, b = span
    if chain.slices == 1:
        return totals
    found: list[Times] = []
    for number, (name, total) in enumerate(zip(PASSES, totals, strict=True)):
        repeats = sorted(again) if name in REPEATING else []
        if chain.unlike_slices is not None:
            each, forward = chain.unlike_slices[s][number], chain.unlike_slices[s][0]
            found.append(tuple((each[:, a:b].sum(axis=1) + forward[:, repeats].sum(axis=1)).tolist()))
        else:
            first = getattr(chain, f"first_{name}")[s, a:b].sum() + chain.first_forward[s, repeats].sum()
            found.append(_of_slices(total, int(first), chain.slices))
    return found


def _of_slices(total: int, first: int, count: int) -> Times:
    """Return the time of each of ``count`` slices, which grows by the same step from slice to slice."""
    step = 2 * (total - count * first) // (count * (count - 1))
    return tuple(first + k * step for k in range(count))


def _without_parts(chain: Chain, span: tuple[int, int, int]) -> int:
    """Nanoseconds of backwards of layers whose two parts are not known, beside such as are: all is in the first one."""
    s, a, b = span
    return int(chain.whole[s, a:b].sum()) if chain.slices == 1 and chain.parts[s, a:b].any() else 0


def _gather(
    chain: Chain, span: tuple[int, int, int], copies: int, sizes: Sequence[int] | None
) -> tuple[int, tuple[Bucket, ...]]:
    """Return for how long a stage's first forwards wait for parameters, in nanoseconds, and the buckets of gathers.

    ``copies``: nanoseconds of the gathers of weights that other stages have too. They come before all others.
    """
    s, a, b = span
    passes = chain.passes[s]
    if passes is not None:
        return passes.first_forward(a, b), ()
    times, hides, base = chain.gather[s, a:b].tolist(), chain.gather_hides[s, a:b].tolist(), int(chain.gather_base[s])
    if not any(times) or not any(hides):
        return sum(times) + base * any(times) + copies, ()
    own = tuple(times), tuple(hides), base
    buckets = best_buckets(*own) if sizes is None else given_buckets(*own, sizes)
    if copies:
        buckets = (*buckets, Bucket(0, 0, copies))
    return exposed(buckets), buckets


def _reduction(
    chain: Chain,
    span: tuple[int, int, int],
    shared: Sequence[tuple[Holders, int]],
    alone: int,
    sizes: Sequence[int] | None,
) -> tuple[int, tuple[Bucket, ...]]:
    """Return what a stage still sums behind its last backward, in nanoseconds, and its buckets.

    Parameters
    ----------
    alone : int
        Nanoseconds to sum all gradients of the stage's own layers at once.

    Notes
    -----
    What computation beside collectives loses is behind all sums.

    Weights that another stage copies are summed by themselves, behind the last backward. The bounds count them as if
    their part of ``alone`` were still hidden, or saved (`SharedWeights.home`); the larger of the two counts here.
    """
    s, a, b = span
    copied = sum(time for own, time in shared if own.copied(s))  # for copies of other stages' weights
    left = [(own.weights, time) for own, time in shared if own.left(s)]  # for weights of its own that others copy
    behind = copied + sum(int(weights.home(np.array(time))[s]) for weights, time in left)
    lost = 0 if chain.staleness else int(chain.lost[s, a:b].sum())
    if not chain.overlaps or not alone:
        return alone + behind + lost, ()
    times, hides, base = chain.reduce[s, a:b].tolist(), tuple(chain.hides[s, a:b].tolist()), int(chain.reduce_base[s])

    def of(times: list[int], sizes: Sequence[int] | None) -> tuple[Bucket, ...]:
        own = tuple(times), hides, base
        return best_buckets(*own) if sizes is None else given_buckets(*own, sizes)

    buckets = of(times, None if left else sizes)  # given ones are without what other stages copy
    total = exposed(buckets) + behind
    if left:
        for weights, _ in left:
            first = weights.layers[0] - a
            times[first] = max(times[first] - int(weights.reduced[s]), 0)
        buckets = of(times, sizes)
        total = max(total, exposed(buckets) + copied + sum(time for _, time in left))
    total += lost
    if buckets and total > exposed(buckets):
        buckets = (*buckets, Bucket(0, 0, total - exposed(buckets)))
    return total, buckets
