"""The one door of this room to parts of torch that are not public: a new release may move them.

`torch.export` hands out fake tensors, trees and operators, but their modules have names with underscores.
"""

from typing import Any

from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree


def memory_of(tensor: Tensor) -> Any:
    """A key of the memory that a tensor lies in, with or without values; the same for views of one another."""
    return tensor.untyped_storage()._cdata


__all__ = ["FakeTensor", "FakeTensorMode", "OpOverload", "memory_of", "pytree"]
