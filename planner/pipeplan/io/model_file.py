"""Read and write models as YAML: layers, their work, ties and profiles.

::

    format: pipeplan-model/1
    name: tiny
    dtype: float32
    layers:
      - {name: embed, kind: Embedding, parameters: 4MiB, work: {forward_flops: 0, ...}}
      - repeat: 12
        layers:
          - {name: 'block.{i}', kind: Block, parameters: 28MiB}       # without inputs it reads the previous layer
      - {name: head, parameters: 1KiB, inputs: [block.11]}
    ties:
      - {layers: [embed, head], parameters: 4MiB}      # counts for embed; omitted if no layers share weights
    operators:                                         # of layers that say ``operators: block``
      block:
        input: 1MiB
        operators:
          - {name: widen, kind: linear, loops: {out: 4096}, reads: {input: [token, in]}, makes: [token, out], ...}
    profiles:
      - device: v100-16gb
        micro_batch: 8
        provenance: {how: measured, source: torch 2.13.0}
        costs:
          embed: {forward: 120us, backward: 200us, input_gradient: 0, weight_gradient: 200us, saved: 2MiB, output: 2MiB}
    slice_profiles:                                    # of token slices, where some were measured
      - {device: v100-16gb, micro_batch: 8, tokens: 128, provenance: {...}, first: {embed: {...}}, last: {embed: {...}}}
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from pipeplan.core.errors import InputError
from pipeplan.core.figures import MOST_LAYERS, shown
from pipeplan.core.layers import tie_faults
from pipeplan.core.model import Layer, Model, Tie, Work
from pipeplan.core.wording import hint
from pipeplan.io.atomic import write_whole
from pipeplan.io.operators_entry import OperatorsEntry, operators_data
from pipeplan.io.profiles_entry import (
    ProfileEntry,
    SliceProfileEntry,
    profile_data,
    profile_of,
    slice_profile_data,
    slice_profile_of,
)
from pipeplan.io.repeat import Group, fold
from pipeplan.io.schema import (
    Bytes,
    Count,
    Flops,
    Items,
    Strict,
    check,
    listing,
    written_bytes,
    written_flops,
)
from pipeplan.io.text import Line, Row, lean, parse_data, read_text, yaml_text

FORMAT = "pipeplan-model/1"


class WorkEntry(Strict):
    """Operations and bytes of a layer for one sample; see `pipeplan.Work`."""

    forward_flops: Flops
    """Operations of the forward; a multiply-add is two."""
    input_gradient_flops: Flops
    """Operations of the gradient of the input."""
    weight_gradient_flops: Flops
    """Operations of the gradients of the weights."""
    output: Bytes
    """Bytes that the next layer reads."""
    saved: Bytes
    """Bytes kept for the backward, the output included."""
    workspace: Bytes = 0
    """Bytes that exist only while the layer computes, for each sample."""
    workspace_fixed: Bytes = 0
    """Such bytes that do not grow with the samples: a weight's gradient before it is added up."""
    uncounted: Items[str] = ()
    """Names of operations of which nothing is counted, since their arithmetic is unknown."""


class PlainLayer(Strict):
    """One layer. Without ``inputs`` it reads the previous layer; an empty list means only the batch."""

    describes = Layer

    name: str
    kind: str = ""
    parameters: Bytes = 0
    inputs: Items[str] | None = None
    """Layers that this one reads; the previous layer if left out, only the batch if empty."""
    work: WorkEntry | None = None
    """Operations and bytes of one sample, for estimates on devices without a profile."""
    operators: str = ""
    frozen: Bytes = 0


class LayerEntry(PlainLayer):
    """One layer, or with ``repeat`` a group of them."""

    name: str | None = None  # type: ignore[assignment]
    """A module path, or a name of your choice; {i} is the number in a group."""
    repeat: Count | None = None
    """Repeat the group of layers this often."""
    first: int = 0
    """Number of the group's first repetition."""
    layers: Items[PlainLayer] | None = None
    """Layers of a group."""


class TieEntry(Strict):
    """Layers that share weights; see `pipeplan.Tie`."""

    describes = Tie

    layers: Items[str]
    parameters: Bytes = 0
    frozen: Bytes = 0


