"""`StageModule`: the layers of one stage as one module."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipeplan.frontend.capture.flow import Flow, Tensors, as_tuple
from pipeplan.frontend.rewind import Attributes, attributes_in, copied_attributes, put_attributes
from pipeplan_executor.sharding.mesh.gradients import MeshGradients


class Pending(Protocol):
    """A collective that has begun."""

    def wait(self) -> object:
        """Wait until it has ended here."""


class SplitLayers(Protocol):
    """Calls of layers together with the other tensor-parallel ranks (see `pipeplan_executor.sharding`)."""

    @property
    def partial(self) -> MeshGradients | None:
        """Gradients that are summed over these ranks once a step."""

    def at(self, micro_batch: int, part: int, /) -> None:
        """Begin an action of a slice of a micro-batch."""

    def forget(self) -> None:
        """Drop what an earlier step left."""

    def wrapped(self, name: str, layer: nn.Module, names: Mapping[str, str], /) -> Callable[..., Any]:
        """Return what calls a layer whose parameters have these ``names`` in the unsplit model."""

    def gathered(self, tensors: Tensors, for_loss: bool, /) -> Tensors:
        """Return what a stage sends on, or gives `loss`."""

    def loss(self, loss: Callable[[Tensors, Any], Tensor], outputs: Tensors, targets: Any, /) -> Tensor:
        """Return a loss of what was gathered for it."""


@dataclass(frozen=True)
class Treatment:
    """Recomputation, copied inputs and restored buffers of a layer's call.

    Attributes
    ----------
    recompute : bool
        Keep only its inputs, and run it again in the backward.
    copies : tuple of int
        Inputs that are copied first, since this stage writes into them and others read them.
    lasting : tuple of str
        Parameters and buffers that a forward changes, and that its recomputation must leave unchanged. It begins with
        the values that the forward began with.
    counts : bool
        A forward changes attributes, which a recomputation treats alike.
    draws : bool
        A forward draws random numbers. Its recomputation goes on to the end: an operation may save a tensor into which
        it then draws.
    """

    recompute: bool = False
    copies: tuple[int, ...] = ()
    lasting: tuple[str, ...] = ()
    counts: bool = False
    draws: bool = False


def treatment_of(flow: Flow, number: int, recompute: bool, first: bool) -> Treatment:
    """Return the treatment of a layer; ``first``: it is the first of its stage."""
    written = flow.overwritten[number] if first else flow.writes[number] if recompute else ()
    copies = tuple(place for place, is_written in enumerate(written) if is_written)
    if not recompute:
        return Treatment(recompute, copies)
    counts = any(flow.counts[number : number + 1])
    return Treatment(recompute, copies, tuple(sorted(flow.changed[number])), counts, flow.draws[number])


class StageModule(nn.Module):
    """Layers in sequence: each is called with the outputs of the one before it.

    Parameters and buffers have their names in the unsplit model, here and in ``state_dict``.

    ::

        arriving   {0: [weights of layer 0], 2: [weights of layers 2 and 3]}     sent by other replicas meanwhile
        forward    wait for 0 │ layer 0 │ layer 1 │ wait for 2 │ layer 2 │ layer 3

    Parameters
    ----------
    layers : mapping of str to torch.nn.Module
        By name, in order.
    treatments : mapping of str to Treatment
        Treatment of each layer, by name.
    names : sequence of mapping
        For each layer, the names of its parameters and buffers in the unsplit model, by their names in the layer.
    sharded_layers : SplitLayers, optional
        Calls the layers if several processes share the stage.
    lenders : sequence of StageModule
        Other stages of this process, whose parameters it may use. These are theirs: here they have names in
        ``state_dict``, but are none of its own parameters.

    Attributes
    ----------
    layers : torch.nn.ModuleList
    arriving : dict of int to list of Pending
        Parameters that other replicas are sending, by number of the layer that needs them first. Its forward waits for
        them, and so does whoever asks for parameters or the state.
    """

    def __init__(
        self,
        layers: Mapping[str, nn.Module],
        treatments: Mapping[str, Treatment],
        names: Sequence[Mapping[str, str]],
        sharded_layers: SplitLayers | None = None,
        lenders: Sequence["StageModule"] = (),
    ) -> None:
        super().__init__()
        self._lenders = tuple(lenders)  # in a tuple, so that they are no submodules
        self.layers = nn.ModuleList(layers.values())
        self._unsplit = {f"layers.{i}.{local}": full for i, each in enumerate(names) for local, full in each.items()}
        self.sharded_layers = sharded_layers
        self.arriving: dict[int, list[Pending]] = {}
        self._calls = tuple(
            (
                name,
                _call(
                    layer,
                    layer if sharded_layers is None else sharded_layers.wrapped(name, layer, own),
                    treatments[name],
                ),
            )
            for (name, layer), own in zip(layers.items(), names, strict=True)
        )

    def forward(self, *tensors: Tensor, for_loss: bool = False) -> Tensors:
        """Call all layers in order. ``for_loss``: what is returned goes to `loss`, and may be split for it."""
        for lender in self._lenders:
            lender.wait()
        for number, (name, call) in enumerate(self._calls):
            if self.arriving:
                self._arrive(number)
            tensors = as_tuple(call(*tensors), name)
        return tensors if self.sharded_layers is None else self.sharded_layers.gathered(tensors, for_loss)

    def loss(self, loss: Callable[[Tensors, Any], Tensor], outputs: Tensors, targets: Any) -> Tensor:
        """Return a loss of what a forward returned for it."""
        sharded = self.sharded_layers
        return loss(outputs, targets) if sharded is None else sharded.loss(loss, outputs, targets)

    def at(self, micro_batch: int, part: int) -> None:
        """Begin an action of a slice of a micro-batch."""
        if self.sharded_layers is not None:
            self.sharded_layers.at(micro_batch, part)

    def wait(self) -> None:
        """Wait until all parameters are there, lent ones included."""
        for lender in self._lenders:
            lender.wait()
        for number in sorted(self.arriving):
            self._arrive(number)

    def __getstate__(self) -> dict[str, object]:
        """Return the state for a copy, with all parameters in place."""
        self.wait()
        return self.__dict__

    def _arrive(self, number: int) -> None:
        for each in self.arriving.get(number, ()):
            each.wait()
        self.arriving.pop(number, None)  # behind the waiting, since an error stays one

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield parameters with their names in the unsplit model; with ``remove_duplicate`` no lent ones."""
        self.wait()
        lent = {id(each) for lender in self._lenders for each in lender.parameters()} if remove_duplicate else ()
        for local, parameter in super().named_parameters("", recurse, remove_duplicate):
            if id(parameter) not in lent:
                yield self._full(local, prefix), parameter

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield buffers with their names in the unsplit model, without the constants of captured layers."""
        for local, buffer in super().named_buffers("", recurse, remove_duplicate):
            if local in self._unsplit:
                yield self._full(local, prefix), buffer

    def state_dict(self, *_: Any, **options: Any) -> dict[str, Any]:
        """Return the state with its names in the unsplit model."""
        self.wait()
        state = super().state_dict(**options)
        return {self._unsplit[local]: value for local, value in state.items() if local in self._unsplit}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a state with names of the unsplit model; entries of other stages are ignored."""
        self.wait()
        own = {local: state_dict[full] for local, full in self._unsplit.items() if full in state_dict}
        extra = {local: value for local, value in super().state_dict().items() if local not in self._unsplit}
        return super().load_state_dict({**own, **extra}, strict=strict, assign=assign)

    def _full(self, local: str, prefix: str) -> str:
        return f"{prefix}.{self._unsplit[local]}" if prefix else self._unsplit[local]


