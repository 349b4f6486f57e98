"""Shared parameters: those that several layers of a model hold, and the layer with which each counts.

::

    embedding.tokens.weight ──┐
    block0 …                  ├─ one Parameter object: counts as embedding's, and ties embedding to head
    head.weight ──────────────┘
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from torch import Tensor, nn

from pipeplan.core.model import Tie

Held: TypeAlias = Sequence[Mapping[str, str]]
"""For each layer, the names of its parameters and buffers in the unsplit model, by their names in the layer."""


def named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All parameters and buffers of a module, under all their names."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def held_by(module: nn.Module, layers: Sequence[str]) -> tuple[dict[str, str], ...]:
    """Names of the parameters and buffers of layers that are submodules, given by their paths."""
    return tuple(
        {local: f"{path}.{local}" for local, _ in named_tensors(module.get_submodule(path))} for path in layers
    )


def shared_parameters(module: nn.Module, held: Held) -> tuple[tuple[tuple[int, str], ...], ...]:
    """For each parameter that several layers hold, these layers' numbers in order, each with its name there.

    Parameters
    ----------
    module : torch.nn.Module
        The unsplit model, on any device, ``meta`` included.
    held : sequence of mapping
        Names by layer, in the model's order. The returned names are those of the unsplit model.
    """
    known = dict(module.named_parameters(remove_duplicate=False))
    holders: dict[int, dict[int, str]] = {}
    for number, names in enumerate(held):
        for name in names.values():
            if name in known:
                holders.setdefault(id(known[name]), {}).setdefault(number, name)
    return tuple(tuple(found.items()) for found in holders.values() if len(found) > 1)


def own_parameters(module: nn.Module, held: Held, trained: bool = True) -> tuple[tuple[nn.Parameter, ...], ...]:
    """For each layer, its trainable parameters that no earlier layer holds; or its frozen ones."""
    known = dict(module.named_parameters(remove_duplicate=False))
    found, seen = [], set[int]()
    for names in held:
        here = {id(known[name]): known[name] for name in names.values() if name in known}
        found.append(tuple(p for key, p in here.items() if p.requires_grad == trained and key not in seen))
        seen.update(here)
    return tuple(found)


def find_ties(module: nn.Module, layers: Sequence[str], held: Held) -> tuple[Tie, ...]:
    """One tie for each set of layers that share parameters, with the bytes of trainable and of frozen ones.

    Parameters
    ----------
    layers : sequence of str
        Names of the layers.
    """
    sizes: dict[tuple[str, ...], list[int]] = {}
    for holders in shared_parameters(module, held):
        parameter = module.get_parameter(holders[0][1])
        key = tuple(layers[number] for number, _ in holders)
        sizes.setdefault(key, [0, 0])[not parameter.requires_grad] += bytes_of((parameter,))
    return tuple(Tie(names, *size) for names, size in sizes.items() if any(size))


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Total bytes of the tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
