"""The one door to names of torch that have an underscore on their way.

Torch 2.13 documents both classes; where they are imported from may change.
"""

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["FakeTensorMode", "TorchDispatchMode"]