class ModelFile(Strict):
    """Schema of a model file."""

    format: Literal["pipeplan-model/1"] = "pipeplan-model/1"
    """Version of the format."""
    name: str
    """Name in answers and plans."""
    dtype: str = "float32"
    """Format of the numbers: float32, bfloat16, float16."""
    notes: Items[str] = ()
    """Remarks, like what a sample is."""
    layers: Items[LayerEntry]
    """Layers, each after those that it reads."""
    ties: Items[TieEntry] = ()
    """Layers that share weights."""
    operators: dict[str, OperatorsEntry] = Field(default_factory=dict)
    """Operators of layers, by the name that layers give; profiles have them, to split layers over teams."""
    profiles: Items[ProfileEntry] = ()
    """Measured costs, one entry for each kind of device and micro-batch size."""
    slice_profiles: Items[SliceProfileEntry] = ()
    """Measured token slices, entries of the same lengths for each micro-batch size of a kind of device."""


def read_model(path: Path) -> Model:
    """Read a model from a YAML file.

    Raises
    ------
    InputError
        Naming every fault with its path.
    """
    return model_from_data(parse_data(read_text(path), str(path)), str(path))


def model_from_data(data: Any, where: str) -> Model:
    """Build a model from plain data; ``where`` names the source in errors."""
    file = check(ModelFile, data, where)
    complaints = [text for n, entry in enumerate(file.layers) for text in _form(entry, f"layers[{n}]")]
    if complaints:
        raise InputError(listing(where, complaints))
    count = sum((entry.repeat or 1) * len(entry.layers or (entry,)) for entry in file.layers)
    if count > MOST_LAYERS:
        raise InputError(f"{where}: has {shown(count)} layers; {MOST_LAYERS} are the most that can be taken")
    layers = _layers(file.layers)
    names = [layer.name for layer in layers]
    tables = [(f"profiles[{n}].costs", each.costs) for n, each in enumerate(file.profiles)]
    for n, own in enumerate(file.slice_profiles):
        tables += [(f"slice_profiles[{n}].{name}", getattr(own, name)) for name in ("first", "last")]
    known = set(names)
    for path, costs in tables:
        complaints += [f"{path}.{name}: missing" for name in names if name not in costs]
        complaints += [
            f"{path}.{name}: the model has no such layer{hint(name, names)}" for name in costs if name not in known
        ]
    ties = tuple(Tie(entry.layers, entry.parameters, entry.frozen) for entry in file.ties)
    for n, tie in enumerate(ties):
        complaints += [f"ties[{n}]: {fault}" for fault in tie_faults(tuple(layers), (tie,))]
    if complaints:
        raise InputError(listing(where, complaints))
    profiles = tuple(profile_of(entry, names) for entry in file.profiles)
    slices = tuple(slice_profile_of(entry, names) for entry in file.slice_profiles)
    try:
        operators = {name: entry.graph() for name, entry in file.operators.items()}
        return Model(file.name, tuple(layers), profiles, file.dtype, file.notes, ties, operators, slice_profiles=slices)
    except InputError as error:
        raise InputError(listing(where, [str(error)])) from error


def _form(entry: LayerEntry, path: str) -> list[str]:
    """Return the faults of an entry that is neither a valid layer nor a valid group."""
    if entry.repeat is None and entry.layers is None:
        return [f"{path}.name: missing"] if entry.name is None else []
    complaints = []
    if entry.repeat is None:
        complaints.append(f"{path}.repeat: missing; say how often the group repeats")
    if not entry.layers:
        complaints.append(f"{path}.layers: missing; list the layers that repeat")
    for field in ("name", "kind", "inputs", "work", "operators", "frozen"):
        if getattr(entry, field):
            complaints.append(f"{path}.{field}: a group has none; give it to the layers in the group")
    if entry.repeat and entry.repeat > 1:
        for n, layer in enumerate(entry.layers or ()):
            if "{i}" not in layer.name:
                complaints.append(f"{path}.layers[{n}].name: {layer.name!r} needs {{i}}, as names must differ")
    return complaints


