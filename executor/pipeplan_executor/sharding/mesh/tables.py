"""Constants of a layer that are the same in every forward: masks, positions, rotary tables of the whole sequence.

Slices read a part of each, so they are made once, and those that layers make alike are shared.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pipeplan.frontend.capture.private import memory_of
from pipeplan.frontend.operators.program import Program, Role, Step
from pipeplan_executor.sharding.mesh.calls import mapped

_BY_SHAPE = frozenset({"new_ones", "new_zeros", "new_full", "zeros_like", "ones_like", "full_like"})
"""Operations that read no more than a tensor's shape and type."""


@dataclass
class SharedTables:
    """Tables of all layers of a stage."""

    kept: dict[Hashable, Tensor] = field(default_factory=dict)
    numbers: dict[Hashable, int] = field(default_factory=dict)

    def number(self, key: Hashable) -> int:
        """Return the number of a way to make a tensor, the same for equal ones."""
        return self.numbers.setdefault(key, len(self.numbers))


class LayerTables:
    """The tables of one layer.

    Attributes
    ----------
    steps : list of Step
        Those that make them.
    """

    def __init__(self, program: Program, shared: SharedTables) -> None:
        calls = program.record.calls
        written = {memory_of(each) for call in calls if call.operation._schema.is_mutable for each in call.given}
        buffers = program.record.buffers.values()
        self._shared, self._buffers = shared, {id(each) for each in buffers if memory_of(each) not in written}
        lasting = set(self._buffers)
        self.steps: list[Step] = []
        read = {id(tensor) for tensor in (*program.record.outputs, *program.record.returned)}
        for step in program.steps:
            if _lasts(step, lasting, written):
                self.steps.append(step)
                lasting |= {id(tensor) for tensor in step.call.made}  # type: ignore[union-attr]
            elif step.call is not None:
                read |= {id(tensor) for tensor in step.call.given}
        made = {id(tensor) for step in self.steps for tensor in step.call.made}  # type: ignore[union-attr]
        self._read = made & read
        self.ids = {id(step) for step in self.steps}

    def values(
        self, buffers: Mapping[int, Tensor], device: torch.device, make: Callable[[Step], Sequence[Tensor]]
    ) -> Mapping[int, Tensor]:
        """Return the tables by the ids of recorded tensors; ``make`` returns what a step makes."""
        keys = self._keys(buffers, device)
        if any(keys[name] not in self._shared.kept for name in self._read):
            for step in self.steps:
                made = make(step)
                assert step.call is not None
                for tensor, value in zip(step.call.made, made, strict=True):
                    if id(tensor) in self._read:
                        self._shared.kept.setdefault(keys[id(tensor)], value)
        return {name: self._shared.kept[keys[name]] for name in self._read}

    def _keys(self, buffers: Mapping[int, Tensor], device: torch.device) -> Mapping[int, int]:
        """Return the number of each tensor: what its buffers are now, and how it is made of them."""
        number = self._shared.number
        found = {
            name: number((id(own), own.data_ptr(), own._version))
            for name, own in buffers.items()
            if name in self._buffers
        }
        for step in self.steps:
            call = step.call
            assert call is not None
            arguments = repr(mapped(lambda tensor: _named(tensor, found), (call.args, dict(call.kwargs))))
            for place, tensor in enumerate(call.made):
                found[id(tensor)] = number((str(call.operation), arguments, place, str(device)))
        return found


def _named(tensor: Tensor, found: Mapping[int, int]) -> Any:
    return found.get(id(tensor), (tuple(tensor.shape), tensor.dtype))


def _lasts(step: Step, lasting: set[int], written: set[Any]) -> bool:
    """Return whether a step makes the same in every forward, and nothing writes into it."""
    call = step.call
    if call is None or step.role is not Role.CONSTANT or any(memory_of(each) in written for each in call.made):
        return False
    if torch.Tag.nondeterministic_seeded in call.operation.tags or call.name.startswith(("empty", "new_empty")):
        return False
    return call.name in _BY_SHAPE or all(id(tensor) in lasting for tensor in call.given)
