"""`ShardedLayers`: calls of a stage's layers on a tensor-parallel group.

Layers with sharded parameters get whole tensors as DTensors.

::

    plain x ──▶ layer without shards ──▶ plain ──▶ layer with shards ──▶ plain, or a shard ──▶ … ──▶ plain, whole
                alike on every rank                DTensors inside

A plan may hold the outputs of some layers split along their tokens; these pass between layers as such::

    split x ──▶ layer ──▶ split ──▶ …                   sums leave products split, and products gather what is split

A layer whose parameters and inputs are whole runs on every tensor-parallel rank as it would in one process.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Shard

from pipeplan.frontend.split_backward.queue import TAKER, plain
from pipeplan_executor.sharding.dispatch import ShardDispatch
from pipeplan_executor.sharding.edges import Entering, Leaving, WholeParameter, own_gradient
from pipeplan_executor.sharding.grouped import Grouped
from pipeplan_executor.sharding.partial_gradients import PartialGradients
from pipeplan_executor.sharding.parts import WHOLE, is_whole, local, mapped, of_spec, placed, shard, spec_of
from pipeplan_executor.sharding.private import replaced_parameters
from pipeplan_executor.sharding.products import mark_weight
from pipeplan_executor.sharding.sequence import Split
from pipeplan_executor.sharding.shards import ParameterShard
from pipeplan_executor.sharding.tokens import TOKENS


class ShardedLayers:
    """Wrapper of a stage's layers for a tensor-parallel group.

    Parameters
    ----------
    mesh : DeviceMesh
        The tensor-parallel ranks.
    shards : mapping of str to ParameterShard
        The shards of this tensor-parallel rank, by names of the unsplit model.
    whole : bool
        Whether each layer's outputs are made whole, as plans with teams count them; else shards pass between layers.
    split : mapping of str to Split
        Layers of the stage whose inputs or outputs are split along tokens, by name.
    vocabulary : str, optional
        The layer whose output stays split along its classes for the loss (see `loss`).
    hooked : bool
        Whether hooks of the layers gather their parameters for a pass (`pipeplan_executor.stages.fully_sharded`); the
        layers are then called with these around everything else.

    Attributes
    ----------
    dispatch : ShardDispatch
    partial : PartialGradients or None
        Gradients that are summed over the tensor-parallel ranks after the last backward; None if there are none.
    """

    def __init__(
        self,
        mesh: DeviceMesh,
        shards: Mapping[str, ParameterShard],
        whole: bool = False,
        split: Mapping[str, Split] | None = None,
        vocabulary: str | None = None,
        hooked: bool = False,
    ) -> None:
        self._split, self._vocabulary, self._hooked = split or {}, vocabulary, hooked
        self.dispatch = ShardDispatch(mesh, [each.stream for each in self._split.values()])
        self.partial = PartialGradients(mesh.get_group()) if self._split else None
        self._mesh, self._shards = mesh, shards
        self._outgoing = _gathered if whole else _plain_if_whole
        self._on_shards: set[int] = set()

    def wrapped(self, name: str, layer: nn.Module, names: Mapping[str, str]) -> Callable[..., Any]:
        """Return a function to call in place of the layer.

        ``names``: the names of its parameters in the unsplit model, by their names in the layer.
        """
        there = dict(layer.named_parameters(remove_duplicate=False))
        placements: dict[str, tuple[Placement, ...]] = {
            name: placements_of(self._shards[names[name]]) if names.get(name) in self._shards else WHOLE
            for name in there
        }
        split = self._split.get(name)
        products = frozenset[str]() if split is None else split.products.intersection(names.values())
        on_tokens = frozenset(local for local, full in names.items() if full in products)
        on_shards = any(each != WHOLE for each in placements.values()) or (
            split is not None and (split.arrives is not None or bool(products or split.attention))
        )
        if on_shards:
            self._on_shards |= set(map(id, there.values()))
        run = layer.forward if self._hooked else layer
        call = partial(self._call, layer, run, there, placements, on_tokens, on_shards, split, name == self._vocabulary)
        if self._hooked:
            layer.forward = call
        called: Callable[..., Any] = layer if self._hooked else call
        return called

    def _call(
        self,
        layer: nn.Module,
        run: Callable[..., Any],
        lasting: Mapping[str, nn.Parameter],
        placements: Mapping[str, tuple[Placement, ...]],
        on_tokens: frozenset[str],
        on_shards: bool,
        split: Split | None,
        for_loss: bool,
        *tensors: Tensor,
    ) -> Any:
        if not (on_shards or any(isinstance(tensor, DTensor) for tensor in tensors) or self._shares(lasting)):
            made = run(*tensors)
            return made if split is None else self._all_left(split, False, made)
        there = dict(layer.named_parameters(remove_duplicate=False))
        stream, attention = (None, None) if split is None else (split.stream, split.attention)
        with self.dispatch.during(forward=True, stream=stream, attention=attention):
            held = {
                name: self._stand_in(there[name], lasting[name], how, name in on_tokens)
                for name, how in placements.items()
            }
            if split is None:
                given = tuple(self._as_dtensor(tensor, WHOLE) for tensor in tensors)
            else:
                given = tuple(self._entered(n == split.arrives, tensor) for n, tensor in enumerate(tensors))
            with replaced_parameters(layer, held):
                made = run(*given)
            if split is not None:
                return self._all_left(split, for_loss, made)
            return mapped(_plain_if_whole if for_loss else self._outgoing, made)

    def _shares(self, lasting: Mapping[str, nn.Parameter]) -> bool:
        """Return whether a parameter's gradient may be partial in another layer, so that it is noted here too."""
        return self.partial is not None and not self._on_shards.isdisjoint(map(id, lasting.values()))

    def _entered(self, is_split: bool, tensor: Tensor) -> DTensor:
        return Entering.apply(tensor, self._mesh, is_split, self.dispatch)

    def _all_left(self, split: Split, for_loss: bool, made: Any) -> Any:
        numbers = count()
        return mapped(lambda tensor: self._left(split, next(numbers) == split.leaves, for_loss, tensor), made)

    def _left(self, split: Split, is_split: bool, for_loss: bool, tensor: Tensor) -> Tensor:
        made = tensor if isinstance(tensor, DTensor) else self._entered(False, tensor)
        as_made = for_loss and type(made.placements[0]) is Shard
        placements = TOKENS if is_split else made.placements if as_made else WHOLE
        return Leaving.apply(made, placements, self.dispatch, split.stream)

    def loss(self, loss: Callable[..., Tensor], outputs: tuple[Tensor, ...], targets: Any) -> Tensor:
        """Return a loss of the stage's outputs, which may be split along their classes."""
        with self.dispatch.during(forward=True):
            return _gathered(loss(outputs, targets))

    def gathered(self, tensors: tuple[Tensor, ...], for_loss: bool = False) -> tuple[Tensor, ...]:
        """Return the outputs of the stage as plain tensors: whole, or the tokens of this rank if its plan says so.

        ``for_loss``: they are those that `loss` gets, and may be split along their classes.
        """
        if for_loss and self._vocabulary is not None:
            return tensors
        with self.dispatch.during(forward=True):
            return tuple(_as_plain(each) if _has_tokens(each) and self._split else _gathered(each) for each in tensors)

    def backward(self) -> AbstractContextManager[None]:
        """Context for a backward, and for its delayed weight gradients."""
        return self.dispatch.during(forward=False)

    def _as_dtensor(self, tensor: Tensor, placements: tuple[Placement, ...]) -> DTensor:
        if isinstance(tensor, DTensor):
            return tensor
        made: DTensor = _FromLocal.apply(tensor, spec_of(tensor, self._mesh, placements))
        return made

    def _stand_in(
        self, parameter: nn.Parameter, lasting: nn.Parameter, placements: tuple[Placement, ...], on_tokens: bool
    ) -> DTensor:
        """Return the whole parameter as a DTensor for the layer; ``lasting``: the one that the stage keeps.

        ``on_tokens``: its products run on parts of the tokens. Its delayed weight gradient
        (`frontend.split_backward`) is added to the gradient of the shard.
        """
        summed_later = self.partial if placements == WHOLE else None
        if summed_later is None:
            stand_in = self._as_dtensor(parameter, placements)
        else:
            stand_in = WholeParameter.apply(parameter, lasting, self._mesh, summed_later)
        if plain(parameter):
            setattr(stand_in, TAKER, partial(_add, parameter, placements, summed_later))
        return mark_weight(stand_in, on_tokens)


