"""Tensor parallelism: a rank of the plan is a team of processes, each of which holds a part of every cut parameter.

::

    plan's rank       0             1              between ranks, replicas, losses: within a column, whose ranks are the
    member 0     process 0 ──▶ process 2           plan's; what passes there is whole on every member
                     ║             ║
    member 1     process 1 ──▶ process 3           inside layers, sums and gathers: within a team, by torch's DTensor

Megatron's cuts (Shoeybi et al., 2019, section 3) are two patterns: the first of two matrices by columns, the second by
rows; see docs/tensor-parallel.md.
"""

from pipeplan_executor.sharding.declared import TensorParallel

__all__ = ["TensorParallel"]
