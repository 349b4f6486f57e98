"""The layers of one stage as one module."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipeplan_executor.stages.shapes import Flow, Tensors, as_tuple

if TYPE_CHECKING:
    from pipeplan_executor.sharding.layers import ShardedLayers


@dataclass(frozen=True)
class Treatment:
    """How a layer is run.

    Attributes
    ----------
    recompute : bool
        Keep its inputs only, and run it again in the backward.
    copies : tuple of int
        Which of the tensors that it takes are copied first, since this stage writes into them and others read them.
    lasting : tuple of str
        Parameters and buffers that a run changes and a second one for the same micro-batch must not.
    """

    recompute: bool = False
    copies: tuple[int, ...] = ()
    lasting: tuple[str, ...] = ()


def treatment_of(flow: Flow, number: int, recompute: bool, first: bool) -> Treatment:
    """How a row's layer is run: ``first`` where it begins a stage."""
    written = flow.overwritten[number] if first else flow.writes[number] if recompute else ()
    copies = tuple(place for place, is_written in enumerate(written) if is_written)
    return Treatment(recompute, copies, tuple(sorted(flow.changed[number])) if recompute else ())


class StageModule(nn.Module):
    """Layers in a row: each is called with what the one ahead of it returned.

    Parameters and buffers are called as in the unsplit model, here and in ``state_dict``.

    Parameters
    ----------
    layers : mapping of str to torch.nn.Module
        By name, in order.
    treatments : mapping of str to Treatment
        How each of them is run.
    names : sequence of mapping
        For each layer, what each of its parameters and buffers is called in the unsplit model.
    team : ShardedLayers, optional
        Where several processes share the stage.
    """

    def __init__(
        self,
        layers: Mapping[str, nn.Module],
        treatments: Mapping[str, Treatment],
        names: Sequence[Mapping[str, str]],
        team: "ShardedLayers | None" = None,
    ) -> None:
        super().__init__()
        self.row = nn.ModuleList(layers.values())
        self._unsplit = {f"row.{i}.{local}": full for i, each in enumerate(names) for local, full in each.items()}
        self.team = team
        self._calls = tuple(
            (name, _call(layer, layer if team is None else team.called(layer, own), treatments[name]))
            for (name, layer), own in zip(layers.items(), names, strict=True)
        )

    def forward(self, *tensors: Tensor) -> Tensors:
        """Through all layers."""
        for name, call in self._calls:
            tensors = as_tuple(call(*tensors), name)
        return tensors if self.team is None else self.team.end(tensors)

    def backward(self) -> AbstractContextManager[None]:
        """Around a backward through the layers, and around what it leaves for later."""
        return nullcontext() if self.team is None else self.team.backward()

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """With the names that they have in the unsplit model."""
        for local, parameter in super().named_parameters("", recurse, remove_duplicate):
            yield self._full(local, prefix), parameter

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """With the names that they have in the unsplit model; constants of captured layers have none: left out."""
        for local, buffer in super().named_buffers("", recurse, remove_duplicate):
            if local in self._unsplit:
                yield self._full(local, prefix), buffer

    def state_dict(self, *_: Any, **options: Any) -> dict[str, Any]:
        """With the names that they have in the unsplit model."""
        state = super().state_dict(**options)
        return {self._unsplit[local]: value for local, value in state.items() if local in self._unsplit}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """From names of the unsplit model; what it has beyond this stage is ignored."""
        own = {local: state_dict[full] for local, full in self._unsplit.items() if full in state_dict}
        extra = {local: value for local, value in super().state_dict().items() if local not in self._unsplit}
        return super().load_state_dict({**own, **extra}, strict=strict, assign=assign)

    def _full(self, local: str, prefix: str) -> str:
        return f"{prefix}.{self._unsplit[local]}" if prefix else self._unsplit[local]


@contextmanager
def evaluating(modules: Collection[nn.Module]) -> Iterator[None]:
    """Within the context modules are in evaluation mode; afterwards each part is in the mode that it was in."""
    modes = [(part, part.training) for module in modules for part in module.modules()]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def _call(layer: nn.Module, called: Callable[..., Any], how: Treatment) -> Callable[..., Any]:
    """What stands for a call of the layer, which ``called`` is or makes."""
    copying = partial(_on_copies, called, frozenset(how.copies)) if how.copies else called
    if not how.recompute:
        return copying
    again = partial(_contexts, layer, how.lasting) if how.lasting else _no_contexts
    return partial(checkpoint, copying, use_reentrant=False, context_fn=again)


def _on_copies(called: Callable[..., Any], places: frozenset[int], *tensors: Tensor) -> Any:
    return called(*(tensor.clone() if place in places else tensor for place, tensor in enumerate(tensors)))


Contexts = tuple[AbstractContextManager[None], AbstractContextManager[None]]
"""Around the first run of a layer, and around the second."""


def _no_contexts() -> Contexts:
    return nullcontext(), nullcontext()


def _contexts(layer: nn.Module, lasting: Sequence[str]) -> Contexts:
    return nullcontext(), _undone(layer, lasting)


@contextmanager
def _undone(layer: nn.Module, lasting: Sequence[str]) -> Iterator[None]:
    """Afterwards these buffers are what they were; autograd, which may have saved them, is not told."""
    there = {**dict(layer.named_buffers()), **dict(layer.named_parameters())}
    before = {name: there[name].detach().clone() for name in lasting}
    try:
        yield
    finally:
        for name, value in before.items():
            there[name].data.copy_(value)
