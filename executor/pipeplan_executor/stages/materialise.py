"""Values for tensors of a model: from the workload's own module, from a file, or drawn from a seed.

The random numbers of a tensor depend only on the seed and on the submodule that owns it. So a stage that builds two
layers and a process that builds the whole model get the same weights, for all boundaries. Tensors for which no
submodule has a rule have the values of their constructors (see `pipeplan_executor.stages.constructed`).
"""

import copy
import inspect
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from pipeplan.core.errors import InputError, PlanError
from pipeplan.frontend.blank import rule_of
from pipeplan.frontend.parameters import named_tensors
from pipeplan_executor.sharding.shards import ParameterShard
from pipeplan_executor.stages.constructed import Constructed
from pipeplan_executor.stages.seeds import derive
from pipeplan_executor.stages.weight_files import opened_weights

_NOTHING = {
    **dict.fromkeys((torch.float64, torch.float32, torch.float16, torch.bfloat16), torch.nan),
    **dict.fromkeys((torch.complex128, torch.complex64), torch.nan),
    **{kind: torch.iinfo(kind).min for kind in (torch.int64, torch.int32, torch.int16)},
}
"""Fill value of a tensor before it is drawn, by its format; numbers that still have it later were not drawn."""
_NO_BIT = 85
"""The same for the bytes of bits, which are 0 or 1."""


def values_of(
    blank: nn.Module,
    own: nn.Module,
    names: Iterable[str],
    *,
    seed: int = 0,
    weights: str | Path | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    shards: Mapping[str, ParameterShard] | None = None,
    constructed: Constructed | None = None,
) -> dict[str, Tensor]:
    """Return the tensors with these names; names of one tensor get one object.

    Parameters
    ----------
    blank : torch.nn.Module
        The unsplit model on the meta device.
    own : torch.nn.Module
        The user's model. Tensors that have values in it keep them, unless they are read from ``weights``.
    names : iterable of str
        Names of parameters and buffers. Nothing else takes memory.
    seed : int
        Seed of tensors without values.
    weights : path, optional
        A state-dict file of the unsplit model, or what else `opened_weights` reads.
    dtype : torch.dtype, optional
        Converts floating-point tensors.
    shards : mapping of str to ParameterShard, optional
        Sharded parameters, of which only the shard is kept. Whole tensors exist for one submodule at a time.
    constructed : Constructed, optional
        Where the values of tensors come from that have no rule.

    Raises
    ------
    InputError
        If the file cannot be read, or lacks a tensor, or has it in another shape.
    PlanError
        If a tensor has no values, no rule to draw them, and no constructor that fills it.
    """
    known, given, parts = dict(named_tensors(blank)), dict(named_tensors(own)), shards or {}
    aliases: dict[int, list[str]] = {}
    for name, tensor in known.items():
        aliases.setdefault(id(tensor), []).append(name)
    wanted = {aliases[id(known[name])][0]: aliases[id(known[name])] for name in names}
    # sources in order: the file, the user's own module, the seed
    found = _read(weights, wanted, known, set(blank.state_dict())) if weights is not None else {}
    found |= {name: given[name] for name in wanted if name not in found and not given[name].is_meta}
    fresh = drawn(blank, [name for name in wanted if name not in found], seed, dtype, parts, constructed)
    placed: dict[str, Tensor] = {}
    for first, others in wanted.items():
        value = fresh.pop(first) if first in fresh else found[first].detach()
        if first in found and first in parts:
            value = parts[first].of(value)
        kind = dtype if dtype is not None and value.is_floating_point() else value.dtype
        value = value.to(device, kind, copy=first in found)
        model = known[first]
        final = nn.Parameter(value, model.requires_grad) if isinstance(model, nn.Parameter) else value
        placed.update(dict.fromkeys(others, final))
    return {name: placed[name] for name in names}


def put(module: nn.Module, name: str, value: Tensor, *, lasting: bool | None = None) -> None:
    """Set a parameter or buffer by its dotted name, with `setattr`, so that recurrent layers update their lists.

    ``lasting``: True if a buffer belongs to the module's ``state_dict``; by default as before.
    """
    path, _, last = name.rpartition(".")
    holder = module.get_submodule(path)
    setattr(holder, last, value)
    if lasting is not None:
        (holder._non_persistent_buffers_set.discard if lasting else holder._non_persistent_buffers_set.add)(last)


