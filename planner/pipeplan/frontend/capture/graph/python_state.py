"""Check that a forward computes the same every time it is called: a graph of it has the values of one call.

Two forwards on tensors without values are compared, operation by operation, with all numbers among the arguments::

    first     addmm(input, weight, bias)   mul(addmm, 0.1)   add(mul, input)
    second    addmm(input, weight, bias)   mul(addmm, 0.2)   add(mul, input)       a counter, in the module or outside

Python's and numpy's random states, and the attributes of all submodules, are compared before and after. What changes is
named with the line that changes it.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from pipeplan.frontend.batch import Batch, call, mapped
from pipeplan.frontend.capture.graph.gradients import (
    READS_GRADIENT,
    LostInCaptureError,
    Seen,
    is_own,
    is_users,
    watching_gradients,
)
from pipeplan.frontend.capture.private import (
    FakeTensor,
    FakeTensorMode,
    TorchDispatchMode,
    fake,
    no_dispatch_modes,
    on_fake,
    on_meta,
    pytree,
    quietly_exporting,
)
from pipeplan.frontend.capture.python_values import attributes_of, random_numbers, values_outside
from pipeplan.frontend.parameters import named_tensors

_STAGES = "give stage modules of your own with Stages, which run as they stand"
_FEW = 1024
"""Numbers of a constant tensor up to which its values are compared."""


def check_repeats(module: nn.Module, inputs: Batch) -> None:
    """Refuse a module whose forward changes Python's state, or computes something else when it is called again.

    Nothing is said of a module that cannot run without values; torch.export may still capture it.

    Parameters
    ----------
    module : torch.nn.Module
        On any device; only shapes and types are read.
    inputs : batch
        One micro-batch.

    Raises
    ------
    LostInCaptureError
        With what changes, its line, and what to do.
    """
    twice = _called_twice(module, inputs)
    reasons = () if twice is None else (twice.drawn, twice.changed, twice.frozen, twice.different, twice.outside)
    reason = next(filter(None, (each() for each in reasons)), "")
    if reason:
        raise LostInCaptureError(f"{type(module).__name__} {reason}, or {_STAGES}")
    if twice is not None and twice.reads:
        raise LostInCaptureError(f"{type(module).__name__} {twice.reads}: let no forward read it")


def differs_each_time(module: nn.Module, inputs: Batch) -> str:
    """Return what a module computes otherwise in its second call, in a sentence; empty if nothing is known."""
    twice = _called_twice(module, inputs)
    return "" if twice is None else twice.different()


def _called_twice(module: nn.Module, inputs: Batch) -> "_Twice | None":
    """Call a copy of the module twice; None if it cannot run without values.

    The meta device is faster than fake tensors, and runs fewer modules.
    """
    for has_device, exports in ((False, False), (True, False), (True, True)):
        try:
            watch = _Watch(module, inputs, has_device, exports)
            numbers = random_numbers()
            acts: list[Seen] = []
            with watching_gradients(acts.append):  # of what the first forward keeps, the second may read the gradient
                first = watch.forward()
                attributes, outside = watch.attributes(), watch.outside()
                second = watch.forward()
            reads = next((act for act in acts if isinstance(act, str) and act.startswith(READS_GRADIENT)), "")
            return _Twice(watch, numbers, attributes, outside, (first, second), reads)
        except Exception:  # it needs values, or a device, or another batch; torch.export says what is wrong
            continue
    return None


@dataclass(frozen=True)
class _Twice:
    """Two forwards of a module.

    Attributes
    ----------
    numbers : mapping
        Random states before the first forward.
    attributes : mapping
        Attributes between the two; the first one may fill caches.
    values : mapping
        What it reads outside, between the two.
    operations : tuple of sequence
        What each forward computed.
    reads : str
        A sentence about a gradient of an earlier call that a forward reads; empty if none does.
    """

    watch: "_Watch"
    numbers: Mapping[str, object]
    attributes: Mapping[str, object]
    values: Mapping[str, object]
    operations: tuple[Sequence[object], Sequence[object]]
    reads: str

    def drawn(self) -> str:
        """Return a sentence about random numbers of Python or numpy."""
        for kind, state in random_numbers().items():
            if self.numbers.get(kind, state) != state:
                line = self.watch.line(partial(_state_of, kind))
                return (
                    f"draws {kind} random numbers in its forward{line}, and a captured graph would keep those of one "
                    "call: draw them with torch, as tensors"
                )
        return ""

    def changed(self) -> str:
        """Return a sentence about an attribute that every forward changes."""
        for path, value in self.watch.attributes().items():
            if self.attributes.get(path) != value:
                line = self.watch.line(partial(self._attribute, path))
                return (
                    f"changes its attribute {path} in its forward{line}, and a captured graph would keep the value of "
                    "one call: make it a buffer that forward changes in place (register_buffer, add_)"
                )
        return ""

    def _attribute(self, path: str) -> object:
        return self.watch.attributes().get(path)

    def frozen(self) -> str:
        """Return a sentence about a parameter that begins or ceases to require a gradient."""
        for path, parameter in self.watch.blank.named_parameters():
            if parameter.requires_grad != self.watch.wanted[path]:
                return (
                    f"changes in its forward whether {path} requires a gradient, which a captured graph would not "
                    "repeat: set requires_grad where the module is built"
                )
        return ""

    def outside(self) -> str:
        """Return a sentence about a global, a closure or a class attribute that every forward changes."""
        for name, value in self.watch.outside().items():
            if name in self.values and self.values[name] != value:
                line = self.watch.line(partial(self._outside, name))
                return (
                    f"changes {name} in its forward{line}, and a captured graph would keep the value of one call: make "
                    "it a buffer that forward changes in place (register_buffer, add_)"
                )
        return ""

    def _outside(self, name: str) -> object:
        return self.watch.outside().get(name)

    def different(self) -> str:
        """Return a sentence about an operation that differs."""
        for number, (one, other) in enumerate(zip_longest(*self.operations)):
            if one != other:
                return (
                    f"computes something else each time its forward is called{self.watch.made(number)}, and a captured "
                    "graph would keep one of them: let it depend on tensors and buffers only"
                )
        return ""


def _state_of(kind: str) -> object:
    return random_numbers()[kind]


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Dispatch mode that records the operations on batch and parameters, with all arguments.

    Tensors are labelled by where they come from: their names, the operation that made them, or, for constants, all that
    made them. So a constant that is made once and kept is the same as one that is made in every forward.

    Attributes
    ----------
    labels : dict of int to label
        By id of the tensor.
    constants : set of int
        The ids of tensors that depend on constants and buffers only.
    stop : int, optional
        Number of the operation whose ``place`` is wanted.
    """

    def __init__(self, labels: dict[int, object], constants: set[int], kept: list[Tensor], stop: int | None) -> None:
        super().__init__()
        self.labels, self.constants, self.stop, self._kept = labels, constants, stop, kept
        self.operations: list[object] = []
        self.place = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "prim":  # questions for a tensor's device, as many as the cache of shapes has gaps
            return func(*args, **(kwargs or {}))
        leaves = pytree.tree_leaves((args, kwargs or {}))
        labels = tuple(self._label(leaf) for leaf in leaves)
        given = {id(leaf) for leaf in leaves if isinstance(leaf, Tensor)}
        is_constant = given <= self.constants and torch.Tag.nondeterministic_seeded not in func.tags
        if not is_constant:
            if self.stop == len(self.operations):
                self.place = _place(sys._getframe(1))
            self.operations.append((func, labels))
        made = func(*args, **(kwargs or {}))
        for number, leaf in enumerate(pytree.tree_leaves(made)):
            if isinstance(leaf, Tensor) and (is_constant or id(leaf) not in given or id(leaf) in self.constants):
                self._kept.append(leaf)  # or another tensor might get its id
                self.labels[id(leaf)] = hash((func, labels, number)) if is_constant else (len(self.operations), number)
                (self.constants.add if is_constant else self.constants.discard)(id(leaf))
        return made

    def _label(self, leaf: object) -> object:
        if not isinstance(leaf, Tensor):
            return leaf if isinstance(leaf, int | str) else repr(leaf)
        if id(leaf) not in self.labels:
            self._kept.append(leaf)
            self.constants.add(id(leaf))
            self.labels[id(leaf)] = ("constant", tuple(leaf.shape), leaf.dtype, _values(leaf))
        return self.labels[id(leaf)]


