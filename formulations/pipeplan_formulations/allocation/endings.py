r"""A step does not end before the second stage: what (3) to (6) miss where the first layer is a stage of its own.

They add E_0, the first stage's reduction and update, to a chain of actions that ends with its last backward. The chain
passes the second stage before, whose own ending runs beside the rest::

    stage 1   ━━B━━│━━━━━━━━ E_1 ━━━━━━━━│              E_0 small: an embedding is cut off to have its ending alone
    stage 0         ╌g╌B━━│━ E_0 ━│

So T ≥ chain − (g_0 + l_0 + B_0) + E_1 as well, for chains whose slowest stage is not the first. E_1 is no less than
that of layer 1 alone. To have it in problems whose only ending is E_0, part of layer 1's ending is booked on layer 0:
a first stage of both pays the same, one of layer 0 alone pays δ more, and nobody else's ending counts.
"""

from dataclasses import replace

import numpy as np

from pipeplan_formulations.allocation.instance import Array, ChainAllocation


def with_second_ending(problem: ChainAllocation) -> ChainAllocation:
    """The problem with δ on layer 0, if layer 0 is so light that no chain of it alone can be the slowest."""
    if problem.layers < 2 or problem.objective != "step" or not problem.cuts[0] or not _light(problem):
        return problem
    update, reduce = problem.update.copy(), problem.reduce.copy()
    second = int(_ending(problem, 1).min())
    back = int(problem.send_back[..., 0].max() + problem.latency.max())
    delta = np.maximum(second - back - _heaviest_backward(problem)[:, None] - _ending(problem, 0), 0)
    from_update = np.minimum(delta, update[..., 1])
    from_reduce = np.minimum(delta - from_update, np.maximum(reduce[..., 1] - 1, 0))  # which keeps its base
    update[..., 0] += from_update + from_reduce
    update[..., 1] -= from_update
    reduce[..., 1] -= from_reduce
    return replace(problem, update=update, reduce=reduce)


def _light(problem: ChainAllocation) -> bool:
    """Whether layer 0's own terms of (3) to (6), in any mode, stay below those of every stage with the largest B."""
    backward = _heaviest_backward(problem)
    own = int((problem.forward[:, 0] + backward).max() + problem.send[..., 0].max() + problem.send_back[..., 0].max())
    others = problem.backward[:, 1:].min(axis=0)
    widest, narrowest = problem.share(problem.widths[-1]), problem.share(problem.widths[0])
    return int(backward.max()) <= int(others.min()) and narrowest * own <= (widest - 1) * int(others.max())


def _heaviest_backward(problem: ChainAllocation) -> Array:
    """B of layer 0 by kind, recomputed if it may be."""
    again: Array = problem.forward[:, 0] if problem.recomputable[0] else np.zeros_like(problem.forward[:, 0])
    return problem.backward[:, 0] + again


def _ending(problem: ChainAllocation, layer: int) -> Array:
    """E of a stage of one layer, by kind and width."""
    reduce = problem.reduce[..., layer]
    ending: Array = problem.update[..., layer] + reduce + np.where(reduce > 0, problem.reduce_base, 0)
    return ending
