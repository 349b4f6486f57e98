"""Tensor parallelism: a rank of the plan is a group of processes, each with a shard of every sharded parameter.

::

    plan's rank              0             1        within a column: messages between stages, gradients of replicas,
    tensor-parallel rank 0   process 0 ─▶ process 2 losses. The column's ranks are the plan's. Its tensors are whole.
                             ║             ║
    tensor-parallel rank 1   process 1 ─▶ process 3 within a tensor-parallel group: sums and gathers inside layers, by
                                                    torch's DTensor

Megatron's sharding (Shoeybi et al., 2019, section 3) is two patterns: the first of two matrices by columns, the second
by rows; see docs/tensor-parallel.md.
"""

from pipeplan_executor.sharding.declared import TensorParallel

__all__ = ["TensorParallel"]
