"""Inventory of the unsplit model, independent of the plan; it matches a checkpoint with its model."""

from collections.abc import Collection
from dataclasses import dataclass

from torch import nn

from pipeplan.core.errors import InputError
from pipeplan.core.wording import some


@dataclass(frozen=True)
class Entry:
    """A parameter or buffer of the unsplit model.

    Attributes
    ----------
    name : str
        Name in ``state_dict()``.
    shape : tuple of int
    parameter : bool
        True for a parameter, False for a buffer.
    first : str
        The first name of the same tensor: ``name`` itself, except for tied weights.
    """

    name: str
    shape: tuple[int, ...]
    parameter: bool
    first: str


Inventory = tuple[Entry, ...]


def take(module: nn.Module) -> Inventory:
    """List all parameters in the order of ``parameters()``, as optimisers number them; then buffers of state dicts."""
    kept = module.state_dict(keep_vars=True)
    firsts: dict[int, str] = {}
    parameters = [
        Entry(name, tuple(tensor.shape), True, firsts.setdefault(id(tensor), name))
        for name, tensor in module.named_parameters(remove_duplicate=False)
    ]
    buffers = [
        Entry(name, tuple(tensor.shape), False, firsts.setdefault(id(tensor), name))
        for name, tensor in module.named_buffers(remove_duplicate=False)
        if name in kept
    ]
    return (*parameters, *buffers)


def first_names(inventory: Inventory) -> dict[str, str]:
    """Map each name to the name under which its tensor is stored."""
    return {entry.name: entry.first for entry in inventory}


def parameter_names(inventory: Inventory) -> list[str]:
    """Return the names of parameters in the order of ``Module.parameters()``: each parameter once."""
    return [entry.name for entry in inventory if entry.parameter and entry.name == entry.first]


def check_same(origin: object, saved: Inventory, own: Inventory) -> None:
    """Refuse a checkpoint of another model.

    Raises
    ------
    InputError
        With the names of the first tensors that only one of them has, or that differ in shape.
    """
    theirs, ours = ({entry.name: entry for entry in inventory} for inventory in (saved, own))
    absent = [name for name in ours if name not in theirs]
    foreign = [name for name in theirs if name not in ours]
    if absent or foreign:
        reasons = [f"it lacks {some(absent)}"] if absent else []
        reasons += [f"the model lacks its {some(foreign)}"] if foreign else []
        raise InputError(f"{origin} is of another model: {'; '.join(reasons)}")
    for name, entry in ours.items():
        if theirs[name].shape != entry.shape:
            raise InputError(
                f"{origin} is of another model: {name} has shape {theirs[name].shape} there, {entry.shape} here"
            )
        if theirs[name].first != entry.first:
            raise InputError(
                f"{origin} is of another model: {name} shares its values with {theirs[name].first} there, with "
                f"{entry.first} here"
            )


def check_complete(keys: Collection[str], inventory: Inventory) -> None:
    """Refuse to save a model with tensors that no stage has.

    Raises
    ------
    InputError
        With their names.
    """
    absent = [entry.name for entry in inventory if entry.name == entry.first and entry.name not in keys]
    if absent:
        raise InputError(
            f"no stage has {some(absent)}, so the checkpoint would not fit the whole model; a parameter that "
            "the model never uses should not be in it"
        )
