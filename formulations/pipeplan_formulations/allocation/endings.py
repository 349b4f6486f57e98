r"""Lower bound from the second stage's ending, its gradient reduction and update, for a light first layer.

the bounds with E_0 add E_0, the first stage's ending, to a chain of actions that ends with its last backward. Before
that, the chain passes the second stage, whose own ending runs in parallel with the rest::

    stage 1   ━━B━━│━━━━━━━━ E_1 ━━━━━━━━│              E_0 small: the first stage is an embedding alone
    stage 0         ╌g╌B━━│━ E_0 ━│

So T ≥ chain − (g_0 + l_0 + B_0) + E_1 holds too, for chains whose slowest stage is not the first. E_1 is at least the
ending of layer 1 alone. These bounds have E_0 as their only ending, so that of a first stage of layer 0 alone is made
longer (`AllocationTables.second_ending`). It stays no longer than that of a first stage of more layers, which hides no
more of layer 1's ending than B_0.
"""

from dataclasses import replace

import numpy as np

from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.common.layer_tables import Array


def with_second_ending(problem: ChainAllocation) -> ChainAllocation:
    """The problem with a longer ending of layer 0 alone, if that is so light that its own chain is not the slowest."""
    if problem.layers < 2 or problem.objective != "step" or not problem.cuts[0] or not _light(problem):
        return problem
    # By kind and width: how much the second stage's ending outlasts the rest of the chain with E_0.
    second = int(_ending(problem, 1).min())  # without gathers, which come at its begin
    back = int(problem.send_back[..., 0].max() + problem.latency.max())
    own = _ending(problem, 0) + _alone(problem.gather[..., 0], problem.gather_base)
    delta = np.maximum(second - back - _heaviest_backward(problem)[:, None] - own, 0)
    return replace(problem, second_ending=delta)


def _light(problem: ChainAllocation) -> bool:
    """True if layer 0's own terms of these bounds, in any mode, are below those of every stage with the largest B."""
    backward = _heaviest_backward(problem)
    own = int((problem.forward[:, 0] + backward).max() + problem.send[..., 0].max() + problem.send_back[..., 0].max())
    others = problem.of_layers("service").backward[:, 1:].min(axis=0)
    widest, narrowest = problem.share(problem.widths[-1]), problem.share(problem.widths[0])
    return int(backward.max()) <= int(others.min()) and narrowest * own <= (widest - 1) * int(others.max())


def _heaviest_backward(problem: ChainAllocation) -> Array:
    """B of layer 0 by kind, recomputation included if it is allowed."""
    again: Array = problem.forward[:, 0] if problem.recomputable[0] else np.zeros_like(problem.forward[:, 0])
    return problem.backward[:, 0] + again


def _ending(problem: ChainAllocation, layer: int) -> Array:
    """E of a stage of one layer without gathers, by kind and width."""
    ending: Array = problem.update[..., layer] + _alone(problem.reduce[..., layer], problem.reduce_base)
    return ending


def _alone(times: Array, base: Array) -> Array:
    """What is exposed of a collective of one layer: all of it."""
    return times + np.where(times > 0, base, 0)
