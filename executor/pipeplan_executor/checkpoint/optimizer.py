"""Optimiser state by the names of parameters: extracted from the optimisers of stages, and restored into them.

State per number of a parameter is stored as a slice of a tensor of the parameter's shape, for any share of the
parameter that the optimiser has. State per parameter (a step count) is the same in every share.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from pipeplan.core.errors import InputError
from pipeplan.core.figures import shown
from pipeplan_executor.checkpoint.record import Group
from pipeplan_executor.checkpoint.slices import Piece, Slice, Stored, numbers_key, optimizer_key, whole_key


@dataclass(frozen=True)
class Part:
    """A parameter of an optimiser: whole, or (under tensor parallelism or ZeRO-1) some of its numbers.

    Attributes
    ----------
    name : str
        Name in the unsplit model; the first one if several layers share it.
    tensor : Tensor
        The optimiser's parameter.
    pieces : tuple of Piece
        Positions of these numbers in the parameter.
    shape : tuple of int
        Shape of the whole parameter.
    """

    name: str
    tensor: Tensor
    pieces: tuple[Piece, ...]
    shape: tuple[int, ...]

    def sliced(self, values: Tensor) -> Slice:
        """Return values of these numbers as a slice of the whole parameter."""
        return Slice(values.reshape(-1), self.pieces, self.shape)


@dataclass(frozen=True)
class OptimizerState:
    """State of one optimiser: tensors by key, other values by parameter, and parameter groups."""

    tensors: dict[str, Tensor | Slice]
    values: dict[str, dict[str, Any]]
    groups: tuple[Group, ...]


def take(optimizer: torch.optim.Optimizer, parts: Iterable[Part], stage: int) -> OptimizerState:
    """Extract an optimiser's state of these parameters.

    Raises
    ------
    InputError
        If it has state per row or column of a parameter of which it has only a share.
    """
    known = {id(part.tensor): part for part in parts}
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
            numbers, whole, rest = split_state(packed["state"].get(number, {}), part.tensor.shape)
            tensors |= {numbers_key(part.name, key): part.sliced(value) for key, value in numbers.items()}
            for key, value in whole.items():
                if value.dim() and part.tensor.numel() != prod(part.shape):
                    raise InputError(
                        f"{type(optimizer).__name__} keeps {key} of shape {tuple(value.shape)} for a share of "
                        f"{part.name}; its state must be per number (or run without ZeRO-1 and "
                        "tensor parallelism)"
                    )
                tensors[whole_key(part.name, key)] = value
            if rest:
                values[part.name] = rest
    return OptimizerState(tensors, values, tuple(groups))


def options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a parameter group: learning rate and the like."""
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def split_state(
    state: Mapping[str, Any], shape: Sequence[int]
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """Split an optimiser's state of a parameter into tensors per number, other tensors, and other values."""
    numbers, whole, values = {}, {}, {}
    for key, value in state.items():
        if not isinstance(value, Tensor):
            values[key] = value
        elif key != "step" and value.shape == shape:
            numbers[key] = value.detach()
        else:
            whole[key] = value.detach()
    return numbers, whole, values


def _alike(one: object, other: object) -> bool:
    """Return whether an option of an optimiser and a saved one are of one kind: numbers, switches, or rows of them."""
    if one is None or (other is None and isinstance(one, bool)):  # switches may be left to torch
        return True
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_alike, one, other))
    numbers = (int, float, Tensor)
    if isinstance(one, bool) or isinstance(other, bool):
        return isinstance(one, bool) and isinstance(other, bool)
    return type(one) is type(other) or (isinstance(one, numbers) and isinstance(other, numbers))


class StoredStates:
    """Index of the optimiser states in a checkpoint, by parameter.

    Parameters
    ----------
    stored : mapping of str to Stored
        All tensors of the checkpoint, by key.
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

    def allocate(self, part: Part) -> tuple[dict[str, Tensor | Slice], dict[str, Any]]:
        """Allocate tensors for the state of a part; return them by key, for reading, and as the optimiser's state."""
        wanted: dict[str, Tensor | Slice] = {}
        state: dict[str, Any] = dict(self._values.get(part.name, {}))
        for full, by_number, key, seen in self._tensors.get(part.name, []):
            device = "cpu" if key == "step" else part.tensor.device
            if by_number:
                numbers = torch.empty(part.tensor.numel(), dtype=seen.dtype, device=device)
                wanted[full], state[key] = part.sliced(numbers), numbers.view(part.tensor.shape)
            else:
                wanted[full] = state[key] = torch.empty(seen.shape, dtype=seen.dtype, device=device)
        return wanted, state

    def options(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the options of the group of these parameters; empty if none were saved."""
        return next((self._options[name] for name in names if name in self._options), {})


def put(
    optimizer: torch.optim.Optimizer, parts: Iterable[Part], states: Mapping[str, dict[str, Any]], kept: StoredStates
) -> None:
    """Restore an optimiser from the states of its parameters, by name, and its groups' options."""
    known = {id(part.tensor): part for part in parts}
    packed = optimizer.state_dict()
    state = {}
    groups = []
    for group, live in zip(packed["param_groups"], optimizer.param_groups, strict=True):
        names = [known[id(parameter)].name for parameter in live["params"]]
        state.update({n: states[name] for n, name in zip(group["params"], names, strict=True) if states[name]})
        options = kept.options(names)
        for key, value in options.items():
            if not _alike(group.get(key), value):
                raise InputError(f"the saved option {key} of {names[0]} is {shown(value)}, and this one {group[key]!r}")
        groups.append({**group, **options})
    optimizer.load_state_dict({"state": state, "param_groups": groups})
