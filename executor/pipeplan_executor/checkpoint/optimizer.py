"""The state of optimisers by the names of parameters: out of the optimisers of stages, and back into them.

What an optimiser keeps for each number of a parameter is a slice of a tensor of the parameter's shape, whatever share
of the parameter the optimiser has. What it keeps for the parameter as a whole (a step count) is the same in every
share.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from pipeplan.core.errors import InputError
from pipeplan_executor.checkpoint.record import Group
from pipeplan_executor.checkpoint.slices import Box, Slice, Stored, numbers_key, optimizer_key, whole_key


@dataclass(frozen=True)
class Part:
    """A parameter as an optimiser has it: whole, or (in a team, or under ZeRO-1) some of its numbers.

    Attributes
    ----------
    name : str
        In the unsplit model; the first one where several layers share it.
    held : Tensor
        What the optimiser holds.
    boxes : tuple of Box
        Where these numbers lie in the parameter.
    shape : tuple of int
        Of the parameter.
    """

    name: str
    held: Tensor
    boxes: tuple[Box, ...]
    shape: tuple[int, ...]

    def sliced(self, values: Tensor) -> Slice:
        """What is kept for each of these numbers."""
        return Slice(values.reshape(-1), self.boxes, self.shape)


@dataclass(frozen=True)
class Taken:
    """The state of one optimiser."""

    tensors: dict[str, Tensor | Slice]
    values: dict[str, dict[str, Any]]
    groups: tuple[Group, ...]


def take(optimizer: torch.optim.Optimizer, parts: Iterable[Part], stage: int) -> Taken:
    """What an optimiser keeps of these of its parameters.

    Raises
    ------
    InputError
        If it keeps something for rows or columns of a parameter of which it has a share only.
    """
    known = {id(part.held): part for part in parts}
    packed = optimizer.state_dict()
    tensors: dict[str, Tensor | Slice] = {}
    values: dict[str, dict[str, Any]] = {}
    groups = []
    for index, (group, live) in enumerate(zip(packed["param_groups"], optimizer.param_groups, strict=True)):
        mine = [
            (number, known[id(p)]) for number, p in zip(group["params"], live["params"], strict=True) if id(p) in known
        ]
        groups.append(Group(stage, index, options_of(group), tuple(part.name for _, part in mine)))
        for number, part in mine:
            numbers, whole, rest = sorted_out(packed["state"].get(number, {}), part.held.shape)
            tensors |= {numbers_key(part.name, key): part.sliced(value) for key, value in numbers.items()}
            for key, value in whole.items():
                if value.dim() and part.held.numel() != prod(part.shape):
                    raise InputError(
                        f"{type(optimizer).__name__} keeps {key} of shape {tuple(value.shape)} for a share of "
                        f"{part.name}; what it keeps must go number by number (or run without ZeRO-1 and "
                        "tensor parallelism)"
                    )
                tensors[whole_key(part.name, key)] = value
            if rest:
                values[part.name] = rest
    return Taken(tensors, values, tuple(groups))


def options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """What was chosen for a group of parameters: learning rate and the like."""
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def sorted_out(
    state: Mapping[str, Any], shape: Sequence[int]
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """What an optimiser keeps for each number of a parameter, what for it as a whole, and what is no tensor."""
    numbers, whole, values = {}, {}, {}
    for key, value in state.items():
        if not isinstance(value, Tensor):
            values[key] = value
        elif key != "step" and value.shape == shape:
            numbers[key] = value.detach()
        else:
            whole[key] = value.detach()
    return numbers, whole, values


class Kept:
    """Where a checkpoint has which parameter's state.

    Parameters
    ----------
    stored : mapping of str to Stored
        All its tensors, by key.
    values, groups
        As in `pipeplan_executor.checkpoint.record.Record`.
    """

    def __init__(
        self, stored: Mapping[str, Stored], values: Mapping[str, Mapping[str, Any]], groups: Iterable[Group]
    ) -> None:
        self._values = values
        self._options = {name: group.options for group in groups for name in group.names}
        self._tensors: dict[str, list[tuple[str, bool, str, Stored]]] = {}
        for full, seen in stored.items():
            said = optimizer_key(full)
            if said is not None:
                by_number, name, key = said
                self._tensors.setdefault(name, []).append((full, by_number, key, seen))

    def room(self, part: Part) -> tuple[dict[str, Tensor | Slice], dict[str, Any]]:
        """Empty tensors for the state of a part: to be read, by key, and as the optimiser will have them."""
        wanted: dict[str, Tensor | Slice] = {}
        state: dict[str, Any] = dict(self._values.get(part.name, {}))
        for full, by_number, key, seen in self._tensors.get(part.name, []):
            device = "cpu" if key == "step" else part.held.device
            if by_number:
                numbers = torch.empty(part.held.numel(), dtype=seen.dtype, device=device)
                wanted[full], state[key] = part.sliced(numbers), numbers.view(part.held.shape)
            else:
                wanted[full] = state[key] = torch.empty(seen.shape, dtype=seen.dtype, device=device)
        return wanted, state

    def options(self, names: Iterable[str]) -> dict[str, Any]:
        """What was chosen for the group of these parameters; empty if nothing was."""
        return next((self._options[name] for name in names if name in self._options), {})


def put(
    optimizer: torch.optim.Optimizer, parts: Iterable[Part], states: Mapping[str, dict[str, Any]], kept: Kept
) -> None:
    """Give an optimiser the states of its parameters, by name, once they are read; and the groups their options."""
    known = {id(part.held): part for part in parts}
    packed = optimizer.state_dict()
    state = {}
    groups = []
    for group, live in zip(packed["param_groups"], optimizer.param_groups, strict=True):
        names = [known[id(parameter)].name for parameter in live["params"]]
        state.update({n: states[name] for n, name in zip(group["params"], names, strict=True) if states[name]})
        groups.append({**group, **kept.options(names)})
    optimizer.load_state_dict({"state": state, "param_groups": groups})
