"""Conversion of a checkpoint to plain torch: state dicts of the whole model and of one optimiser for it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeplan.core.errors import InputError
from pipeplan.core.wording import some
from pipeplan.io.atomic import replacing
from pipeplan_executor.checkpoint.folder import resolve
from pipeplan_executor.checkpoint.inventory import parameter_names
from pipeplan_executor.checkpoint.record import Record, read_record
from pipeplan_executor.checkpoint.slices import model_key, optimizer_key, read, stored
from pipeplan_executor.stages.weight_files import NEEDED


def as_plain(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint for a model without a pipeline; no process group is needed.

    Parameters
    ----------
    path : path
        A checkpoint, or a folder of them, of which the latest is read.

    Returns
    -------
    dict
        ``model``: state dict of the unsplit module. ``optimizer``: state dict of an optimiser of its
        ``parameters()``, whose groups also name them; None if nothing is trained. ``scheduler``, ``scaler``,
        ``step``, ``seed``, ``kind`` (the optimiser's class), ``extra``. `torch.save` writes it to a file that
        `load` reads.

    Raises
    ------
    InputError
        If there is no complete checkpoint.
    """
    path = resolve(path)
    record = read_record(path)
    room = {key: torch.empty(seen.shape, dtype=seen.dtype) for key, seen in stored(path).items()}
    absent = [entry.name for entry in record.inventory if model_key(entry.first) not in room]
    if absent:
        raise InputError(f"{path} is damaged: it lacks {some(absent)}")
    read(path, room)
    model = {entry.name: room[model_key(entry.first)] for entry in record.inventory}
    return {
        "model": model,
        "optimizer": _optimizer(record, room) if record.kind else None,
        "scheduler": record.scheduler_for_all(),
        "scaler": record.scaler,
        "step": record.step,
        "seed": record.seed,
        "kind": record.kind,
        "extra": record.extra,
    }


def save_safetensors(path: str | Path, file: str | Path) -> None:
    """Write the weights of a checkpoint as a safetensors file, for `transformers` and others; no processes are needed.

    Weights that several names share are written once, and the file says which names those are, as safetensors' own
    ``save_model`` does: ``load_model`` and ``from_pretrained`` tie them again.

    Parameters
    ----------
    path : path
        A checkpoint, or a folder of them, of which the latest is read.
    file : path
        Like ``'my-model/model.safetensors'``; it appears when all of it is written.

    Raises
    ------
    InputError
        If there is no complete checkpoint, or the package safetensors is missing.
    """
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise InputError(NEEDED) from error
    firsts: dict[int, str] = {}
    written, shared = dict[str, Tensor](), {"format": "pt"}
    for name, tensor in as_plain(path)["model"].items():
        first = firsts.setdefault(id(tensor), name)
        if first == name:
            written[name] = tensor.contiguous()
        else:
            shared[name] = first
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    with replacing(Path(file)) as part:
        save_file(written, part, metadata=shared)


def _optimizer(record: Record, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    states: dict[str, dict[str, Any]] = {name: dict(values) for name, values in record.values.items()}
    for full, value in tensors.items():
        said = optimizer_key(full)
        if said is not None:
            _, name, key = said
            states.setdefault(name, {})[key] = value
    groups, state, count = [], {}, 0
    for options, names in _groups(record):
        numbers = list(range(count, count + len(names)))
        count += len(names)
        groups.append({**options, "params": numbers, "param_names": names})
        state.update({number: states[name] for number, name in zip(numbers, names, strict=True) if name in states})
    return {"state": state, "param_groups": groups}


def _groups(record: Record) -> list[tuple[dict[str, Any], list[str]]]:
    """Merge the parameter groups of all stages into those of one optimiser.

    Groups of equal number are merged if their options agree everywhere; otherwise groups of equal options. A single
    group also gets the parameters that are not trained, as in an optimiser of ``parameters()``.
    """
    by_index: dict[int, list[dict[str, Any]]] = {}
    for group in record.groups:
        by_index.setdefault(group.index, []).append(group.options)
    alike = all(options == same[0] for same in by_index.values() for options in same)
    found: list[tuple[Any, dict[str, Any], set[str]]] = []
    for group in sorted(record.groups, key=lambda group: (group.index, group.stage)):
        mark = group.index if alike else group.options
        place = next((names for other, _, names in found if other == mark), None)
        if place is None:
            found.append((mark, group.options, place := set()))
        place.update(group.names)
    order = parameter_names(record.inventory)
    if len(found) == 1:
        return [(found[0][1], order)]
    return [(options, [name for name in order if name in names]) for _, options, names in found]
