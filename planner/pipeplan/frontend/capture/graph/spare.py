"""Parameters and buffers that no operation reads: they stay with the layer that is nearest to them in the model.

So the layers' state is that of the unsplit model, whole, and can be loaded into it again.
"""

from collections.abc import Mapping, MutableMapping, Sequence

from torch import nn

from pipeplan.frontend.profile.ties import named_tensors


def keep_unused(module: nn.Module, layers: Sequence[nn.Module], parameters: Sequence[MutableMapping[str, str]]) -> None:
    """Give each unused tensor to a layer, and its name to that layer's mapping (see `frontend.capture.row.Row`)."""
    tensors = dict(named_tensors(module))
    used = {id(tensors[name]) for names in parameters for name in names.values()}
    for name, tensor in tensors.items():
        if id(tensor) in used:
            continue
        used.add(id(tensor))
        number = max(range(len(layers)), key=lambda n: (_nearness(name, parameters[n]), -n))
        layer = layers[number]
        if not hasattr(layer, "spare"):
            layer.spare = nn.Module()
        local = name.replace(".", "_")
        if isinstance(tensor, nn.Parameter):
            layer.spare.register_parameter(local, tensor)
        else:
            layer.spare.register_buffer(local, tensor, persistent=is_persistent(module, name))
        parameters[number][f"spare.{local}"] = name


def is_persistent(module: nn.Module, name: str) -> bool:
    """Whether a tensor belongs to the module's state_dict."""
    path, _, last = name.rpartition(".")
    return last not in module.get_submodule(path)._non_persistent_buffers_set


def _nearness(name: str, names: Mapping[str, str]) -> int:
    """How many parts the name's path has in common with a layer's names, at most."""
    path = name.split(".")
    return max((_shared(path, other.split(".")) for other in names.values()), default=0)


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
