"""Finds what passes from layer to layer by one run on the meta device: shapes and types, without computing anything."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pipeplan.errors import PlanError


@dataclass(frozen=True)
class Flow:
    """What flows through the chain for one micro-batch, as tensors on the meta device.

    Attributes
    ----------
    inputs : Tensor
        What the first layer reads.
    outputs : tuple of Tensor
        What each layer returns; ``requires_grad`` tells whether a gradient comes back.
    changed : tuple of bool
        Whether a later layer writes into that output in place.
    """

    inputs: Tensor
    outputs: tuple[Tensor, ...]
    changed: tuple[bool, ...]


def trace(module: nn.Module, names: Sequence[str], inputs: Tensor) -> Flow:
    """Run the unsplit module on the meta device and watch its layers.

    Parameters
    ----------
    module : torch.nn.Module
        On the meta device.
    names : sequence of str
        Module paths of the layers, in order.
    inputs : Tensor
        One micro-batch, on any device; only shape and type count.

    Raises
    ------
    PlanError
        If the layers are not a chain: each called once, in order, with nothing but what the one before returned.
    """
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any], Any, int]] = []
    start = torch.empty_like(inputs, device="meta")
    with ExitStack() as hooks:
        for name in names:

            def watch(_: nn.Module, args: Any, kwargs: Any, out: Any, name: str = name) -> None:
                calls.append((name, args, kwargs, out, out._version if isinstance(out, Tensor) else 0))

            hook = module.get_submodule(name).register_forward_hook(watch, with_kwargs=True)
            hooks.callback(hook.remove)
        result = module(start)
    _check_calls(tuple(call[0] for call in calls), tuple(names))
    given = start
    for name, args, kwargs, out, _ in calls:
        if kwargs or len(args) != 1 or args[0] is not given:
            raise PlanError(f"layer {name} does not read just what the layer ahead of it returns; {_ADVICE}")
        if not isinstance(out, Tensor):
            raise PlanError(f"layer {name} returns {type(out).__name__}, not one tensor; {_ADVICE}")
        given = out
    if result is not given:
        raise PlanError(f"the model does not return what its last layer {names[-1]} returns; {_ADVICE}")
    return Flow(start, tuple(call[3] for call in calls), tuple(call[3]._version != call[4] for call in calls))


_ADVICE = "only chains can be run: put what lies between two layers into one of them, or wrap both in one module"


def _check_calls(called: tuple[str, ...], names: tuple[str, ...]) -> None:
    if called == names:
        return
    for name in names:
        if called.count(name) != 1:
            raise PlanError(f"layer {name} is called {called.count(name)} times in a forward pass, not once; {_ADVICE}")
    at = next(i for i, name in enumerate(names) if called[i] != name)
    raise PlanError(f"the plan has layer {names[at]} at place {at}, but the model calls {called[at]} there")
