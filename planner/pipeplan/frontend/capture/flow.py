"""Shapes and types of tensors between layers, in-place writes and random draws, by one run on the meta device."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pipeplan.core.errors import PlanError
from pipeplan.frontend.batch import Batch, tensors
from pipeplan.frontend.capture.graph.gradients import TAKES_GRADIENTS, Seen, watching_gradients
from pipeplan.frontend.capture.graph.layer import GraphLayer
from pipeplan.frontend.capture.graph.python_state import differs_each_time
from pipeplan.frontend.capture.in_flight import check_in_flight
from pipeplan.frontend.capture.layer_sequence import LayerSequence
from pipeplan.frontend.capture.private import TorchDispatchMode, memory_of, on_meta
from pipeplan.frontend.capture.python_values import attributes_of, kept_tensors, random_numbers
from pipeplan.frontend.parameters import named_tensors
from pipeplan.frontend.split_backward.queue import JOINED


class DetectRandom(TorchDispatchMode):  # type: ignore[misc]
    """Dispatch mode that detects random operations inside ``with``, on tensors without values too.

    Torch tags the operations that draw. A dropout that is off, or of probability 0, calls none.

    Parameters
    ----------
    weights : iterable of Tensor
        Writes into them are detected, those that autograd does not see too.

    Attributes
    ----------
    seen : bool
        True once a tagged operation was called.
    sparse : str
        The first operation whose gradient is sparse.
    writes : bool
        True once something was written into a weight.
    """

    def __init__(self, weights: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.seen, self.sparse, self.writes = False, "", False
        self._weights = set(map(memory_of, weights))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or torch.Tag.nondeterministic_seeded in func.tags
        if "embedding" in func._schema.name and not self.sparse and _is_sparse(func, args, kwargs or {}):
            self.sparse = func._schema.name
        if func._schema.is_mutable and args and isinstance(args[0], Tensor) and memory_of(args[0]) in self._weights:
            self.writes = True
        return func(*args, **(kwargs or {}))


def _is_sparse(func: Any, args: Any, kwargs: Any) -> bool:
    """Return whether a look-up makes a sparse gradient."""
    given = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    return given.get("sparse", False) is True and any(x.requires_grad for x in args if isinstance(x, Tensor))


Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class Flow:
    """Tensors between the layers of a model for one micro-batch, without values.

    Attributes
    ----------
    tensors : tuple of tuple of Tensor
        Inputs of the first layer, then outputs of each layer; a tensor with ``requires_grad`` gets a gradient back.
    bare : bool
        True if the last layer returns a tensor, False if a tuple.
    overwritten : tuple of tuple of bool
        For each layer and each of its inputs, whether this or a later layer writes into it in place.
    writes : tuple of tuple of bool
        For each layer and each of its inputs, whether this layer writes into it in place.
    changed : tuple of frozenset of str
        Parameters and buffers that each layer writes into, like running statistics, by their names in the layer.
    draws : tuple of bool
        Whether each layer draws random numbers, of torch, Python or numpy.
    counts : tuple of bool
        Whether each layer changes attributes that are no tensors, as a layer of a chain may.
    """

    tensors: tuple[Tensors, ...]
    bare: bool
    overwritten: tuple[tuple[bool, ...], ...]
    writes: tuple[tuple[bool, ...], ...]
    changed: tuple[frozenset[str], ...]
    draws: tuple[bool, ...]
    counts: tuple[bool, ...] = ()


def as_tuple(value: Any, layer: str = "a layer") -> Tensors:
    """Return the outputs of a layer as a tuple of tensors."""
    if isinstance(value, Tensor):
        return (value,)
    if isinstance(value, tuple | list) and value and all(isinstance(each, Tensor) for each in value):
        return tuple(value)
    found = type(value).__name__
    raise PlanError(f"{layer} returns {found}, and only tensors pass between layers: return one, or a tuple of them")


def trace(sequence: LayerSequence, inputs: Batch) -> Flow:
    """Run the layers, whose parameters are on the meta device, one after the other.

    Parameters
    ----------
    sequence : LayerSequence
    inputs : Batch
        One micro-batch, on any device; only shapes and types count.

    Raises
    ------
    PlanError
        If a layer returns anything except tensors, writes into a tensor of which another one is a view, or cannot be
        called without values.
    """
    start = tuple(torch.empty_like(tensor, device="meta") for tensor in tensors(inputs))
    taken: list[Tensors] = [start]
    versions: list[list[int]] = []
    writes: list[tuple[bool, ...]] = []
    changed: list[frozenset[str]] = []
    draws: list[bool] = []
    counts: list[bool] = []
    for name, layer, held in zip(sequence.names, sequence.layers, sequence.parameters, strict=True):
        original = layer
        if not (isinstance(layer, GraphLayer) and all(tensor.is_meta for _, tensor in named_tensors(layer))):
            layer = on_meta(layer)  # captured layers have constants, others may count in Python
        own = _held(layer, held)
        before, before_own = _versions(taken[-1]), {local: tensor._version for local, tensor in own.items()}
        is_graph = isinstance(layer, GraphLayer)  # which has no Python of its own
        attributes, numbers = {} if is_graph else _attributes(layer), random_numbers()
        acts: list[Seen] = []
        with watching_gradients(acts.append), DetectRandom(layer.parameters()) as random:
            returned = _called(name, layer, taken[-1])
        acts += ["writes into a weight (in place)"] if random.writes else []
        check_in_flight(name, original, taken[-1], acts)
        _check_sparse(name, random.sparse)
        if any(isinstance(act, str) and act.startswith(TAKES_GRADIENTS) for act in acts):
            setattr(original, JOINED, True)
        draws.append(random.seen or numbers != random_numbers())
        counts.append(not is_graph and attributes != _attributes(layer))
        if not (is_graph or draws[-1] or counts[-1]):
            _check_repeats(name, original, taken[-1])
        versions.append(before)
        writes.append(_differs(before, taken[-1]))
        changed.append(_with_siblings([n for n, tensor in own.items() if tensor._version != before_own[n]], own))
        taken.append(as_tuple(returned, f"layer {name}"))
    overwritten = tuple(_differs(then, given) for then, given in zip(versions, taken, strict=False))
    for name, given, written in zip(sequence.names, taken, overwritten, strict=False):
        _check_aliases(name, given, written)
    return Flow(
        tuple(taken),
        isinstance(returned, Tensor),
        overwritten,
        tuple(writes),
        tuple(changed),
        tuple(draws),
        tuple(counts),
    )


def _called(name: str, layer: nn.Module, given: Tensors) -> Any:
    try:
        return layer(*given)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].partition(". ")[0]
        raise PlanError(
            f"layer {name} cannot be called without values, as stages are to learn their shapes ({reason[:100]}): what "
            "it computes may depend on no value in the batch (write an if or a size with torch.where or masks), and "
            "tensors that it keeps must be parameters or buffers"
        ) from error


def _attributes(layer: nn.Module) -> object:
    return attributes_of(layer), kept_tensors(layer)


def _check_repeats(name: str, layer: nn.Module, given: Tensors) -> None:
    """Refuse a layer that computes something else in its second call, which no state of its own explains."""
    reason = differs_each_time(layer, given)
    if reason:
        raise PlanError(
            f"layer {name} {reason.partition(', and')[0]}, by something outside it. Calls of profiles and of "
            "recomputation count too, and replicas get only some micro-batches: keep what changes in attributes or "
            "buffers of the layer"
        )


def _check_sparse(name: str, operation: str) -> None:
    if operation:
        raise PlanError(
            f"layer {name} makes sparse gradients ({operation} with sparse=True), and stages add and sum dense ones: "
            "leave sparse=True out; what is trained stays the same"
        )


def _held(layer: nn.Module, names: Iterable[str]) -> dict[str, Tensor]:
    there = dict(named_tensors(layer))
    return {local: there[local] for local in names}


def _with_siblings(changed: Sequence[str], own: Mapping[str, Tensor]) -> frozenset[str]:
    """Return the changed names and the other buffers of the same submodules.

    Batch norm's kernel changes its statistics without counting a new version of them.
    """
    homes = {name.rpartition(".")[0] for name in changed}
    return frozenset(
        name
        for name, tensor in own.items()
        if name in changed or (not isinstance(tensor, nn.Parameter) and name.rpartition(".")[0] in homes)
    )


def _versions(values: Tensors) -> list[int]:
    return [value._version for value in values]


def _differs(versions: Sequence[int], values: Tensors) -> tuple[bool, ...]:
    return tuple(then != now for then, now in zip(versions, _versions(values), strict=True))


def _check_aliases(name: str, given: Tensors, written: Sequence[bool]) -> None:
    homes = [memory_of(tensor) for tensor in given]
    for home, is_written in zip(homes, written, strict=True):
        if is_written and homes.count(home) > 1:
            raise PlanError(
                f"layer {name} or a later one writes in place into a tensor that it also gets under another name; "
                "cut apart, the two would differ: use the out-of-place operation there (x.relu(), not x.relu_())"
            )
