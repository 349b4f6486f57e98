"""Sources of a load with one interface: a checkpoint, or a plain file of the whole model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from pipeplan.core.errors import InputError
from pipeplan.core.figures import in_one_line
from pipeplan_executor.checkpoint import slices
from pipeplan_executor.checkpoint.inventory import Entry, Inventory, first_names, parameter_names
from pipeplan_executor.checkpoint.optimizer import options_of, split_state
from pipeplan_executor.checkpoint.record import Group, Record, check_kinds, read_record
from pipeplan_executor.checkpoint.slices import Slice, Stored, Tensors, model_key, numbers_key, whole_key


class Origin(Protocol):
    """Source of a load: a record, and tensors by key."""

    @property
    def record(self) -> Record:
        """Everything except the tensors."""

    @property
    def stored(self) -> Mapping[str, Stored]:
        """Shape and type of every tensor, by key."""

    def read(self, wanted: Tensors) -> None:
        """Fill the wanted tensors in place."""


def open_origin(path: Path, inventory: Inventory) -> Origin:
    """Open a checkpoint's folder, or a plain file for a model of this inventory.

    Raises
    ------
    InputError
        If it cannot be read.
    """
    return Folder(path) if path.is_dir() else from_plain(path, inventory)


class Folder:
    """A checkpoint's folder as a source."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.record = read_record(path)
        self.stored = slices.stored(path)

    def read(self, wanted: Tensors) -> None:
        """Read the wanted parts of the files."""
        slices.read(self._path, wanted)


@dataclass(frozen=True)
class Plain:
    """A plain file as a source; tensors by their keys in a checkpoint."""

    record: Record
    tensors: Mapping[str, Tensor]

    @property
    def stored(self) -> Mapping[str, Stored]:
        """Shape and type of every tensor, by key."""
        return {key: Stored(tuple(value.shape), value.dtype) for key, value in self.tensors.items()}

    def read(self, wanted: Tensors) -> None:
        """Copy the wanted tensors from the memory-mapped file."""
        with torch.no_grad():
            for key, target in wanted.items():
                if isinstance(target, Slice):
                    for box, values in target.parts():
                        values.copy_(box.of(self.tensors[key]))
                else:
                    target.copy_(self.tensors[key])


def from_plain(path: Path, inventory: Inventory) -> Plain:
    """Read a file with a whole model's state dict, alone or together with the optimiser's.

    Raises
    ------
    InputError
        If it is not such a file.
    """
    try:
        content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # other files may raise anything
        raise InputError(f"cannot read {path}: {in_one_line(error)}") from error
    if not isinstance(content, Mapping):
        raise InputError(f"{path} holds {type(content).__name__}; it must hold a model's state_dict()")
    try:
        plain = _plain(path, content, inventory)
        check_kinds(plain.record, path)
        return plain
    except InputError:
        raise
    except Exception as error:  # so may content of another kind
        raise InputError(
            f"{path} is no plain file of a model and its optimiser ({in_one_line(error)}); "
            "torch.save of a result of as_plain() writes one"
        ) from error


def _plain(path: Path, content: Mapping[str, Any], inventory: Inventory) -> Plain:
    if "model" not in content:
        content = {"model": content}
    model = {name: value for name, value in content["model"].items() if isinstance(value, Tensor)}
    tensors = {model_key(name): value for name, value in model.items()}
    names = parameter_names(inventory)
    groups, values = [], {}
    packed = content.get("optimizer") or {"state": {}, "param_groups": []}
    for index, (group, members) in enumerate(_members(path, packed["param_groups"], names)):
        groups.append(Group(0, index, options_of(group), tuple(members.values())))
        for number, name in members.items():
            if name not in model:
                continue  # the file is of another model, which check_same refuses later
            numbers, whole, values[name] = split_state(packed["state"].get(number, {}), model[name].shape)
            tensors |= {numbers_key(name, key): value for key, value in numbers.items()}
            tensors |= {whole_key(name, key): value for key, value in whole.items()}
    scheduler = content.get("scheduler")
    return Plain(
        Record(
            step=content.get("step", 0),
            seed=content.get("seed"),
            model=path.name,
            inventory=_listed(model, inventory),
            layout=[],
            kind=str(content.get("kind", "")),
            groups=tuple(groups),
            values=values,
            schedulers={} if scheduler is None else {0: scheduler},
            scaler=content.get("scaler"),
            extra=content.get("extra"),
        ),
        tensors,
    )


def _members(path: Path, groups: list[dict[str, Any]], names: list[str]) -> list[tuple[dict[str, Any], dict[int, str]]]:
    """Return each group with the names of its parameters, by their numbers in the optimiser."""
    if all("param_names" in group for group in groups):
        return [(group, dict(zip(group["params"], group["param_names"], strict=True))) for group in groups]
    count = sum(len(group["params"]) for group in groups)
    if len(groups) > 1 or count != len(names):
        raise InputError(
            f"{path}: the optimiser has {len(groups)} groups of {count} parameters in all and does not name them, so "
            f"they cannot be told apart (the model has {len(names)}); build it with named_parameters() before saving"
        )
    return [(group, dict(zip(group["params"], names, strict=True))) for group in groups]


def _listed(model: Mapping[str, Tensor], inventory: Inventory) -> Inventory:
    """Return the inventory of a state dict; names that share values are taken from the model's inventory."""
    own = {entry.name: entry for entry in inventory}
    firsts = first_names(inventory)
    found = [
        Entry(name, tuple(value.shape), own[name].parameter if name in own else True, firsts.get(name, name))
        for name, value in model.items()
    ]
    alone = [entry for entry in inventory if entry.name not in model and entry.first in model]
    return (*found, *alone)
