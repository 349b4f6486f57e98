"""`blank_workload`: a workload whose module has no values, so that its weights take no memory.

::

    torch.device("meta") ── build ──▶ module without values            nothing is allocated
                              │
                              ╰─ a constructor reads values, or keeps a tensor: built for real, and emptied
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook

from pipeplan.core.errors import InputError
from pipeplan.core.options import require
from pipeplan.frontend.capture.private import on_meta, pytree
from pipeplan.frontend.parameters import named_tensors
from pipeplan.frontend.rewind import attributes_in
from pipeplan.frontend.runnable import check_hooks
from pipeplan.frontend.workload import Workload


def blank_workload(
    build: Callable[[], Workload],
    build_for_real: Callable[[], Workload],
    on_note: Callable[[str], None] | None = None,
) -> Workload:
    """Return the workload with its module on the meta device.

    Some models cannot be built there, since a constructor reads values, or keeps a tensor that is neither parameter nor
    buffer. They are built for real, and emptied.

    Parameters
    ----------
    build : callable
        Builds the workload.
    build_for_real : callable
        Builds it with values, see `built_for_real`.
    on_note : callable, optional
        Called with a sentence on the reason, before a model is built for real.
    """
    try:
        with torch.device("meta"):
            workload = require(build(), Workload)
        reason = _reads_values(workload)
    except Exception as error:  # if it has another reason than the meta device, the same error comes again
        if isinstance(error, InputError) and not isinstance(error.__cause__, RuntimeError | TypeError | ValueError):
            raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    if not reason:
        return workload
    if on_note is not None:
        on_note(f"the model is built for real, and takes memory for its weights: on the meta device {reason}")
    workload = build_for_real()
    check_hooks(workload.module)  # a module without values no longer has them
    return replace(workload, module=on_meta(workload.module))


def built_for_real(build: Callable[[], Workload]) -> Workload:
    """Return what ``build`` builds on the CPU, emptied while it grows where no constructor reads values."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        try:
            with emptied_while_built():
                return build()
        except Exception:  # the same error comes again if it has another reason
            return build()


@contextmanager
def emptied_while_built() -> Iterator[None]:
    """Context in which modules lose what they can draw themselves once they are inside another one's submodule."""

    def empty(_: nn.Module, __: str, module: nn.Module | None) -> None:
        inner = (part for child in module.children() for part in child.modules()) if module is not None else ()
        for part in inner:
            if rule_of(part) is not None:
                part.to_empty(device="meta", recurse=False)

    handle = register_module_module_registration_hook(empty)
    try:
        yield
    finally:
        handle.remove()


def rule_of(module: nn.Module) -> Callable[[], object] | None:
    """Return the method by which a module draws its own tensors; None if it has none."""
    reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    return reset if callable(reset) else None


def _reads_values(workload: Workload) -> str:
    """Return what of a workload on the meta device needs values; empty if nothing is known."""
    known = {id(tensor) for _, tensor in named_tensors(workload.module)}
    for path, part in workload.module.named_modules():
        for name, value in attributes_in(part).items():
            if _lacks_values(value, known):
                return f"{f'{path}.{name}'.lstrip('.')} has no values, and is neither parameter nor buffer"
    for what in ("loss", "draw", "weight"):
        if any(_lacks_values(value, set()) for value in _held_by(getattr(workload, what))):
            return f"the function {what} has a tensor without values"
    return ""


def _lacks_values(value: Any, known: set[int]) -> bool:
    return any(isinstance(x, Tensor) and x.is_meta and id(x) not in known for x in pytree.tree_leaves(value))


def _held_by(function: Any) -> Iterator[Any]:
    """Yield what a function has beside its arguments: what it closes over, or a module's tensors."""
    if isinstance(function, nn.Module):
        yield [tensor for _, tensor in named_tensors(function)]
    for cell in getattr(function, "__closure__", None) or ():
        try:
            value = cell.cell_contents
        except ValueError:  # it is empty
            continue
        yield [tensor for _, tensor in named_tensors(value)] if isinstance(value, nn.Module) else value
    if hasattr(function, "func"):
        yield (function.args, function.keywords)
