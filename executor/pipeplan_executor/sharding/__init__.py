"""Tensor parallelism: a rank of the plan is a group of processes, each with a shard of every sharded parameter.

::

    plan's rank              0             1
    tensor-parallel rank 0   process 0 ──▶ process 2     ▶ a column: messages of stages, sums over replicas, losses;
                                 ║             ║           its ranks are the plan's, its tensors are whole
    tensor-parallel rank 1   process 1 ──▶ process 3     ║ a group: sums and gathers inside layers, as strategies say

A plan with teams says how many processes these are and what they share out; for other plans the caller does.

Megatron's sharding (Shoeybi et al., 2019, section 3) is two patterns: the first of two matrices by columns, the second
by rows; see docs/tensor-parallel.md.
"""

from pipeplan_executor.sharding.declared import TensorParallel

__all__ = ["TensorParallel"]
