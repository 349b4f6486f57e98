"""Rules: the axes of an operation's tensors, as in an einsum, and which of them no team splits.

::

    addmm   bias [out], x [token, in], w [in, out]  ──▶  [token, out]

They are those of operations that run on shards (see docs/tensor-parallel.md). An operation without a rule runs whole.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pipeplan.frontend.operators.record import Call
from pipeplan.frontend.operators.sources import CHANNEL, FEATURE

_ATEN = torch.ops.aten
POOLING = (
    *(_ATEN.max_pool2d_with_indices, _ATEN.max_pool3d_with_indices, _ATEN.avg_pool2d, _ATEN.avg_pool3d),
    *(_ATEN._adaptive_avg_pool2d, _ATEN._adaptive_avg_pool3d, _ATEN.adaptive_max_pool2d, _ATEN.adaptive_max_pool3d),
)
"""Operations that make an image smaller, for each sample and channel."""


@dataclass(frozen=True)
class Rule:
    """Axes of an operation, by numbers.

    Attributes
    ----------
    kind : str
    reads : tuple of pair
        Each tensor that is read, with its axes; None for one that broadcasts.
    makes : tuple
        Axes of the first result, in the same way.
    names : mapping of int to str
        Names of axes that have their own in this operation.
    whole : set of int
        Axes that are never split.
    tokens : bool
        Whether it may run on a part of the tokens if they are an axis of their own, whatever the plan.
    by_plan : int or None
        Axis of which the tokens may be a part, or which they may be, if it runs on a part of them only where a plan
        says so: of products, whose tensors have samples and tokens in one axis; and of queries.
    keys : int or None
        Axis of attention that is the tokens of the second and third tensor, which it needs all.
    sums_samples : bool
        Whether samples may be split where their axis is one of ``whole``: in a loss, which is a sum over them.
    """

    kind: str
    reads: tuple[tuple[Tensor, tuple[int | None, ...]], ...]
    makes: tuple[int | None, ...]
    names: Mapping[int, str] = field(default_factory=dict)
    whole: frozenset[int] = frozenset()
    tokens: bool = True
    by_plan: int | None = None
    keys: int | None = None
    sums_samples: bool = False


def rule_of(call: Call) -> Rule | None:
    """Return the rule of a call, or None."""
    packet = call.operation.overloadpacket
    if packet in _RULES:
        return _RULES[packet](call)
    return _elementwise(call) if torch.Tag.pointwise in call.operation.tags or packet is _ATEN._to_copy else None


def loss_rule(call: Call) -> Rule | None:
    """Return the rule of a call in a cross entropy, which may be split along its classes only; None for other calls.

    They are copies of logits in another format, their log softmax, and the likelihood as a mean or sum.
    """
    packet, made = call.operation.overloadpacket, call.made[0]
    if packet in (_ATEN._to_copy, _ATEN.clone) or (packet is _ATEN._log_softmax and _is_last(call.args[1], made)):
        axes = tuple(range(made.dim()))
        kind = call.name.strip("_").replace("_", " ").removesuffix(" copy")
        return Rule(kind, ((call.given[0], axes),), axes, {}, frozenset(axes[:-1]), tokens=False, sums_samples=True)
    if packet is _ATEN.nll_loss_forward and call.given[0].dim() == 2 and call.args[3]:
        return Rule(
            "nll loss forward", ((call.given[0], (0, 1)),), (), {}, frozenset({0}), tokens=False, sums_samples=True
        )
    return None


def _is_last(axis: Any, tensor: Tensor) -> bool:
    return bool(axis % max(tensor.dim(), 1) == tensor.dim() - 1)


def copied(tensor: Tensor) -> Rule:
    """Return the rule of an operator that passes a tensor on."""
    axes = tuple(range(tensor.dim()))
    return Rule("view", ((tensor, axes),), axes)


def _elementwise(call: Call) -> Rule:
    made = call.made[0]
    axes = range(made.dim())
    reads = tuple((each, _broadcast(each, made)) for each in call.given)
    return Rule(call.name.lstrip("_").removesuffix("_copy"), reads, tuple(axes))


def _broadcast(tensor: Tensor, made: Tensor) -> tuple[int | None, ...]:
    first = made.dim() - tensor.dim()
    return tuple(first + n if tensor.shape[n] == made.shape[first + n] else None for n in range(tensor.dim()))


_PRODUCT = {1: "in", 2: "out"}


def _mm(call: Call) -> Rule:
    one, other = call.given
    return Rule("matmul", ((one, (0, 1)), (other, (1, 2))), (0, 2), _PRODUCT, tokens=False, by_plan=0)


def _addmm(call: Call) -> Rule:
    bias, one, other = call.given
    added = tuple((0, 2)[2 - bias.dim() + n] if length > 1 else None for n, length in enumerate(bias.shape))
    reads = ((one, (0, 1)), (other, (1, 2)), (bias, added))
    return Rule("matmul", reads, (0, 2), _PRODUCT, tokens=False, by_plan=0)


def _bmm(call: Call) -> Rule:
    one, other = call.given
    return Rule("matmul", ((one, (3, 0, 1)), (other, (3, 1, 2))), (3, 0, 2), _PRODUCT, tokens=False)


def _attention(call: Call) -> Rule:
    query, key, value = call.given[:3]
    reads: list[tuple[Tensor, tuple[int | None, ...]]] = [(query, (0, 1, 2, 3))]
    head = 1 if key.shape[1] == query.shape[1] else 6
    reads += [(key, (0, head, 4, 3)), (value, (0, head, 4, 5))]
    for mask in call.given[3:]:
        full = (0, 1, 2, 4)[4 - mask.dim() :]
        reads.append((mask, tuple(a if length > 1 else None for a, length in zip(full, mask.shape, strict=True))))
    names = {1: "head", 3: "in", 4: "key", 5: "value"}
    whole = frozenset({2, 3, 4, 5, 6})
    return Rule("attention", tuple(reads), (0, 1, 2, 5), names, whole, tokens=False, by_plan=2, keys=4)


def is_causal(call: Call) -> bool:
    """Return whether an attention leaves out later keys by itself, without a mask among its arguments."""
    for place, argument in enumerate(call.operation._schema.arguments):
        if argument.name == "is_causal":
            said = call.kwargs.get("is_causal", argument.default_value)
            return bool(call.args[place] if place < len(call.args) else said)
    return False


def _softmax(call: Call) -> Rule:
    made = call.made[0]
    axes = tuple(range(made.dim()))
    whole = frozenset({call.args[1] % made.dim()}) if made.dim() else frozenset[int]()
    return Rule(call.name.strip("_").replace("_", " "), ((call.given[0], axes),), axes, {}, whole)


def _norm(call: Call) -> Rule:
    made = call.made[0]
    axes = tuple(range(made.dim()))
    first = made.dim() - len(call.args[1])
    reads = tuple((each, axes[made.dim() - each.dim() :]) for each in call.given)
    layer = "layer" in call.name  # of the other one, ranks of a team gather what they read
    kind = "layer norm" if layer else "rms norm"
    return Rule(kind, reads, axes, {made.dim() - 1: FEATURE}, frozenset(axes[first:]), tokens=layer)


def _embedding(call: Call) -> Rule:
    weight, numbers = call.given
    axes = tuple(range(numbers.dim()))
    feature, vocabulary = len(axes), len(axes) + 1
    reads: tuple[tuple[Tensor, tuple[int | None, ...]], ...] = ((weight, (vocabulary, feature)), (numbers, axes))
    return Rule("embedding", reads, (*axes, feature), {feature: FEATURE, vocabulary: "vocabulary"})


def _reduction(call: Call) -> Rule:
    given, made = call.given[0], call.made[0]
    axes = tuple(range(given.dim()))
    said = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim")
    gone = frozenset(n % given.dim() for n in said) if said else frozenset(axes)
    makes: tuple[int | None, ...] = tuple(axis for axis in axes if axis not in gone)
    if made.dim() == given.dim():
        makes = tuple(None if axis in gone else axis for axis in axes)
    return Rule(call.name, ((given, axes),), makes, {}, gone)


def _convolution(call: Call) -> Rule:
    """Axes of samples and channels, in one group of these or one for each; places in an image are never split."""
    given, weight, *bias = call.given
    transposed, groups = call.args[6], call.args[8]
    depthwise = 1 < groups == given.shape[1] == call.made[0].shape[1]
    read, made = 1, 1 if depthwise else 2
    first, second = (read, made) if transposed else (made, read)
    second = second if groups == 1 else 3  # channels of one group
    reads: list[tuple[Tensor, tuple[int | None, ...]]] = [
        (given, (0, read, *_places(given, 4))),
        (weight, (first, second, *_places(weight, 8))),
        *((each, (made,)) for each in bias),
    ]
    whole = frozenset(range(1 if groups > 1 and not depthwise else 3, 16))
    names = {1: CHANNEL} if depthwise else _PRODUCT
    return Rule("convolution", tuple(reads), (0, made, *_places(call.made[0], 12)), names, whole, tokens=False)


def _places(image: Tensor, first: int) -> tuple[int, ...]:
    """Return axes for the places in an image, behind samples and channels."""
    return tuple(range(first, first + image.dim() - 2))


def last_axes(operation: Any, args: Sequence[Any]) -> int:
    """Return the number of last axes, of an image, that a pooling or padding does not compute one by one."""
    if operation.overloadpacket is _ATEN.constant_pad_nd:
        return len(args[1]) // 2
    return 3 if "3d" in operation._schema.name else 2


def _by_image(call: Call) -> Rule:
    given, made, last = call.given[0], call.made[0], last_axes(call.operation, call.args)
    kind = "padding" if call.name == "constant_pad_nd" else "pooling"
    first, inner = made.dim() - last, given.dim()
    reads = (*range(first), *range(first, inner))
    makes = (*range(first), *range(inner, inner + last))
    return Rule(kind, ((given, reads),), makes, {}, frozenset(range(first, inner + last)), tokens=False)


def _cat(call: Call) -> Rule:
    made = call.made[0]
    place = (call.args[1] if len(call.args) > 1 else call.kwargs.get("dim", 0)) % made.dim()
    axes = tuple(range(made.dim()))
    reads = tuple(
        (each, (*axes[:place], made.dim() + n, *axes[place + 1 :])) for n, each in enumerate(call.given) if each.dim()
    )
    own = range(made.dim(), made.dim() + len(call.given))
    return Rule("cat", reads, axes, {}, frozenset({place, *own}))


_RULES: Mapping[Any, Callable[[Call], Rule]] = {
    _ATEN.mm: _mm,
    _ATEN.addmm: _addmm,
    _ATEN.bmm: _bmm,
    _ATEN._scaled_dot_product_flash_attention_for_cpu: _attention,
    **dict.fromkeys((_ATEN._softmax, _ATEN._safe_softmax, _ATEN._log_softmax), _softmax),
    **dict.fromkeys((_ATEN.native_layer_norm, _ATEN._fused_rms_norm), _norm),
    _ATEN.embedding: _embedding,
    **dict.fromkeys((_ATEN.sum, _ATEN.mean), _reduction),
    _ATEN.cat: _cat,
    _ATEN.convolution: _convolution,
    **dict.fromkeys((*POOLING, _ATEN.constant_pad_nd), _by_image),
}
