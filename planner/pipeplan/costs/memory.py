"""What stays on a device for a whole step: parameters, gradients, optimiser state."""

from pipeplan.core.errors import InputError
from pipeplan.core.job import OPTIMIZER_STATE

ITEM_SIZE = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one number."""


def item_size(dtype: str) -> int:
    """Bytes of one number of the format ``dtype``."""
    if dtype not in ITEM_SIZE:
        raise InputError(f"number format {dtype!r} is not known; choose from {', '.join(ITEM_SIZE)}")
    return ITEM_SIZE[dtype]


def optimizer_bytes(parameters: int, dtype: str, optimizer: str) -> int:
    """Bytes of optimiser state for ``parameters`` bytes of parameters.

    Each state tensor is kept in single precision or better. Parameters in a 16-bit format get a single-precision
    master copy too, so that Adam in mixed precision comes to 2 + 2 + 12 = 16 bytes a parameter
    (Rajbhandari et al., ZeRO, 2020, section 3.1).
    """
    size = item_size(dtype)
    count = parameters // size
    master = 4 * count if size < 4 else 0
    return master + OPTIMIZER_STATE[optimizer] * count * max(size, 4)
