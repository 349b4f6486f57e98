"""What messages carry, and how early they are expected.

A message whose receive is not posted when it is sent is first announced, and travels when it is asked for: on busy
cores that takes gloo longer than a small message itself. So small ones are expected early. For the others the way there
and back is short beside the message, and a buffer that waits costs memory.
"""

from collections.abc import Sequence

from pipeplan.core.schedule import Kind
from pipeplan_executor.runtime.program.lower import Message
from pipeplan_executor.stages.shapes import Tensors
from pipeplan_executor.stages.stage import Boundary

SMALL = 1 << 20
"""Bytes of the largest message that is expected early: few of them wait at a time, beside a process of 200 MiB."""


def carried(message: Message, boundaries: Sequence[Boundary]) -> Tensors:
    """The outputs of the earlier one of its two stages, or the gradients that they want; on the meta device."""
    if message.made.kind is Kind.FORWARD:
        return boundaries[message.made.stage].outputs
    return tuple(tensor for tensor in boundaries[message.reads.stage].outputs if tensor.requires_grad)


def is_small(message: Message, boundaries: Sequence[Boundary]) -> bool:
    """Whether a buffer for the message may wait."""
    return sum(int(tensor.nbytes) for tensor in carried(message, boundaries)) <= SMALL
