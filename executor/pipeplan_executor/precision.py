"""Mixed precision: weights stay as they are, and matrix products run in 16 bits (torch.autocast)."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from pipeplan.errors import InputError
from pipeplan_executor.private import FakeTensorMode

FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""By the name that `Pipeline` takes. Only the gradients of fp16 have to be scaled."""


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


@contextmanager
def pretended(precision: str | None, device: torch.device) -> Iterator[torch.device]:
    """Around code on tensors without values: the device to make them on, so that they get the formats of a real run.

    Autocast does nothing on the meta device, hence on a pretended one.
    """
    if precision is None:
        yield torch.device("meta")
        return
    with FakeTensorMode(), autocast(precision, device):
        yield device
