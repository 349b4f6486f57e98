"""Tokens of the tensors between layers, along which these may be split.

"Sequence parallelism" of Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 2022,
section 4.2.2.
"""

from collections.abc import Sequence

from torch import Tensor

AXIS = 1
"""The axis of tokens, behind that of samples."""


def stream_of(tensors: Sequence[Tensor]) -> int | None:
    """Return which of the tensors between two layers may be split along tokens, by number.

    It is the only one, or the only one with a gradient; masks and positions that pass beside it are whole.
    """
    own = [n for n, tensor in enumerate(tensors) if len(tensors) == 1 or tensor.requires_grad]
    return own[0] if len(own) == 1 else None
