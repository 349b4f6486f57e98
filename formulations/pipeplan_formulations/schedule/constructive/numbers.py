"""The operations of a problem as numbers, for loops that look at each of them thousands of times.

::

    number = (kind · stages + stage) · micro_batches + micro_batch        kind 0, 1, 2 for F, I, W
"""

from collections.abc import Sequence
from typing import TypeAlias

from pipeplan_formulations.schedule.instance import Kind, Op, Orders, PipelineSchedule

Numbered: TypeAlias = list[list[int]]
"""Of every device its operations in order."""

KINDS: tuple[Kind, ...] = ("F", "I", "W")
F, I, W = range(3)  # noqa: E741


def number(problem: PipelineSchedule, kind: int, stage: int, micro_batch: int) -> int:
    """The number of an operation."""
    return (kind * problem.stages + stage) * problem.micro_batches + micro_batch


def to_orders(problem: PipelineSchedule, numbered: Sequence[Sequence[int]]) -> Orders:
    """Numbers to operations."""

    def op(number: int) -> Op:
        rest, micro_batch = divmod(number, problem.micro_batches)
        kind, stage = divmod(rest, problem.stages)
        return Op(KINDS[kind], stage, micro_batch)

    return tuple(tuple(op(number) for number in order) for order in numbered)


def to_numbers(problem: PipelineSchedule, orders: Orders) -> Numbered:
    """Operations to numbers."""
    return [[number(problem, KINDS.index(op.kind), op.stage, op.micro_batch) for op in order] for order in orders]
