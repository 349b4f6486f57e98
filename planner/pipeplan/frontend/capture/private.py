"""Uses of torch's private parts, which a new release may move, and copies of modules without values.

`torch.export` hands out fake tensors, trees and operators, but their modules have names with underscores.
"""

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.function import BackwardCFunction
from torch.nn.modules import module as module_hooks
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as no_dispatch_modes
from torch.utils.checkpoint import CheckpointFunction

from pipeplan.core.errors import InputError


@contextmanager
def quietly_exporting(exports: bool) -> Iterator[None]:
    """Context without torch's log of operations that fail on tensors without values.

    ``exports``: code in it takes itself to be exported, and may avoid kernels that need a device.
    """
    log, compiler = logging.getLogger("torch._subclasses.fake_tensor"), torch.compiler
    level, flags = log.level, {name: getattr(compiler, name, None) for name in _FLAGS}
    log.setLevel(logging.CRITICAL + 1)
    try:
        if exports:
            for name in _FLAGS:
                setattr(compiler, name, True)
        yield
    finally:
        log.setLevel(level)
        for name, flag in flags.items():
            setattr(compiler, name, flag)


_FLAGS = ("_is_compiling_flag", "_is_exporting_flag")


def memory_of(tensor: Tensor) -> Any:
    """Key of a tensor's memory, with or without values; the same for views of one another."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # inside vmap or jvp
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.untyped_storage()._cdata


def modes_on() -> tuple[int, int]:
    """Number of modes of torch functions and of dispatch that are on; a module may be called in one of its own."""
    return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()


def module_call(module: nn.Module) -> bool:
    """Return whether calling a module is torch's own code, which runs its hooks and its forward."""
    kind = type(module)
    calls = (kind.__call__, kind._call_impl, kind._wrapped_call_impl)
    return all((getattr(call, "__module__", None) or "torch").partition(".")[0] == "torch" for call in calls)


def global_module_hooks() -> list[Any]:
    """Hooks that torch calls around every module's forward or backward."""
    kinds = ("backward_pre_hooks", "backward_hooks", "forward_pre_hooks", "forward_hooks")
    return [hook for kind in kinds for hook in getattr(module_hooks, f"_global_{kind}").values()]


__all__ = [
    "BackwardCFunction",
    "CheckpointFunction",
    "FakeTensor",
    "FakeTensorMode",
    "OpOverload",
    "TorchDispatchMode",
    "global_module_hooks",
    "memory_of",
    "modes_on",
    "module_call",
    "no_dispatch_modes",
    "pytree",
    "quietly_exporting",
]


def on_meta(module: nn.Module) -> nn.Module:
    """Copy of a module on the meta device; its weights are never copied."""
    return _with(module, lambda tensor: tensor.detach().to("meta"))


def on_fake(module: nn.Module, mode: FakeTensorMode, device: torch.device | str) -> nn.Module:
    """Copy of a module with fake tensors on the device, which need not exist.

    On the meta device some models compute something else, or nothing, so captured models are on a fake CPU.
    """
    return _with(module, lambda tensor: fake(tensor, mode, device))


def fake(tensor: Tensor, mode: FakeTensorMode, device: torch.device | str) -> Tensor:
    """A fake tensor of the same shape, strides and type."""
    with mode:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def with_random_values(module: nn.Module, numbers: torch.Generator) -> nn.Module:
    """Copy of a module on the CPU with random parameters, and buffers between 0 and 1, of whole numbers 0."""

    def drawn(tensor: Tensor) -> Tensor:
        made = torch.zeros(tensor.shape, dtype=tensor.dtype)
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return made
        return (
            made.normal_(0, 0.2, generator=numbers) if tensor.requires_grad else made.real.uniform_(generator=numbers)
        )

    return _with(module, drawn)


def _with(module: nn.Module, stand_in: Callable[[Tensor], Tensor]) -> nn.Module:
    stand_ins: dict[int, object] = {}
    for parameter in module.parameters():
        stand_ins[id(parameter)] = nn.Parameter(stand_in(parameter), parameter.requires_grad)
    for buffer in module.buffers():
        stand_ins[id(buffer)] = stand_in(buffer)
    for part in module.modules():  # weights that a hook computes before each forward, as of old weight norm
        computed = [value for value in vars(part).values() if isinstance(value, Tensor) and not value.is_leaf]
        stand_ins.update({id(value): stand_in(value) for value in computed})
    try:
        blank = copy.deepcopy(module, stand_ins)
    except TypeError as error:  # a generator, a lock, an open file
        raise InputError(
            f"{type(module).__name__} holds something that cannot be copied ({error}), and stages are copies: make it "
            "where it is used, or leave it out of copies by __deepcopy__"
        ) from error
    for part in blank.modules():  # transformers return caches of past tokens by default, which training does not read
        config = getattr(part, "config", None)
        if config is not None and getattr(config, "use_cache", False) is True:
            config.use_cache = False
    return blank
