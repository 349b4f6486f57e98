"""`Model`: layers in topological order, and the costs of each.

::

    layers    l0 ──▶ l1 ──▶ l2 ──▶ l3 ──▶ l4          index order is a topological order
                │                   ▲
                └───────────────────┘                   an edge may skip layers
    cuts          0      1      2      3               cut c lies between layer c and layer c + 1

The bytes over cut c are the outputs of all layers ≤ c that some layer > c reads, each counted once.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from numbers import Integral

from pipeplan.core.errors import InputError
from pipeplan.core.figures import MOST_LAYERS, plain, whole
from pipeplan.core.folding import Folding
from pipeplan.core.layers import Layer, LayerCost, Tie, Work, blocks_of, tie_faults
from pipeplan.core.operators import OperatorGraph, tokens_of
from pipeplan.core.parts import each_a, mapping, printable
from pipeplan.core.profiles import Profile, Provenance, SliceProfile
from pipeplan.core.slicing import Slicing
from pipeplan.core.tabular import Table, Tabular, Unit
from pipeplan.core.units import format_bytes
from pipeplan.core.wording import counted, hint

__all__ = ["Layer", "LayerCost", "Model", "Profile", "Provenance", "SliceProfile", "Tie", "Work"]

_WORK = tuple(each.name for each in fields(Work) if each.name != "uncounted")


@dataclass(frozen=True, repr=False)
class Model(Tabular):
    """Layers in topological order, their profiles, and the ties of layers that share weights.

    ``operators`` has the operators of layers by the names that these give; equal layers share them. ``parts`` has, for
    kinds of device that hold parts of the layers only, the bytes of each layer's parameters there, and
    ``frozen_parts`` those of its frozen weights.

    Attributes
    ----------
    name : str
    layers : tuple of Layer
    profiles : tuple of Profile
        Without any, times are estimated from the layers' work.
    slice_profiles : tuple of SliceProfile
        Token slices that were measured, beside profiles of whole sequences on the same kinds of device.
    dtype : str
        Number format of weights and activations.
    notes : tuple of str
    ties : tuple of Tie
    operators, parts, frozen_parts : mapping
        As above.
    slicing : Slicing or None
        If a sample is one token slice of a sequence (`pipeplan.costs.slices`).
    of_length : mapping of int to Model
        Where slices have unlike lengths: for each length the model whose samples are slices of so many tokens.
    folding : Folding or None
        If the layers are super layers of another model, ``unfolded`` (`pipeplan.costs.folded`).
    unfolded : Model or None

    Raises
    ------
    InputError
        If there are more than `MOST_LAYERS`, a figure is not an integer ≥ 0, names repeat, an input is not an earlier
        layer, a profile does not have one cost for each layer, or a tie names unknown layers or shares more bytes than
        its first layer has, or a layer's operators are unknown or have other weights than the layer.

    Examples
    --------
    >>> cost = pipeplan.LayerCost(1_000, 2_000, 1_000, 1_000, saved=8, output=4, workspace=0, update=50)
    >>> layers = (pipeplan.Layer("a", 4_000), pipeplan.Layer("b", 4_000, inputs=("a",)))
    >>> origin = pipeplan.Provenance("imported", "by hand")
    >>> model = pipeplan.Model("two", layers, (pipeplan.Profile("unit", 1, (cost, cost), origin),))
    >>> model.names
    ('a', 'b')
    """

    name: str
    layers: tuple[Layer, ...]
    profiles: tuple[Profile, ...] = ()
    dtype: str = "float32"
    notes: tuple[str, ...] = ()
    ties: tuple[Tie, ...] = ()
    operators: Mapping[str, OperatorGraph] = field(default_factory=dict)
    parts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    frozen_parts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    slicing: Slicing | None = None
    of_length: Mapping[int, "Model"] = field(default_factory=dict)
    folding: Folding | None = None
    unfolded: "Model | None" = None
    slice_profiles: tuple[SliceProfile, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens of a sample; 0 if there are none (see `tokens_of`)."""
        return tokens_of(self.operators.values())

    @property
    def slices(self) -> int:
        """Samples of a sequence: its token slices, or 1."""
        return 1 if self.slicing is None else self.slicing.count

    @property
    def rounds(self) -> int:
        """Stages of each device: the rounds in which the layers are folded, or 1."""
        return 1 if self.folding is None else self.folding.rounds

    def __post_init__(self) -> None:
        self._check_parts()
        if not self.layers:
            raise InputError(f"model {self.name!r} has no layers")
        if len(self.layers) > MOST_LAYERS:
            raise InputError(
                f"model {self.name!r} has {len(self.layers)} layers; {MOST_LAYERS} are the most that can be taken"
            )
        seen: set[str] = set()
        for layer in self.layers:
            if layer.name in seen:
                raise InputError(f"model {self.name!r}: two layers are called {layer.name!r}; names must differ")
            for source in layer.inputs:
                if source not in seen:
                    raise InputError(
                        f"model {self.name!r}: layer {layer.name!r} reads {source!r}, which is not an earlier layer; "
                        "list the layers in topological order"
                    )
            seen.add(layer.name)
            whole(layer.parameters, f"model {self.name!r}: parameters of layer {layer.name!r}")
            whole(layer.frozen, f"model {self.name!r}: frozen weights of layer {layer.name!r}")
            if layer.work is not None:
                for name in _WORK:
                    whole(getattr(layer.work, name), f"model {self.name!r}: {name} of layer {layer.name!r}")
                plain(layer.work)
            plain(layer)
        for profile in self.profiles:
            if len(profile.costs) != len(self.layers):
                raise InputError(
                    f"model {self.name!r}: the profile for {profile.device!r} at micro-batch {profile.micro_batch} "
                    f"has {len(profile.costs)} layers, the model has {len(self.layers)}"
                )
        for complaint in (*tie_faults(self.layers, self.ties), *self._operator_faults(), *self._slice_faults()):
            raise InputError(f"model {self.name!r}: {complaint}")

    def _check_parts(self) -> None:
        what = f"model {printable(self.name, 'the name of a model')!r}: "
        each_a(self.layers, Layer, what + "layers")
        each_a(self.profiles, Profile, what + "profiles")
        each_a(self.slice_profiles, SliceProfile, what + "slice_profiles")
        each_a(self.ties, Tie, what + "ties")
        for tie in self.ties:
            each_a(tie.layers, str, what + "layers that share weights")
            whole(tie.parameters, what + "bytes of shared weights")
            whole(tie.frozen, what + "frozen bytes of shared weights")
            plain(tie)
        each_a((*mapping(self.operators, what + "operators").values(),), OperatorGraph, what + "operators")
        for name in ("parts", "frozen_parts"):
            for kind, row in mapping(getattr(self, name), what + name).items():
                each_a(row, Integral, f"{what}{name} of {kind!r}")
        printable(self.dtype, what + "dtype")
        each_a(self.notes, str, what + "notes")
        for layer in self.layers:
            printable(layer.name, what + "the name of a layer")
            printable(layer.kind, f"{what}the kind of layer {layer.name!r}")
            each_a(layer.inputs, str, f"{what}inputs of layer {layer.name!r}")
            each_a(() if layer.work is None else (layer.work,), Work, f"{what}work of layer {layer.name!r}")
            each_a(() if layer.work is None else layer.work.uncounted, str, f"{what}uncounted of layer {layer.name!r}")

    def _operator_faults(self) -> Iterator[str]:
        """Yield a sentence for each layer whose operators are not those of the layer."""
        for layer in self.layers:
            if not layer.operators:
                continue
            if layer.operators not in self.operators:
                hinted = hint(layer.operators, self.operators)
                yield f"layer {layer.name!r} has the operators {layer.operators!r}, which are not there{hinted}"
                continue
            if self.operators[layer.operators].loss is not None and layer is not self.layers[-1]:
                yield f"the operators of layer {layer.name!r} have a loss, and it is not the last layer"
            copied = sum(tie.parameters for tie in self.ties if layer.name in tie.layers[1:])
            weights = self.operators[layer.operators].parameters
            if weights != layer.parameters + copied:
                yield (
                    f"the operators of layer {layer.name!r} have weights of {weights} bytes, the layer has "
                    f"{layer.parameters} and shares {copied} with earlier ones"
                )

    def _slice_faults(self) -> Iterator[str]:
        """Yield a sentence for each measurement of slices that is not of this model's sequences and profiles."""
        whole_ones = {(profile.device, profile.micro_batch) for profile in self.profiles}
        lengths: dict[str, dict[int, list[int]]] = {}
        for own in self.slice_profiles:
            said = f"slices of {own.tokens} tokens measured on {own.device!r} at micro-batch {own.micro_batch}"
            if {len(own.first), len(own.last)} != {len(self.layers)}:
                yield f"{said} have {len(own.first)} and {len(own.last)} layers, the model has {len(self.layers)}"
            if own.tokens >= self.tokens:
                yield f"{said} are no part of a sequence of {self.tokens} tokens"
            if (own.device, own.micro_batch) not in whole_ones:
                yield f"{said} stand beside no profile of whole sequences there at that micro-batch"
            lengths.setdefault(own.device, {}).setdefault(own.micro_batch, []).append(own.tokens)
        for device, rows in lengths.items():
            first = sorted({*next(iter(rows.values()))})
            sizes = {size for where, size in whole_ones if where == device}
            if any(sorted(row) != first for row in rows.values()) or not sizes <= rows.keys():
                yield (
                    f"slices measured on {device!r} need the same lengths once at each of its profiles' micro-batches "
                    f"({', '.join(map(str, sorted(sizes)))}), not {rows}"
                )

    @property
    def headline(self) -> str:
        """Name, number of layers, parameters and profiles, in one line."""
        parameters = format_bytes(sum(layer.parameters for layer in self.layers))
        frozen = sum(layer.frozen for layer in self.layers)
        profiled = " and ".join(self.profiled_devices)
        return (
            f"{self.name}: {counted(len(self.layers), 'layer')}, {parameters} of parameters"
            f"{f' and {format_bytes(frozen)} of frozen weights' if frozen else ''} in {self.dtype}"
            f"{f', profiled on {profiled}' if profiled else ''}"
        )

    def table(self) -> Table:
        """A row per layer: weights, work of one sample, and costs of one micro-batch of the first profile."""
        columns: dict[str, Unit] = {"layer": "", "kind": "", "parameters": "bytes"}
        rows: list[tuple[object, ...]] = [(layer.name, layer.kind, layer.parameters) for layer in self.layers]
        if any(layer.frozen for layer in self.layers):
            columns["frozen"] = "bytes"
            rows = [(*row, layer.frozen) for row, layer in zip(rows, self.layers, strict=True)]
        if any(layer.work for layer in self.layers):
            columns |= {"forward work": "flops", "output": "bytes", "saved": "bytes"}
            works = (layer.work for layer in self.layers)
            own = ((work.forward_flops, work.output, work.saved) if work else (None,) * 3 for work in works)
            rows = [(*row, *cells) for row, cells in zip(rows, own, strict=True)]
        if self.profiles:
            profile = self.profiles[0]
            where = f"on {profile.device} at {profile.micro_batch}"
            columns |= {f"forward {where}": "ns", f"backward {where}": "ns", f"saved {where}": "bytes"}
            rows = [
                (*row, cost.forward, cost.backward, cost.saved) for row, cost in zip(rows, profile.costs, strict=True)
            ]
        return Table(columns, tuple(rows))

    @property
    def names(self) -> tuple[str, ...]:
        """Layer names, in order."""
        return tuple(layer.name for layer in self.layers)

    @property
    def profiled_devices(self) -> tuple[str, ...]:
        """Kinds of device that have a profile, in order of first appearance."""
        return tuple(dict.fromkeys(profile.device for profile in self.profiles))

    @property
    def uncounted(self) -> Mapping[str, tuple[str, ...]]:
        """Operations of which nothing is counted, by the names of the layers that have some."""
        return {layer.name: layer.work.uncounted for layer in self.layers if layer.work and layer.work.uncounted}

    @property
    def has_attention(self) -> bool:
        """Whether an operator is attention, or the kind of a layer says that it has some."""
        operators = (each for graph in self.operators.values() for each in graph.operators)
        return any(each.attention is not None or "attention" in each.kind.lower() for each in operators) or any(
            word in layer.kind.lower() for layer in self.layers for word in ("attention", "transformer")
        )

    @cached_property
    def blocks(self) -> tuple[int, ...]:
        """The first layer of each block, and the layer behind the last block; see `blocks_of`."""
        return blocks_of([layer.kind for layer in self.layers])

    def parameters_on(self, kind: str) -> tuple[int, ...]:
        """Bytes of each layer's trainable parameters on a kind of device."""
        return self.parts.get(kind) or tuple(layer.parameters for layer in self.layers)

    def frozen_on(self, kind: str) -> tuple[int, ...]:
        """Bytes of each layer's frozen weights on a kind of device."""
        return self.frozen_parts.get(kind) or tuple(layer.frozen for layer in self.layers)

    @property
    def trained_ties(self) -> tuple[Tie, ...]:
        """The ties of weights whose gradients are summed between stages."""
        return tuple(tie for tie in self.ties if tie.parameters)

    @property
    def passes_back(self) -> tuple[bool, ...]:
        """For each layer whether its estimated backward takes time.

        It takes none above frozen weights: where neither the layer nor one that it reads, directly or through others,
        has trainable weights, while some of these have frozen ones.
        """
        tied = {name for tie in self.trained_ties for name in tie.layers}
        trained: dict[str, bool] = {}
        above: dict[str, bool] = {}
        for layer in self.layers:
            trained[layer.name] = bool(layer.parameters) or layer.name in tied or any(map(trained.get, layer.inputs))
            above[layer.name] = bool(layer.frozen) or any(map(above.get, layer.inputs))
        return tuple(trained[name] or not above[name] for name in self.names)

    def crossing(self, cut: int) -> tuple[int, ...]:
        """Indices of the layers whose outputs cross the cut between layer ``cut`` and layer ``cut + 1``."""
        index = {name: i for i, name in enumerate(self.names)}
        readers = self.layers[cut + 1 :]
        return tuple(sorted({index[source] for layer in readers for source in layer.inputs if index[source] <= cut}))

    def hands_over(self, cut: int) -> bool:
        """Return whether all that crosses a cut is the output of the layer before it, read by the next layer alone."""
        made, after = self.names[cut], self.names[cut + 1]
        return self.crossing(cut) == (cut,) and [each.name for each in self.layers if made in each.inputs] == [after]

    @property
    def fingerprint(self) -> str:
        """Hash of the layers' names, weights, edges and ties (not their costs), on which a plan relies."""
        body: list[object] = [(layer.name, layer.parameters, layer.inputs) for layer in self.layers]
        body += [(tie.layers, tie.parameters) for tie in self.trained_ties]
        body += [("frozen", each.name, each.frozen) for each in self.layers if each.frozen]
        body += [("frozen", tie.layers, tie.frozen) for tie in self.ties if tie.frozen]
        return hashlib.sha256(json.dumps(body).encode()).hexdigest()[:16]

    def as_dict(self) -> dict[str, object]:
        """Return plain data, for files and tests."""
        return asdict(self)
