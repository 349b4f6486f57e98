"""Gives layers their weights: drawn layer by layer from a seed, or read from a file.

The random numbers of a layer depend on the seed and the layer's place in the model only, so a stage that builds two
layers and a process that builds all of them end up with the same weights.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import nn

from pipeplan.errors import InputError, PlanError


def initialise(
    module: nn.Module,
    names: Sequence[str],
    seed: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    only: Iterable[str] | None = None,
) -> None:
    """Draw the weights of layers that lie on the meta device, in place, with each submodule's ``reset_parameters``.

    Parameters
    ----------
    module : torch.nn.Module
        The whole model.
    names : sequence of str
        Module paths of all its layers, in order.
    seed : int
    device, dtype
        Where the weights go; ``dtype`` converts floating-point ones.
    only : iterable of str, optional
        The layers to draw; by default all.

    Raises
    ------
    PlanError
        If a submodule owns parameters or buffers and has no ``reset_parameters``.
    """
    wanted = set(names if only is None else only)
    with torch.random.fork_rng(devices=[]):
        for number, name in enumerate(names):
            if name in wanted:
                layer = module.get_submodule(name)
                allocate(layer, device, dtype)
                digest = hashlib.sha256(f"{seed}/{number}".encode()).digest()
                torch.manual_seed(int.from_bytes(digest[:8], "big") >> 1)
                _draw(name, layer)


def allocate(layer: nn.Module, device: torch.device | str, dtype: torch.dtype | None) -> None:
    """Make room for a layer's parameters and buffers, without values."""
    layer.to(dtype=dtype) if dtype is not None else None
    layer.to_empty(device=device)


def _draw(name: str, layer: nn.Module) -> None:
    for path, part in layer.named_modules():
        if not owns_tensors(part):
            continue
        reset = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
        if reset is None:
            full = f"{name}.{path}" if path else name
            raise PlanError(
                f"layer {full} ({type(part).__name__}) owns parameters or buffers but has no reset_parameters(), so "
                "its stage cannot be built alone; give the class a reset_parameters() that fills them all, or pass the "
                "weights as a state-dict file (--weights file.pt)"
            )
        with torch.no_grad():
            reset()


def owns_tensors(part: nn.Module) -> bool:
    """Whether a module itself, apart from its children, has parameters or buffers."""
    return any(True for _ in part.parameters(recurse=False)) or any(True for _ in part.buffers(recurse=False))


def read_weights(
    module: nn.Module,
    names: Iterable[str],
    path: str | Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> None:
    """Fill layers that lie on the meta device from a state-dict file, which is mapped, not read as a whole.

    Raises
    ------
    InputError
        If the file cannot be read, or lacks a tensor, or has it in another shape.
    """
    try:
        state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"cannot read weights from {path}: {error}") from error
    for name in names:
        layer = module.get_submodule(name)
        transient = {path for part in layer.modules() for path in part._non_persistent_buffers_set}
        allocate(layer, device, dtype)
        if transient:
            _draw(name, layer)
        for inner, tensor in layer.state_dict().items():
            full = f"{name}.{inner}"
            if full not in state:
                raise InputError(f"{path} has no {full}; it must hold the unsplit model's state_dict()")
            if state[full].shape != tensor.shape:
                found, expected = tuple(state[full].shape), tuple(tensor.shape)
                raise InputError(f"{path}: {full} has shape {found}, the model needs {expected}")
            with torch.no_grad():
                tensor.copy_(state[full])
