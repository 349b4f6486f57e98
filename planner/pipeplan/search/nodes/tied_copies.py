"""Copies of shared weights in the allocation problem.

The allocation problem prices layers independently. Shared weights count for the first of their layers, so that no copy
is needed if all these layers are on one stage: a lower bound for every plan. If no stage can hold the first two of
them, the second one's stage certainly has a copy:

::

    embedding  block.0  …  block.95  head        larger than any device, so head's stage has a copy of embedding's
    ╰───────────── static bytes ────────╯        matrix, and both stages sum its gradients
"""

from dataclasses import replace

import numpy as np

from pipeplan.core.model import Tie
from pipeplan.costs.collectives import all_reduce
from pipeplan.search.space.space import Space
from pipeplan_formulations.allocation import ChainAllocation


def with_certain_copies(space: Space, problem: ChainAllocation) -> ChainAllocation:
    """Return the problem with the costs of the copies that every plan has."""
    index = {name: i for i, name in enumerate(space.model.names)}
    for tie in space.model.ties:
        first, second = (index[name] for name in tie.layers[:2])
        if _always_apart(space, problem, first, second):
            problem = _with_copy(space, problem, first, second, tie)
    return problem


def _always_apart(space: Space, problem: ChainAllocation, first: int, second: int) -> bool:
    """Return True if the two layers are on different stages in every plan.

    That is so if no device can hold both and all layers between, or if they are the first and last layer and there are
    several stages.
    """
    depths, ends = space.job.depths, (first, second) == (0, problem.layers - 1)
    if ends and (min(depths, default=1) > 1 or len(problem.last) > 1):
        return True
    between = problem.resident[:, :, first : second + 1].sum(axis=-1)
    return bool((between > problem.limit[:, None]).all())


def _with_copy(space: Space, problem: ChainAllocation, first: int, second: int, tie: Tie) -> ChainAllocation:
    """Add a copy on the stage of ``second``, and the reduction of its gradients with the stage of ``first``."""
    prices, size = space.prices, tie.parameters
    shares = np.array([prices.kept.shares(width * problem.unit) for width in problem.widths])
    update, reduce, resident = problem.update.copy(), problem.reduce.copy(), problem.resident.copy()
    kept = prices.kept
    resident[:, :, second] += size + kept.gradients_of(size) - (-kept.state_of(size) // shares) + tie.frozen
    if not size:  # frozen weights are copied and not summed
        return replace(problem, resident=resident)
    whole = np.array(
        [prices.table(each.kind, space.job.batch // problem.micro_batches).update[first] for each in space.classes]
    )
    of_kind = np.array([max(prices.kept.parameters(each.kind)[first], 1) for each in space.classes])
    update[:, :, second] += -(-(whole * size // of_kind)[:, None] // shares)
    links = {node.link for node in space.cluster.nodes} | {space.cluster.network}
    for w, width in enumerate(problem.widths):
        replicas = (width + problem.widths[0]) * problem.unit
        together = min(all_reduce(replicas, link).lower_bound(size) for link in links if link is not None)
        extra = np.maximum(together - problem.reduce_base[:, w], 0)  # a stage without a reduction pays no base
        reduce[:, w, second] += extra
        reduce[:, w, first] = np.maximum(reduce[:, w, first], extra)
    return replace(problem, update=update, reduce=reduce, resident=resident)
