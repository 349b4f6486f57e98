"""Finds out which layers draw random numbers while they train: by the operations that they call."""

from typing import Any

import torch

from pipeplan_executor.sharding.private import TorchDispatchMode


class Draws(TorchDispatchMode):
    """Sees every operation of the code inside ``with``, on tensors without values too.

    Torch marks the operations that draw. A dropout that is off, or of probability 0, calls none.

    Attributes
    ----------
    seen : bool
        Whether a marked one was called.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))
