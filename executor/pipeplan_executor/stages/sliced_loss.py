"""The loss of one slice of a sequence: what its tokens add to the loss of the micro-batch.

::

    logits [sample, token, class]  ─▶ log softmax ─▶ likelihoods of the tokens' labels ─▶ their sum ÷ how much all count
    labels [sample, token]         ─▶ shifted, ignored, … whole ─▶ cut like the logits

Whatever is made of targets alone is made of all of them, and cut behind that: so labels may be shifted to the next
token's, or ignored. A mean becomes a sum, divided by what the whole counts.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pipeplan.core.errors import PlanError
from pipeplan.frontend.batch import Batch, tensors
from pipeplan.frontend.capture.flow import Tensors
from pipeplan.frontend.operators.record import Call, Record, record
from pipeplan_executor.sharding.mesh.calls import mapped
from pipeplan_executor.sharding.mesh.moves import TokenCut

_ATEN = torch.ops.aten
_NONE, _MEAN, _SUM = 0, 1, 2
"""Reductions, as torch numbers them."""
_SAME = (_ATEN.clone, _ATEN.detach, _ATEN.alias, _ATEN._to_copy)
_VIEWS = (_ATEN.view, _ATEN._unsafe_view, _ATEN._reshape_alias)
_SOFTMAX = (_ATEN._log_softmax, _ATEN._softmax)
_LIKELIHOODS = (_ATEN.nll_loss_forward, _ATEN.nll_loss2d_forward)


class _Rows(NamedTuple):
    """Where the tokens of a tensor are: an axis of ``outer`` × ``tokens`` × ``inner``, tokens from ``first`` on."""

    axis: int
    outer: int
    tokens: int
    inner: int
    first: int


class _Value(NamedTuple):
    """A tensor of the loss: whole, of a slice's tokens (``rows``), or what these add to a sum."""

    tensor: Tensor
    rows: _Rows | None = None
    is_sum: bool = False


class SlicedLoss:
    """A loss that is a sum or mean over tokens.

    Parameters
    ----------
    loss : callable
        ``loss(outputs, targets)``.
    outputs, targets : Tensors and Batch
        Of a whole micro-batch, on the meta device.
    axes : sequence of int or None
        The axis of tokens of each output that comes in slices.
    tokens : tuple of int
        Of each slice.

    Raises
    ------
    PlanError
        If it is none.
    """

    def __init__(
        self,
        loss: Callable[[Tensors, Batch], Tensor],
        outputs: Tensors,
        targets: Batch,
        axes: Sequence[int | None],
        tokens: tuple[int, ...],
        context: Callable[[], Any],
    ) -> None:
        self._axes, self._tokens = axes, tokens
        try:
            self._record: Record = record(_Passed(), outputs, context, loss, targets)
        except Exception as error:  # a loss may fail in any way without values
            raise PlanError(
                f"the plan cuts sequences into slices, and the loss cannot be followed without values: {error}. "
                "Write it as a sum or mean over tokens, or plan without slices"
            ) from error
        if self._record.loss_draws:
            raise _refused("it draws random numbers")
        whole = [torch.empty(o.shape, dtype=o.dtype, device="meta") for o in outputs]
        cut = TokenCut(tokens, 0)
        parts = [
            tensor if axis is None else tensor.narrow(axis, 0, cut.length(tensor.shape[axis]))
            for tensor, axis in zip(whole, axes, strict=True)
        ]
        made = [torch.empty(t.shape, dtype=t.dtype, device="meta") for t in tensors(targets)]
        self._run(parts, made, cut)

    def __call__(self, outputs: Tensors, targets: Batch, number: int) -> Tensor:
        """Return what a slice adds to the loss; ``targets`` are those of the whole micro-batch."""
        return self._run(outputs, tensors(targets), TokenCut(self._tokens, number))

    def _run(self, outputs: Sequence[Tensor], targets: Sequence[Tensor], cut: TokenCut) -> Tensor:
        known: dict[int, _Value] = {}
        for recorded, own, axis in zip(self._record.returned, outputs, self._axes, strict=True):
            rows = None if axis is None else _Rows(axis, 1, recorded.shape[axis], 1, 0)
            known[id(recorded)] = _Value(own, rows)
        known |= {id(r): _Value(own) for r, own in zip(self._record.targets, targets, strict=True)}
        for call in self._record.calls[self._record.loss :]:
            _Step(call, known, cut, outputs[0].device).run()
        (end,) = self._record.outputs
        found = known.get(id(end))
        if found is None or not found.is_sum or found.tensor.dim():
            raise _refused("it is no sum over tokens")
        return found.tensor


class _Passed(nn.Module):
    def forward(self, *outputs: Tensor) -> Tensors:
        return outputs


def _refused(why: str) -> PlanError:
    return PlanError(
        f"the plan cuts sequences into slices, and the loss must be a sum or mean over tokens: {why}. Write it with "
        "cross_entropy over tokens, or plan without slices"
    )