def _add(
    parameter: nn.Parameter,
    placements: tuple[Placement, ...],
    summed_later: PartialGradients | None,
    gradient: DTensor,
) -> None:
    part = local(gradient, placements) if summed_later is None else own_gradient(parameter, gradient, summed_later)
    if parameter.grad is None:
        parameter.grad = part.to(parameter.dtype, copy=True)
    else:
        parameter.grad.add_(part)


def _plain_if_whole(tensor: Tensor) -> Tensor:
    if isinstance(tensor, DTensor) and is_whole(tensor):
        return _as_plain(tensor)
    return tensor


def _has_tokens(tensor: Tensor) -> bool:
    return isinstance(tensor, DTensor) and tensor.placements == TOKENS


def _gathered(tensor: Tensor) -> Tensor:
    if not isinstance(tensor, DTensor):
        return tensor
    return _as_plain(tensor if is_whole(tensor) else _Whole.apply(tensor))


def placements_of(shard: ParameterShard) -> tuple[Placement, ...]:
    """Return the placement of a sharded parameter."""
    return (Grouped(shard.axis, shard.groups),) if shard.groups else (Shard(shard.axis),)


def _as_plain(tensor: DTensor) -> Tensor:
    """Return the local tensor as a plain one."""
    made: Tensor = _ToLocal.apply(tensor)
    return made