def _layers(entries: Sequence[LayerEntry]) -> list[Layer]:
    found: list[Layer] = []
    for entry in entries:
        turns = range(entry.first, entry.first + (entry.repeat or 1)) if entry.layers else [None]
        for i in turns:
            for plain in entry.layers or (entry,):
                found.append(_layer(plain, i, found[-1:]))
    return found


def _layer(entry: PlainLayer, i: int | None, before: list[Layer]) -> Layer:
    def named(text: str) -> str:
        return text if i is None else text.replace("{i}", str(i))

    inputs = tuple(layer.name for layer in before) if entry.inputs is None else tuple(map(named, entry.inputs))
    work = None if entry.work is None else Work(*(getattr(entry.work, field) for field in WorkEntry.model_fields))
    return Layer(named(entry.name), entry.parameters, inputs, work, entry.kind, entry.operators, entry.frozen)


def write_model(model: Model, path: Path) -> None:
    """Write a model atomically, as `read_model` reads it."""
    write_whole(Path(path), yaml_text(model_data(model)))


def model_data(model: Model) -> dict[str, Any]:
    """Return the plain data of a model, as in a file."""
    head = {"format": FORMAT, "name": model.name, "dtype": model.dtype} | lean(notes=list(model.notes))
    layers = [_entry_data(entry, chained) for entry, chained in _entries(model.layers)]
    profiles = [profile_data(profile, model.names) for profile in model.profiles]
    ties = [Row(layers=Line(tie.layers), **_shared_bytes(tie)) for tie in model.ties]
    operators = {name: operators_data(graph) for name, graph in model.operators.items()}
    slices = [slice_profile_data(own, model.names) for own in model.slice_profiles]
    known = {"ties": ties, "operators": operators, "profiles": profiles, "slice_profiles": slices}
    return head | {"layers": layers} | lean(**known)


def _shared_bytes(tie: Tie) -> dict[str, Any]:
    sizes = {"parameters": tie.parameters, "frozen": tie.frozen}
    return {name: written_bytes(size) for name, size in sizes.items() if size}


def _entries(layers: Sequence[Layer]) -> list[tuple[Layer | Group, tuple[bool, ...]]]:
    """Return layers and groups, and for each of their layers whether it reads only the previous layer.

    Inputs that are only the previous layer are hidden while searching for repetition and omitted in the file. So the
    first layer of a block may read the last one of the previous block, whose number is one lower.
    """
    hidden = [_hide(layer, layers[n - 1 : n]) for n, layer in enumerate(layers)]
    return [
        (entry, tuple(layer.inputs == _BEFORE for layer in (entry.layers if isinstance(entry, Group) else (entry,))))
        for entry in fold(hidden)
    ]


_BEFORE = ("\0the layer before",)


def _hide(layer: Layer, before: Sequence[Layer]) -> Layer:
    if layer.inputs == tuple(other.name for other in before):
        return replace(layer, inputs=_BEFORE)
    return layer


def _entry_data(entry: Layer | Group, chained: tuple[bool, ...]) -> dict[str, Any]:
    if isinstance(entry, Layer):
        return _layer_data(entry, chained[0])
    group: dict[str, Any] = {"repeat": entry.count} | ({"first": entry.first} if entry.first else {})
    return group | {"layers": [_layer_data(layer, one) for layer, one in zip(entry.layers, chained, strict=True)]}


def _layer_data(layer: Layer, chained: bool) -> Row:
    work = None
    if layer.work is not None:
        work = Row(
            forward_flops=written_flops(layer.work.forward_flops),
            input_gradient_flops=written_flops(layer.work.input_gradient_flops),
            weight_gradient_flops=written_flops(layer.work.weight_gradient_flops),
            output=written_bytes(layer.work.output),
            saved=written_bytes(layer.work.saved),
            **{name: written_bytes(size) for name in _SPACES if (size := getattr(layer.work, name))},
            **lean(uncounted=Line(layer.work.uncounted)),
        )
    row = Row(name=layer.name, **lean(kind=layer.kind), parameters=written_bytes(layer.parameters))
    if layer.frozen:
        row["frozen"] = written_bytes(layer.frozen)
    if not chained:
        row["inputs"] = Line(layer.inputs)
    if work is not None:
        row["work"] = work
    return Row(row | lean(operators=layer.operators))


_SPACES = ("workspace", "workspace_fixed")
