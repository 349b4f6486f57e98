"""Layers on a mesh of processes with several axes, each operator by its strategy (`pipeplan.costs.sharding`).

A layer is run call by call, as its operators were found (`pipeplan.frontend.operators.program`), on plain tensors: the
parts that this process has. What the plan moves is moved, and nothing else::

    tensor as it is held ──▶ moved to the placements that an operator needs ──▶ the operator, on parts
                                     ──▶ moved to the placements in which its result is held

Gradients go the way back through the same moves, each to the placements that the plan names. So there is no dispatch
that could move anything by itself.
"""