class _FromLocal(torch.autograd.Function):
    """`DTensor.from_local` for one mesh, which takes less time here."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, how: Any) -> DTensor:
        """Return the DTensor of a layout."""
        ctx.set_materialize_grads(False)
        ctx.how = how
        return of_spec(part.detach(), how)

    @staticmethod
    def backward(ctx: Any, gradient: DTensor | None) -> tuple[Tensor | None, None]:
        """Return the gradient of the shard, added up or gathered."""
        return None if gradient is None else local(gradient, ctx.how.placements), None


class _Whole(torch.autograd.Function):
    """A whole tensor from its shards, whose gradient is whole too."""

    @staticmethod
    def forward(ctx: Any, tensor: DTensor) -> DTensor:
        """Return the whole."""
        ctx.set_materialize_grads(False)
        ctx.placements = tensor.placements
        return placed(local(tensor, WHOLE), tensor.device_mesh, WHOLE)

    @staticmethod
    def backward(ctx: Any, gradient: DTensor | None) -> DTensor | None:
        """Return the gradient of the shards."""
        if gradient is None:
            return None
        return placed(local(gradient, ctx.placements), gradient.device_mesh, ctx.placements)


class _ToLocal(torch.autograd.Function):
    """`DTensor.to_local` for tensors whose gradients have the same layout, which takes less time here.

    What it makes is no view to autograd, which forbids in-place writes into views that functions make.
    """

    @staticmethod
    def forward(ctx: Any, tensor: DTensor) -> Tensor:
        """Return the local tensor."""
        ctx.set_materialize_grads(False)
        ctx.mesh, ctx.placements = tensor.device_mesh, tensor.placements
        part = shard(tensor)
        made: Tensor = torch.ops.aten._unsafe_view(part, part.shape)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> DTensor | None:
        """Return the gradient as a DTensor."""
        return None if gradient is None else placed(gradient, ctx.mesh, ctx.placements)