@contextmanager
def evaluating(modules: Collection[nn.Module]) -> Iterator[None]:
    """Context in which modules are in evaluation mode; afterwards each submodule is in its previous mode."""
    modes = [(part, part.training) for module in modules for part in module.modules()]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def copy_inputs(layer: nn.Module, places: Collection[int]) -> None:
    """Let a layer copy these inputs within its call, behind other hooks, before it writes into them."""

    def copied(_: nn.Module, inputs: Tensors) -> Tensors:
        return tuple(tensor.clone() if place in places else tensor for place, tensor in enumerate(inputs))

    layer.register_forward_pre_hook(copied)


def _call(layer: nn.Module, called: Callable[..., Any], how: Treatment) -> Callable[..., Any]:
    """Return the function that runs the layer with its treatment; ``called`` is the layer or its wrapper."""
    copying = partial(_on_copies, called, frozenset(how.copies)) if how.copies else called
    if not how.recompute:
        return copying
    again = partial(_contexts, layer, how) if how.lasting or how.counts else _no_contexts
    return partial(checkpoint, copying, use_reentrant=False, context_fn=again, early_stop=not how.draws)


def _on_copies(called: Callable[..., Any], places: frozenset[int], *tensors: Tensor) -> Any:
    return called(*(tensor.clone() if place in places else tensor for place, tensor in enumerate(tensors)))


Contexts = tuple[AbstractContextManager[None], AbstractContextManager[None]]
"""Contexts for the first forward of a layer and for its recomputation."""


def _no_contexts() -> Contexts:
    return nullcontext(), nullcontext()


def _contexts(layer: nn.Module, how: Treatment) -> Contexts:
    return nullcontext(), _Begun(layer, how).again()


class _Begun:
    """Changing tensors and attributes of a layer at the beginning of a forward."""

    def __init__(self, layer: nn.Module, how: Treatment) -> None:
        self._layer, self._lasting = layer, how.lasting
        self._values = {name: tensor.detach().clone() for name, tensor in self._there().items()}
        self._attributes = copied_attributes(self._present()) if how.counts else []

    @contextmanager
    def again(self) -> Iterator[None]:
        """Context for a recomputation, which begins with this state; afterwards the present one is back.

        Buffers are other tensors meanwhile, since autograd may save them. Parameters are written through ``.data``, so
        that it counts no new version.
        """
        there, attributes = self._there(), self._present() if self._attributes else []
        before = {name: tensor.detach().clone() for name, tensor in there.items() if isinstance(tensor, nn.Parameter)}
        for name, tensor in there.items():
            self._put(name, tensor, self._values[name])
        for part, values in copied_attributes(self._attributes):
            put_attributes(part, values)
        try:
            yield
        finally:
            for name, tensor in there.items():
                self._put(name, tensor, before.get(name, tensor))
            for part, values in attributes:
                put_attributes(part, values)

    def _there(self) -> dict[str, Tensor]:
        known = {**dict(self._layer.named_buffers()), **dict(self._layer.named_parameters())}
        return {name: known[name] for name in self._lasting}

    def _present(self) -> Attributes:
        return [(part, attributes_in(part)) for part in self._layer.modules()]

    def _put(self, name: str, tensor: Tensor, value: Tensor) -> None:
        if isinstance(tensor, nn.Parameter):
            tensor.data.copy_(value)
        else:
            path, _, last = name.rpartition(".")
            self._layer.get_submodule(path)._buffers[last] = value