def drawn(
    blank: nn.Module,
    names: Iterable[str],
    seed: int,
    dtype: torch.dtype | None = None,
    shards: Mapping[str, ParameterShard] | None = None,
    constructed: Constructed | None = None,
) -> dict[str, Tensor]:
    """Draw tensors by the rules of their owners, on the CPU, so that they are the same on every kind of device.

    The owner of a tensor is the innermost submodule that has it. Its ``reset_parameters`` draws the tensor. So does
    ``_init_weights(submodule)`` of a surrounding module, as in models of ``transformers``. That method is called for
    the owner and for the submodules between, since some draw their children's weights. What no rule fills is
    ``constructed``.
    """
    owners: dict[str, list[str]] = {}
    for name in names:
        owners.setdefault(name.rpartition(".")[0], []).append(name)
    found: dict[str, Tensor] = {}
    undrawn: dict[str, nn.Module] = {}
    if not owners:
        return found
    whole = copy.deepcopy(blank)
    if dtype is not None:
        whole.to(dtype)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for path, wanted in owners.items():
            # only this submodule takes memory, filled with marks
            part = whole.get_submodule(path)
            part.to_empty(device="cpu", recurse=False)
            own = {**part._parameters, **part._buffers}
            for tensor in own.values():
                _mark(tensor)
            # draw it from its own seed, then keep the wanted tensors, or their shards
            torch.default_generator.manual_seed(derive(seed, "weights", path))  # as in `seeds`
            _draw(whole, path)
            for name in wanted:
                value = own[name.rpartition(".")[2]]
                if _is_drawn(value):
                    found[name] = shards[name].of(value) if shards and name in shards else value
                else:
                    undrawn[name] = part
            part.to_empty(device="meta", recurse=False)
    if not undrawn:
        return found
    made = constructed.values(undrawn, seed) if constructed is not None else {}
    for name, owner in undrawn.items():
        if name not in made:
            raise _no_values(name, owner)
        value = made[name]
        if value.is_floating_point() and dtype is not None:
            value = value.to(dtype)
        found[name] = shards[name].of(value) if shards and name in shards else value.clone()
    return found


def _draw(whole: nn.Module, path: str) -> None:
    reset = rule_of(whole.get_submodule(path))
    if reset is not None:
        reset()
    line = [whole.get_submodule(each) for each in _prefixes(path)]
    for number, each in enumerate(line):  # by the innermost that can, as transformers does; their configurations differ
        master = next((outer for outer in line[number:] if _initialises_others(outer)), None)
        if master is not None:
            master._init_weights(each)


def _initialises_others(module: nn.Module) -> bool:
    method = getattr(module, "_init_weights", None)
    return callable(method) and len(inspect.signature(method).parameters) == 1


def _prefixes(path: str) -> Iterator[str]:
    """Yield the path, then those of the surrounding modules, from the inside out."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


def _mark(tensor: Tensor | None) -> None:
    if tensor is None:
        return
    if tensor.dtype == torch.bool:
        tensor.view(torch.uint8).fill_(_NO_BIT)
    elif tensor.dtype in _NOTHING:
        tensor.fill_(_NOTHING[tensor.dtype])


def _is_drawn(tensor: Tensor) -> bool:
    if tensor.dtype == torch.bool:
        return not bool((tensor.view(torch.uint8) == _NO_BIT).any())
    mark = _NOTHING.get(tensor.dtype)
    return mark is None or not bool((tensor.isnan() if mark != mark else tensor == mark).any())


def _no_values(name: str, owner: nn.Module) -> PlanError:
    return PlanError(
        f"{name} has no values and no rule to draw them: the module was given on the meta device, and "
        f"{type(owner).__name__} has no reset_parameters() that fills it. Name the function that builds the model "
        "(module:function), or pass the weights as a state-dict file (--weights file.pt)"
    )


def _read(
    path: str | Path, wanted: Mapping[str, list[str]], known: Mapping[str, Tensor], lasting: set[str]
) -> dict[str, Tensor]:
    """Read tensors from a file or a folder of them; buffers that are never saved are left out."""
    state = opened_weights(path)
    found = {}
    for first, names in wanted.items():
        if lasting.isdisjoint(names):
            continue
        name = next((each for each in names if each in state), None)
        if name is None:
            raise InputError(f"{path} has no {first}; it must hold the unsplit model's state_dict()")
        value = state[name]
        if value.shape != known[first].shape:
            there, expected = tuple(value.shape), tuple(known[first].shape)
            raise InputError(f"{path}: {name} has shape {there}, the model needs {expected}")
        found[first] = value
    return found
