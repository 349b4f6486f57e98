"""Sources that a run can be loaded from, with one interface: a checkpoint, or a plain file of the whole model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from pipeplan.core.errors import InputError
from pipeplan_executor.checkpoint import slices
from pipeplan_executor.checkpoint.inventory import Entry, Inventory, first_names, parameter_names
from pipeplan_executor.checkpoint.optimizer import options_of, sorted_out
from pipeplan_executor.checkpoint.record import Group, Record, read_record
from pipeplan_executor.checkpoint.slices import Slice, Stored, Tensors, model_key, numbers_key, whole_key


class Origin(Protocol):
    """Something that knows its tensors by key, and fills those that are wanted."""

    @property
    def record(self) -> Record:
        """All but the tensors."""

    @property
    def stored(self) -> Mapping[str, Stored]:
        """What tensors there are."""

    def read(self, wanted: Tensors) -> None:
        """Fill them in place."""


def open_origin(path: Path, inventory: Inventory) -> Origin:
    """A checkpoint's folder, or a plain file for a model of this inventory.

    Raises
    ------
    InputError
        If it cannot be read.
    """
    return Folder(path) if path.is_dir() else from_plain(path, inventory)


class Folder:
    """A checkpoint."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.record = read_record(path)
        self.stored = slices.stored(path)

    def read(self, wanted: Tensors) -> None:
        """Those parts of files that are needed."""
        slices.read(self._path, wanted)


@dataclass(frozen=True)
class Plain:
    """A plain file's tensors, by the keys that they would have in a checkpoint."""

    record: Record
    tensors: Mapping[str, Tensor]

    @property
    def stored(self) -> Mapping[str, Stored]:
        """What there is."""
        return {key: Stored(tuple(value.shape), value.dtype) for key, value in self.tensors.items()}

    def read(self, wanted: Tensors) -> None:
        """Copied from memory; the file itself is mapped."""
        with torch.no_grad():
            for key, target in wanted.items():
                if isinstance(target, Slice):
                    for box, values in target.parts():
                        values.copy_(box.of(self.tensors[key]))
                else:
                    target.copy_(self.tensors[key])


def from_plain(path: Path, inventory: Inventory) -> Plain:
    """A file with a whole model's state dict, alone or with the optimiser's beside it.

    Raises
    ------
    InputError
        If it is no such file.
    """
    try:
        content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # whatever a file that is something else raises
        raise InputError(f"cannot read {path}: {type(error).__name__}: {error}".partition("\n")[0]) from error
    if not isinstance(content, Mapping):
        raise InputError(f"{path} holds {type(content).__name__}; it must hold a model's state_dict()")
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
                continue  # the file is of another model, as will be told
            numbers, whole, values[name] = sorted_out(packed["state"].get(number, {}), model[name].shape)
            tensors |= {numbers_key(name, key): value for key, value in numbers.items()}
            tensors |= {whole_key(name, key): value for key, value in whole.items()}
    scheduler = content.get("scheduler")
    return Plain(
        Record(
            step=int(content.get("step", 0)),
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
    """Each group with the names of its parameters, by the numbers that the optimiser gave them."""
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
    """What a state dict has, as far as it can be known: which names share values is the model's to say."""
    own = {entry.name: entry for entry in inventory}
    firsts = first_names(inventory)
    found = [
        Entry(name, tuple(value.shape), own[name].parameter if name in own else True, firsts.get(name, name))
        for name, value in model.items()
    ]
    alone = [entry for entry in inventory if entry.name not in model and entry.first in model]
    return (*found, *alone)
