"""`workspace_of`: bytes that exist only while a layer computes, from a pass on tensors without values.

Every storage that an operation makes is followed from there to the moment at which nothing refers to it any more::

    forward     made ────────── saved ────────────────────────────────── freed
    backward                       gradient made ── freed
                                          gradient of a weight ── freed   (added to the one that exists)

The peak beyond what the layer saves is its workspace. Gradients of weights are apart, since they do not grow with the
number of samples. Buffers inside kernels are not seen.
"""

import weakref
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from pipeplan.frontend.batch import tensors
from pipeplan.frontend.capture.private import FakeTensorMode, TorchDispatchMode, memory_of, pytree
from pipeplan.frontend.profile.passes import Feed, run_pass


@dataclass(frozen=True)
class Workspace:
    """Bytes at the peak: those of the samples of the micro-batch, and those that do not depend on their number."""

    of_samples: int
    fixed: int


def workspace_of(layer: nn.Module, feed: Feed, saved: int, dropped: int, mode: FakeTensorMode) -> Workspace:
    """Run the layer forward, its loss, and backward, into existing gradients; return the peak beyond what it saves.

    Parameters
    ----------
    layer : torch.nn.Module
        With fake tensors of ``mode``.
    feed : Feed
        Its inputs, fake too.
    saved : int
        Bytes that it keeps until its backward, for these samples.
    dropped : int
        Bytes of its inputs that no layer saves: they exist while its forward runs.
    """
    feed = feed if feed.loss is not None else replace(feed, loss=_read_by_another)
    weights = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    live = _LiveBytes()
    hooks = [weight.register_hook(live.is_gradient_of_weight) for weight in weights]
    with mode:
        for weight in weights:
            weight.grad = torch.empty_like(weight)
        try:
            with live:
                run_pass([layer], feed, lambda _: None, lambda _: live.begin_backward())
        finally:
            for weight, hook in zip(weights, hooks, strict=True):
                weight.grad = None
                hook.remove()
    peak, fixed = live.peak(dropped)
    fixed = min(fixed, max(peak - saved, 0))
    return Workspace(max(peak - saved - fixed, 0), fixed)


def _read_by_another(returned: Any, _: Any) -> Tensor:
    """Stand for the next layer, which frees what it gets, and gives gradients back."""
    value: Tensor = _NextLayer.apply(*tensors(returned))
    return value


class _NextLayer(torch.autograd.Function):  # type: ignore[misc]
    """Function of some tensors that keeps none, and makes a gradient for each that needs one."""

    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        """Make one number."""
        ctx.given = [(tensor.shape, tensor.dtype, tensor.device) for tensor in given]
        return given[0].new_zeros((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, _: Any) -> tuple[Tensor | None, ...]:
        """Make the gradients."""
        return tuple(
            torch.empty(shape, dtype=dtype, device=device) if wanted else None
            for wanted, (shape, dtype, device) in zip(ctx.needs_input_grad, ctx.given, strict=True)
        )


class _LiveBytes(TorchDispatchMode):  # type: ignore[misc]
    """Mode that follows all storages that are made inside it, until they are freed."""

    def __init__(self) -> None:
        super().__init__()
        self._number: dict[Any, int] = {}  # of each storage that exists, by its key
        self._alive: list[Any] = []  # references to storages, which tell when these are freed
        self._events: list[tuple[int, int]] = []  # number of a storage, and by how much the bytes change
        self._of_weights = set[int]()
        self._backward: int | None = None  # number of events of the forward

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in pytree.tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor):
                self._follow(tensor, made=False)
        result = func(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._follow(tensor, made=True)
        return result

    def begin_backward(self) -> None:
        """Note that the forward is over."""
        self._backward = len(self._events) if self._backward is None else self._backward

    def is_gradient_of_weight(self, gradient: Tensor) -> None:
        """Note that a tensor is added to the gradient of a weight."""
        with suppress(NotImplementedError):
            self._of_weights.add(self._number.get(memory_of(gradient), -1))

    def peak(self, beside_forward: int) -> tuple[int, int]:
        """Return the most bytes at once, some beside the forward included, and how many are gradients of weights."""
        level = fixed = most = fixed_then = 0
        for place, (number, change) in enumerate(self._events):
            level, fixed = level + change, fixed + (change if number in self._of_weights else 0)
            beside = beside_forward if self._backward is None or place < self._backward else 0
            if level + beside > most:
                most, fixed_then = level + beside, fixed
        return most, fixed_then

    def _follow(self, tensor: Tensor, made: bool) -> None:
        """Count the storage of a tensor if it is new; one that an operation was given had existed before."""
        try:
            key, storage, number = memory_of(tensor), tensor.untyped_storage(), len(self._alive)
        except NotImplementedError:  # sparse tensors and those of vmap are made of others, which are seen themselves
            return
        if key in self._number:
            return
        size = int(storage.nbytes()) if made else 0

        def freed(_: Any) -> None:
            self._number.pop(key, None)
            self._events.append((number, -size))

        self._number[key] = number
        self._alive.append(weakref.ref(storage, freed))
        self._events.append((number, size))
