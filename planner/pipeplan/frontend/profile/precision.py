"""Mixed precision: weights stay as they are, and matrix products run in 16 bits (torch.autocast)."""

from contextlib import AbstractContextManager, nullcontext

import torch

from pipeplan.core.errors import InputError

FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""By the name that users give. Only the gradients of fp16 have to be scaled."""


def autocast(precision: str | None, device: torch.device) -> AbstractContextManager[object]:
    """Around a forward and its loss; None changes nothing.

    Raises
    ------
    InputError
        If there is no such precision.
    """
    if precision is None:
        return nullcontext()
    if precision not in FORMATS:
        raise InputError(f"precision {precision!r} is not known; choose from {', '.join(FORMATS)}, or None")
    return torch.autocast(device.type, FORMATS[precision])  # type: ignore[no-any-return]