class _Step:
    """A call of the loss, for one slice."""

    def __init__(self, call: Call, known: dict[int, _Value], cut: TokenCut, device: torch.device) -> None:
        self._call, self._known, self._cut, self._device = call, known, cut, device
        self._packet = call.operation.overloadpacket

    def run(self) -> None:
        """Make the results."""
        values = [self._value(tensor) for tensor in self._call.given]
        rows = next((value.rows for value in values if value.rows is not None), None)
        if any(value.is_sum for value in values):
            made = self._linear(values)
        elif rows is None:
            made = [_Value(tensor) for tensor in self._called(lambda tensor: self._value(tensor).tensor)]
        else:
            made = self._on_rows(rows)
        self._known |= {id(tensor): value for tensor, value in zip(self._call.made, made, strict=False)}

    def _value(self, tensor: Tensor) -> _Value:
        return self._known.get(id(tensor)) or _Value(tensor)

    def _called(self, operand: Callable[[Tensor], Tensor], **changed: Any) -> Sequence[Tensor]:
        kwargs: Mapping[str, Any] = mapped(operand, dict(self._call.kwargs)) | changed
        if "device" in kwargs:
            kwargs = {**kwargs, "device": self._device}
        made = self._call.operation(*mapped(operand, self._call.args), **kwargs)
        return made if isinstance(made, tuple | list) else (made,)

    def _one(self, operand: Callable[[Tensor], Tensor]) -> Tensor:
        return self._called(operand)[0]

    def _linear(self, values: Sequence[_Value]) -> list[_Value]:
        """A sum over tokens is scaled, or added to another one."""
        scales = self._packet in (_ATEN.mul, _ATEN.div, _ATEN.neg, *_SAME, *_VIEWS)
        adds = self._packet in (_ATEN.add, _ATEN.sub) and all(isinstance(each, Tensor) for each in self._call.args[:2])
        alone = (sum(value.is_sum for value in values) == 1 and values[0].is_sum) or self._packet is _ATEN.mul
        if any(value.rows for value in values) or not ((scales and alone) or (adds and all(v.is_sum for v in values))):
            raise _refused(f"{self._call.name!r} reads it")
        if sum(value.is_sum for value in values) > 1 and not adds:
            raise _refused(f"{self._call.name!r} multiplies two of them")
        return [_Value(tensor, None, True) for tensor in self._called(lambda tensor: self._value(tensor).tensor)]

    def _own(self, rows: _Rows) -> tuple[int, int]:
        """Return the slice's first token among those of a tensor, and their number."""
        first = max(self._cut.first - rows.first, 0)
        end = min(self._cut.first + self._cut.tokens[self._cut.number] - rows.first, rows.tokens)
        return min(first, rows.tokens), max(end - first, 0)

    def _cut_out(self, whole: Tensor, rows: _Rows) -> Tensor:
        """Return the slice's part of a whole tensor."""
        first, count = self._own(rows)
        part = whole.unflatten(rows.axis, (rows.outer, rows.tokens, rows.inner)).narrow(rows.axis + 1, first, count)
        return part.flatten(rows.axis, rows.axis + 2)

    def _on_rows(self, rows: _Rows) -> list[_Value]:
        packet, call = self._packet, self._call
        if packet in _VIEWS:
            return [self._viewed(rows)]
        if packet in _LIKELIHOODS:
            return [self._likelihoods(rows)]
        if packet in (_ATEN.sum, _ATEN.mean):
            return [self._reduced(rows)]
        if packet is _ATEN.slice:
            return [self._sliced(rows)]
        if packet in (_ATEN.transpose, _ATEN.t):
            one, other = (n % call.given[0].dim() for n in (call.args[1:] or (0, 1)))
            axis = {one: other, other: one}.get(rows.axis, rows.axis)
            return [_Value(self._one(self._tensor), rows._replace(axis=axis))]
        if packet in _SOFTMAX and call.args[1] % call.given[0].dim() != rows.axis:
            return [_Value(self._one(self._tensor), rows)]
        if packet is _ATEN.gather and call.args[1] % call.given[0].dim() != rows.axis:
            return [_Value(self._one(lambda tensor: self._aligned(tensor, rows, call.made[0].dim())), rows)]
        if packet is _ATEN.squeeze and isinstance(call.args[1], int):
            place = call.args[1] % call.given[0].dim()
            if place != rows.axis:
                return [_Value(self._one(self._tensor), rows._replace(axis=rows.axis - (place < rows.axis)))]
        if packet is _ATEN.mse_loss:
            return [self._squares(rows)]
        if torch.Tag.pointwise in call.operation.tags or packet in _SAME:
            return [self._pointwise()]
        raise _refused(f"{call.name!r} mixes tokens, or is not known to treat them alike")

    def _tensor(self, tensor: Tensor) -> Tensor:
        return self._value(tensor).tensor

    def _aligned(self, tensor: Tensor, rows: _Rows, dimensions: int) -> Tensor:
        """Return an operand that has its last axes where the result has them, with the slice's tokens."""
        value = self._value(tensor)
        axis = rows.axis - (dimensions - tensor.dim())
        if value.rows is None and axis >= 0 and tensor.shape[axis] == rows.outer * rows.tokens * rows.inner > 1:
            return self._cut_out(value.tensor, rows._replace(axis=axis))
        return value.tensor

    def _pointwise(self) -> _Value:
        dimensions = self._call.made[0].dim()
        every = {
            value.rows._replace(axis=value.rows.axis + dimensions - tensor.dim())
            for tensor in self._call.given
            if (value := self._value(tensor)).rows is not None
        }
        if len(every) != 1:
            raise _refused(f"{self._call.name!r} reads some tokens together with others")
        (rows,) = every
        return _Value(self._one(lambda tensor: self._aligned(tensor, rows, dimensions)), rows)

    def _viewed(self, rows: _Rows) -> _Value:
        before, after = self._call.given[0].shape, self._call.made[0].shape
        lead = prod(before[: rows.axis]) * rows.outer
        for axis, length in enumerate(after):
            outside = prod(after[:axis])
            outer = lead // outside if lead % outside == 0 else 0
            if outer and length % (outer * rows.tokens) == 0:
                found = rows._replace(axis=axis, outer=outer, inner=length // (outer * rows.tokens))
                if outside * length * prod(after[axis + 1 :]) == prod(before):
                    shape = list(after)
                    shape[axis] = outer * self._own(rows)[1] * found.inner
                    return _Value(self._tensor(self._call.given[0]).reshape(shape), found)
        raise _refused("its tokens are divided")

    def _sliced(self, rows: _Rows) -> _Value:
        call, whole = self._call, self._call.given[0]
        given = [*call.args, *(0, 0, None, None, 1)[len(call.args) :]]
        place, start, step = int(given[1]), given[2], given[4]
        if place % whole.dim() != rows.axis:
            return _Value(self._one(self._tensor), rows)
        if step != 1 or rows.outer * rows.inner != 1:
            raise _refused("it takes some of the tokens")
        length = whole.shape[rows.axis]
        first = min(max(start + length if (start or 0) < 0 else start or 0, 0), length)
        found = rows._replace(first=rows.first + first, tokens=call.made[0].shape[rows.axis])
        before, (own, count) = self._own(rows)[0], self._own(found)
        part = self._tensor(whole)
        begin = min(max(own + first - before, 0), part.shape[rows.axis])
        return _Value(part.narrow(rows.axis, begin, count), found)

    def _reduced(self, rows: _Rows) -> _Value:
        call, given = self._call, self._call.given[0]
        said = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim")
        gone = {n % given.dim() for n in said} if said else set(range(given.dim()))
        kept = call.made[0].dim() == given.dim()
        if rows.axis not in gone:
            axis = rows.axis if kept else rows.axis - sum(n < rows.axis for n in gone)
            return _Value(self._one(self._tensor), rows._replace(axis=axis))
        made = self._tensor(given).sum(sorted(gone), keepdim=kept, dtype=call.made[0].dtype)
        count = prod(given.shape[n] for n in gone) if self._packet is _ATEN.mean else 1
        return _Value(made / count, None, True)

    def _squares(self, rows: _Rows) -> _Value:
        call = self._call
        one, other = (self._aligned(tensor, rows, call.given[0].dim()) for tensor in call.given)
        reduction = call.args[2] if len(call.args) > 2 else _MEAN
        made = call.operation(one, other, _NONE if reduction == _NONE else _SUM)
        if reduction == _NONE:
            return _Value(made, rows)
        return _Value(made / (call.given[0].numel() if reduction == _MEAN else 1), None, True)

    def _likelihoods(self, rows: _Rows) -> _Value:
        call = self._call
        logs, target, weight, reduction, ignored = call.args
        if rows.axis == 1 or (call.given[0].dim() == 1) or self._value(target).rows is not None:
            raise _refused("its classes are tokens, or its labels are predicted")
        of_target = rows._replace(axis=rows.axis - (rows.axis > 1))
        whole, weight = self._tensor(target), None if weight is None else self._tensor(weight)
        own = self._cut_out(whole, of_target)
        made, _ = call.operation(self._tensor(logs), own, weight, _NONE if reduction == _NONE else _SUM, ignored)
        if reduction == _NONE:
            return _Value(made, of_target)
        if reduction == _SUM:
            return _Value(made, None, True)
        counted = whole != ignored
        counts = counted.to(made.dtype) if weight is None else weight[torch.where(counted, whole, 0)] * counted
        return _Value(made / counts.sum(), None, True)
