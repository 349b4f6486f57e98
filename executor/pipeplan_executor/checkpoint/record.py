"""Record of a checkpoint except its tensors: ``checkpoint.json`` for people and checks, ``state.pt`` for the rest.

``state.pt`` is read with torch's restricted unpickler, so it holds only numbers, texts, tensors and containers.
"""

import io
import json
import pickle
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from pipeplan.core.errors import InputError
from pipeplan.core.figures import in_one_line, shown, whole
from pipeplan.core.parts import each_a, mapping, printable, switch
from pipeplan.io.atomic import write_whole
from pipeplan_executor.checkpoint.folder import MANIFEST, check_files
from pipeplan_executor.checkpoint.inventory import Entry, Inventory

FORMAT = 2
STATE = "state.pt"


@dataclass(frozen=True)
class Group:
    """A parameter group of an optimiser.

    Attributes
    ----------
    stage, index : int
        The stage, and the group's number in its optimiser.
    options : dict
        Learning rate and the optimiser's other options of a group.
    names : tuple of str
    """

    stage: int
    index: int
    options: dict[str, Any]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Record:
    """A checkpoint except its tensors.

    Attributes
    ----------
    step : int
        Number of completed steps.
    seed : int or None
        Seed of the layers' random numbers; None if unknown.
    model : str
        The plan's name for it.
    inventory : Inventory
        Inventory of the unsplit model.
    layout : list
        Layers and ranks of every stage (see `pipeplan_executor.checkpoint.training_state.layout`).
    kind : str
        Class of the optimiser; empty if nothing is trained.
    groups : tuple of Group
    values : dict
        Optimiser state that is no tensor, by parameter.
    schedulers : dict
        State of every stage's learning-rate schedule, by the stage's number.
    scaler : dict or None
        State of the loss scaler.
    extra : object
        Value that the user saved.
    """

    step: int
    seed: int | None
    model: str
    inventory: Inventory
    layout: list[dict[str, Any]]
    kind: str = ""
    groups: tuple[Group, ...] = ()
    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    schedulers: dict[int, dict[str, Any]] = field(default_factory=dict)
    scaler: dict[str, Any] | None = None
    extra: Any = None

    def groups_of(self, stage: int) -> int:
        """Return the number of groups of a stage's optimiser."""
        return sum(group.stage == stage for group in self.groups)

    def scheduler_for_all(self) -> dict[str, Any] | None:
        """Return a learning-rate schedule's state for the whole model: that of the stage with the most groups."""
        most = max(self.schedulers, key=self.groups_of, default=None)
        return None if most is None else self.schedulers[most]


def write_record(record: Record, path: Path) -> None:
    """Write both files, the manifest last.

    Raises
    ------
    InputError
        If a value could not be read again by the restricted unpickler.
    """
    state = {
        "seed": record.seed,
        "kind": record.kind,
        "groups": [asdict(group) for group in record.groups],
        "values": record.values,
        "schedulers": record.schedulers,
        "scaler": record.scaler,
        "extra": record.extra,
    }
    write_whole(path / STATE, packed(state))
    manifest = {
        "format": FORMAT,
        "step": record.step,
        "model": record.model,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "layout": record.layout,
        "tensors": [asdict(entry) for entry in record.inventory],
    }
    write_whole(path / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def packed(state: dict[str, Any]) -> bytes:
    """Return a state as bytes that torch's restricted unpickler reads.

    Raises
    ------
    InputError
        If it could not read a value again.
    """
    buffer = io.BytesIO()
    try:
        torch.save(state, buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
    except (pickle.PicklingError, pickle.UnpicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"a checkpoint keeps numbers, texts, tensors and lists, tuples and dicts of them (optimiser options, the "
            f"schedule's state, extra=): {str(error).strip().partition(chr(10))[0]}"
        ) from error
    return buffer.getvalue()


def read_record(path: Path) -> Record:
    """Read the files of `write_record`.

    Raises
    ------
    InputError
        If a file is missing, damaged, or of another format.
    """
    try:
        check_files(path)
        manifest = json.loads((path / MANIFEST).read_text())
        if manifest["format"] != FORMAT:
            raise InputError(
                f"{path} has format {shown(manifest['format'])}, this version reads format {FORMAT}; use the version "
                "that wrote it to make a plain file of it (as_plain)"
            )
        state = torch.load(path / STATE, map_location="cpu", weights_only=True)
        record = Record(
            step=manifest["step"],
            model=manifest["model"],
            layout=manifest["layout"],
            inventory=tuple(Entry(**{**entry, "shape": tuple(entry["shape"])}) for entry in manifest["tensors"]),
            groups=tuple(Group(**group) for group in state.pop("groups")),
            **state,
        )
        check_kinds(record, path)
        return record
    except InputError:
        raise
    except Exception as error:  # damaged files raise anything
        raise InputError(f"cannot read checkpoint {path}: {in_one_line(error)}") from error


def check_kinds(record: Record, path: Path) -> None:
    """Refuse values of other kinds than a record has.

    Raises
    ------
    InputError
        With the file and the first such value.
    """
    try:
        _check_kinds(record)
    except InputError as error:
        raise InputError(f"{path} is damaged: {error}") from error


def _check_kinds(record: Record) -> None:
    whole(record.step, "step")
    if record.seed is not None:
        whole(record.seed, "seed", -(2**63), 2**63 - 1)
    printable(record.model, "model"), printable(record.kind, "kind of the optimiser")
    for entry in record.inventory:
        printable(entry.name, "the name of a tensor"), printable(entry.first, f"first of {entry.name!r}")
        switch(entry.parameter, f"parameter of {entry.name!r}")
        for size in entry.shape:
            whole(size, f"the shape of {entry.name!r}")
    for group in record.groups:
        whole(group.stage, "stage of a group"), whole(group.index, "number of a group")
        each_a(group.names, str, "names of a group")
        each_a((*mapping(group.options, "options"),), str, "options")
    for name, values in mapping(record.values, "values").items():
        printable(name, "values"), mapping(values, f"values of {name!r}")
    for stage, state in mapping(record.schedulers, "schedulers").items():
        whole(stage, "stage of a schedule"), mapping(state, f"schedule of stage {stage}")
    if record.scaler is not None:
        mapping(record.scaler, "scaler")
