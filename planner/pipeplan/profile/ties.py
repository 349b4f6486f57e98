"""Parameters that several layers of a module hold: which they are, and with whom they count.

::

    embedding.tokens.weight ──┐
    block0 …                  ├─ one Parameter object: counts as embedding's, and ties embedding to head
    head.weight ──────────────┘
"""

from collections.abc import Sequence

from torch import nn

from pipeplan.model import Tie


def shared_parameters(module: nn.Module, layers: Sequence[str]) -> tuple[tuple[tuple[str, str], ...], ...]:
    """For each parameter that several layers hold, those layers in order, each with the parameter's name inside it.

    Parameters
    ----------
    module : torch.nn.Module
        On any device, ``meta`` included.
    layers : sequence of str
        Module paths, in the model's order.
    """
    holders: dict[int, list[tuple[str, str]]] = {}
    for layer in layers:
        for name, parameter in module.get_submodule(layer).named_parameters():
            holders.setdefault(id(parameter), []).append((layer, name))
    return tuple(tuple(found) for found in holders.values() if len(found) > 1)


def own_parameters(module: nn.Module, layers: Sequence[str]) -> tuple[tuple[nn.Parameter, ...], ...]:
    """For each layer its trainable parameters that no earlier layer holds."""
    found, seen = [], set[int]()
    for layer in layers:
        own = [p for p in module.get_submodule(layer).parameters() if p.requires_grad and id(p) not in seen]
        seen.update(map(id, own))
        found.append(tuple(own))
    return tuple(found)


def find_ties(module: nn.Module, layers: Sequence[str]) -> tuple[Tie, ...]:
    """One tie for each set of layers that share trainable parameters, with the bytes of all of them."""
    sizes: dict[tuple[str, ...], int] = {}
    for holders in shared_parameters(module, layers):
        layer, name = holders[0]
        parameter = module.get_submodule(layer).get_parameter(name)
        if parameter.requires_grad:
            key = tuple(holder for holder, _ in holders)
            sizes[key] = sizes.get(key, 0) + bytes_of((parameter,))
    return tuple(Tie(names, size) for names, size in sizes.items() if size)


def bytes_of(parameters: Sequence[nn.Parameter]) -> int:
    """Bytes of all of them."""
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)
