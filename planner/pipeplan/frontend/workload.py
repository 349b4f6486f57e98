"""`Workload`: a torch model with a function that draws batches, and the loss.

``module:function`` on the command line names a function without arguments that returns a `Workload`, or a plain
``torch.nn.Module`` if ``--input`` describes its batches. It is called once in every process; under
``torch.device("meta")`` it must build the module without reading data. ``hf:`` begins the name of a configuration of
``transformers`` (see `pipeplan.frontend.pretrained_configs`).
"""

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeplan.core.errors import InputError
from pipeplan.core.figures import shown
from pipeplan.core.grouped_axis import ShardAxis
from pipeplan.core.options import require_callback
from pipeplan.core.parts import mapping
from pipeplan.frontend.pretrained_configs import PREFIX, pretrained_config


@dataclass(frozen=True)
class Workload:
    """A model to train, with its batches and loss.

    Attributes
    ----------
    module : torch.nn.Module
    draw : callable
        ``draw(samples, generator) -> (inputs, targets)``, drawn with the given ``torch.Generator``: each a tensor, or a
        tuple, list or dict of tensors (see `pipeplan.frontend.batch`) whose first axis has ``samples`` entries.
    loss : callable
        ``loss(outputs, targets) -> scalar tensor``: the mean over the given samples. ``outputs`` is the return value
        of the module, of any structure.
    weight : callable, optional
        ``weight(targets) -> number``: the count over which the loss is a mean, if that is not the number of samples.
        For a mean over words without padding it is the number of these words. Micro-batches count in proportion.
    shards : mapping of str to int or GroupedAxis, optional
        Tensor parallelism: by glob patterns of parameters' names, the axis along which they are sharded, or of which
        the groups are (`pipeplan.core.grouped_axis`). It is for ``pipeplan run --tensor-parallel``; plans with teams
        have their own.
    name : str
        The model's name in profiles and plans. Without one it is that of the module's class, or of the function if the
        class is one of torch's own, like ``Sequential``.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> def build():
    ...     def draw(samples, generator):
    ...         return torch.rand(samples, 4, generator=generator), torch.rand(samples, 2, generator=generator)
    ...     return pipeplan.Workload(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), draw, nn.functional.mse_loss)
    >>> build().draw(3, torch.Generator())[0].shape
    torch.Size([3, 4])
    """

    module: Any
    draw: Callable[[int, Any], tuple[Any, Any]]
    loss: Callable[[Any, Any], Any]
    weight: Callable[[Any], float] | None = None
    shards: Mapping[str, ShardAxis] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not hasattr(self.module, "named_parameters"):  # torch is not imported for that
            raise InputError(f"the module of a workload must be a torch.nn.Module, not {shown(self.module)}")
        require_callback(self.draw, "draw of a workload")
        require_callback(self.loss, "loss of a workload")
        if self.weight is not None:
            require_callback(self.weight, "weight of a workload")
        if self.shards is not None:
            mapping(self.shards, "shards of a workload")


_INPUT = re.compile(r"(float32|float64|int64):(\d+(?:x\d+)*)(?:@(\d+))?")


def load_workload(spec: str, input_spec: str | None = None) -> Workload:
    """Import ``module:function`` (the current folder counts) and call it, or build a model of ``transformers``.

    Parameters
    ----------
    spec : str
        ``'my_project:build_model'``, ``'hf:gpt2'``.
    input_spec : str, optional
        For a function that returns a plain module: shape of one sample, ``'float32:3x224x224'``, or
        ``'int64:128@50257'`` for integers below 50257. The loss is then the mean square of the outputs.

    Raises
    ------
    InputError
        If it cannot be imported, is not callable, or returns neither a workload nor a module with ``input_spec``.
    """
    import torch

    if spec.startswith(PREFIX):
        return Workload(*pretrained_config(spec), name=spec.removeprefix(PREFIX).partition("?")[0].rpartition("/")[2])
    name, colon, attribute = spec.partition(":")
    if not colon or not attribute:
        raise InputError(
            f"{spec!r} does not name a model; write module:function, like my_project:build_model, or hf:gpt2"
        )
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        with _with_values():
            build = getattr(importlib.import_module(name), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(f"cannot import {spec!r}: {error} (the current folder is {Path.cwd()})") from error
    if not callable(build):
        raise InputError(f"{spec!r} is not a function; name one that builds and returns the model")
    built = build()
    if isinstance(built, Workload):
        return built if built.name else replace(built, name=_name(built.module, attribute))
    if not isinstance(built, torch.nn.Module):
        raise InputError(f"{spec!r} returned {type(built).__name__}; return a pipeplan.Workload or a torch.nn.Module")
    if input_spec is None:
        raise InputError(
            f"{spec!r} returned a plain module; say what one sample looks like with --input, "
            "like --input float32:3x224x224 or --input int64:128@50257, or return a pipeplan.Workload"
        )
    loss = lambda outputs, _: outputs.square().mean()  # noqa: E731
    return Workload(built, _drawer(input_spec), loss, name=_name(built, attribute))


def _name(module: Any, function: str) -> str:
    """Return the name of the module's class, or of the function if that is one of torch's containers."""
    kind = type(module)
    return function if kind.__module__.startswith("torch.") else kind.__name__.lower()


def _with_values() -> AbstractContextManager[object]:
    """Context for an import: tensors of the imported module are shared by all who build models, and have values."""
    import torch

    return torch.device("cpu") if torch.get_default_device().type == "meta" else nullcontext()


def _drawer(input_spec: str) -> Callable[[int, Any], tuple[Any, Any]]:
    match = _INPUT.fullmatch(input_spec)
    if match is None or (match[1] == "int64") != (match[3] is not None):
        raise InputError(f"{input_spec!r} does not describe a sample; write float32:3x224x224 or int64:128@50257")
    shape = [int(size) for size in match[2].split("x")]

    def draw(samples: int, generator: Any) -> tuple[Any, Any]:
        import torch

        if match[3] is not None:
            inputs = torch.randint(int(match[3]), (samples, *shape), generator=generator)
        else:
            inputs = torch.randn((samples, *shape), generator=generator, dtype=getattr(torch, match[1]))
        return inputs, torch.zeros(samples)

    return draw