def _values(leaf: Tensor) -> str:
    """Return the values of a small constant, if it has any."""
    constant = getattr(leaf, "constant", None) if isinstance(leaf, FakeTensor) else leaf
    if constant is None or constant.is_meta or constant.numel() > _FEW:
        return ""
    with no_dispatch_modes():
        return repr(constant.tolist())


class _Watch:
    """Repeated forwards of a copy of the module without values."""

    def __init__(self, module: nn.Module, inputs: Batch, has_device: bool, exports: bool) -> None:
        self._exports = exports
        fakes = FakeTensorMode(allow_non_fake_inputs=True)
        self._mode: AbstractContextManager[object] = fakes if has_device else nullcontext()
        self.blank = on_fake(module, fakes, "cpu") if has_device else on_meta(module)
        self._inputs = mapped(
            inputs,
            lambda tensor: fake(tensor, fakes, "cpu") if has_device else torch.empty_like(tensor, device="meta"),
        )
        self.wanted = {path: parameter.requires_grad for path, parameter in self.blank.named_parameters()}
        self._kept: list[Tensor] = []
        self._earlier: dict[int, object] = {}
        self._constants: set[int] = set()

    def forward(self, stop: int | None = None) -> Sequence[object]:
        """Run it once; return its operations."""
        given = mapped(self._inputs, lambda tensor: tensor.detach())
        buffers = {id(tensor) for tensor in self.blank.buffers()}
        known: dict[int, object] = {id(tensor): name for name, tensor in named_tensors(self.blank)}
        known |= {id(leaf): ("input", number) for number, leaf in enumerate(pytree.tree_leaves(given))}
        self._kept += pytree.tree_leaves(given)
        recorder = _Recorder(self._earlier | known, self._constants | buffers, self._kept, stop)
        with (
            torch.random.fork_rng(devices=[]),
            torch.enable_grad(),
            quietly_exporting(self._exports),
            self._mode,
            recorder,
        ):
            call(self.blank, given)
        self.place = recorder.place
        # a later forward that reads what this one computed has it from an attribute or a closure
        for key, label in recorder.labels.items():
            if key not in known and key not in self._earlier:
                self._earlier[key] = label if key in recorder.constants else ("earlier", label)
        self._constants |= recorder.constants - known.keys()
        return recorder.operations

    def attributes(self) -> dict[str, object]:
        """Return the attributes of all submodules for comparison."""
        return attributes_of(self.blank)

    def outside(self) -> dict[str, object]:
        """Return what the user's own functions read outside the module."""
        return values_outside(self.blank, is_own)

    def line(self, probe: Callable[[], object]) -> str:
        """Return the place of the line, in one more forward, behind which a probe returns something else."""
        found: list[str] = []
        state: list[object] = [probe(), ""]

        def local(frame: FrameType, *_: object) -> Any:
            value = probe()
            if value != state[0] and state[1] and not found:
                found.append(str(state[1]))
            state[:] = [value, _place(frame)]
            return local

        def entered(frame: FrameType, event: str, argument: object) -> Any:
            return local(frame, event, argument) if is_users(frame.f_code) else None

        before = sys.gettrace()
        sys.settrace(entered)
        try:
            self.forward()
        except Exception:
            pass
        finally:
            sys.settrace(before)
        return f" ({found[0]})" if found else f" ({state[1]})" if state[1] and probe() != state[0] else ""

    def made(self, number: int) -> str:
        """Return the place of an operation, in one more forward."""
        try:
            self.forward(number)
        except Exception:
            return ""
        return f" ({self.place})" if self.place else ""


def _place(frame: FrameType | None) -> str:
    """Return the innermost of the user's lines."""
    while frame is not None and not is_users(frame.f_code):
        if frame.f_code.co_filename == __file__ and frame.f_code.co_name == "forward":
            return ""
        frame = frame.f_back
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"
