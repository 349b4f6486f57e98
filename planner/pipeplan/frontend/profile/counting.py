"""`Counter`: floating-point operations of torch's operations, from their shapes, and which of them nobody can count.

Torch's counter knows products of matrices, convolutions and attention. Here are more of its operations that add up
products. All other ones of torch's own count none: they compute element by element or move data. The rest, operations
of other libraries and factorisations of matrices, are named, since what they compute is not known. A user who knows it
registers a formula with ``torch.utils.flop_counter.register_flop_formula``.
"""

from collections.abc import Callable, Mapping, Sequence
from math import log2, prod
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

Shape = Sequence[int]


class Counter(FlopCounterMode):  # type: ignore[misc]
    """Context that counts the operations inside it.

    Attributes
    ----------
    uncounted : set of str
        Names of operations whose arithmetic is unknown.
    """

    def __init__(self) -> None:
        super().__init__(display=False, custom_mapping=dict(_formulas()))
        self.uncounted: set[str] = set()

    @property
    def of_weights(self) -> int:
        """Operations of weight gradients that come with those of inputs, whether they are wanted or not."""
        counts = self.flop_counts["Global"]
        return sum(flops // 2 for packet, flops in counts.items() if "grouped_mm_fallback_backward" in str(packet))

    def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
        if func_packet not in self.flop_registry and not is_cheap(func_packet):
            self.uncounted.add(_name(func_packet))
        return super()._count_flops(func_packet, out, args, kwargs)


def is_cheap(packet: Any) -> bool:
    """Return whether an operation computes element by element, reduces, or moves data."""
    namespace, _, name = _name(packet).partition("::")
    if namespace in ("aten", "prims", "prim"):
        parts = set(name.strip("_").split("_"))
        heavy = parts & _FACTORISES or (parts & _LIBRARIES and parts & _PRODUCTS)
        return not heavy or bool(parts & {"norm", "cross", "diagonal"})
    overloads = packet.overloads() if hasattr(packet, "overloads") else ()
    return any(torch.Tag.pointwise in getattr(packet, overload).tags for overload in overloads)


# parts of names of torch's own operations that are neither counted nor cheap
_FACTORISES = {"linalg", "cholesky", "lu", "qr", "svd", "eigh", "solve", "inverse", "geqrf", "orgqr", "ormqr", "lstsq"}
_LIBRARIES = {"cudnn", "miopen", "mkldnn", "sparse", "quantized", "weight"}
_PRODUCTS = {"convolution", "conv2d", "conv3d", "linear", "rnn", "mm", "addmm", "matmul", "int4pack", "int8pack"}


def _name(packet: Any) -> str:
    return str(getattr(packet, "_qualified_op_name", None) or getattr(packet, "__name__", packet))


def _formulas() -> Mapping[Any, Callable[..., Any]]:
    """Return formulas of operations that torch's counter does not know; they get shapes in place of tensors."""
    named: Mapping[str, Callable[..., Any]] = {
        "_scaled_dot_product_flash_attention_for_cpu": _attention,
        "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
        "mkldnn_rnn_layer": _recurrence,
        "mkldnn_rnn_layer_backward": _recurrence_backward,
        "_cudnn_rnn": _cudnn_recurrence,
        "_cudnn_rnn_backward": lambda *shapes, **_: 2 * _cudnn_recurrence(*shapes),
        "_grouped_mm": _grouped,
        "_scaled_grouped_mm": _grouped,
        "_scaled_grouped_mm_v2": _grouped,
        "_int_mm": _product,
        "mv": _product,
        "dot": _product,
        "vdot": _product,
        "addmv": lambda _, *shapes, **__: _product(*shapes),
        "addr": lambda _, *shapes, **__: 2 * prod(shapes[0]) * prod(shapes[1]),
        "addbmm": lambda _, *shapes, **__: _product(*shapes),
        "_trilinear": _trilinear,
        "_cdist_forward": _distances,
        "_cdist_backward": lambda _, *shapes, **__: _distances(*shapes),
        "_euclidean_dist": _distances,
        "_fft_c2c": _fourier,
        "_fft_r2c": _fourier,
        "_fft_c2r": _fourier,
    }
    aten = torch.ops.aten
    own = {getattr(aten, name): formula for name, formula in named.items() if hasattr(aten, name)}
    others = torch.ops.transformers  # its experts without a kernel of their own: (rows, in) (groups, in, out)
    if hasattr(others, "grouped_mm_fallback"):
        own[others.grouped_mm_fallback] = _grouped
    if hasattr(others, "grouped_mm_fallback_backward"):
        own[others.grouped_mm_fallback_backward] = lambda *shapes, **_: 2 * _grouped(*shapes[:2])
    return own


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
    return sdpa_flop_count(query, key, value)


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
    return sdpa_backward_flop_count(gradient, query, key, value)


def _recurrence(inputs: Any, input_weight: Any, state_weight: Any, *_: Any, **__: Any) -> int:
    """Operations of one recurrent layer in one direction.

    Shapes: (length, samples, in), (gates · width, in), (gates · width, width).
    """
    return int(2 * prod(inputs[:2]) * (prod(input_weight) + prod(state_weight)))


def _recurrence_backward(*shapes: Any, **_: Any) -> int:
    """Operations of a recurrent layer's backward, with the gradients of inputs and weights together."""
    return 2 * _recurrence(*shapes)


def _cudnn_recurrence(inputs: Shape, weights: Sequence[Shape], *_: Any, **__: Any) -> int:
    """Operations of all recurrent layers; (length, samples, in) or the two first axes exchanged."""
    return 2 * prod(inputs[:2]) * sum(prod(weight) for weight in weights if len(weight) == 2)


def _product(left: Shape, right: Shape, *_: Any, **__: Any) -> int:
    """Operations of a product that sums over the last axis of ``left``: of vectors, a matrix and a vector, matrices."""
    return 2 * prod(left) * (right[-1] if len(right) > 1 else 1)


def _grouped(left: Shape, right: Shape, *_: Any, **__: Any) -> int:
    """Operations of products of groups: every row is multiplied with one matrix, whatever the group it belongs to.

    Shapes: (rows, in) (groups, in, out); (groups, m, in) (in, columns); (m, rows) (rows, n), of which groups of rows
    are summed; (groups, m, in) (groups, in, n).
    """
    every_column_once = len(left) == 3 and len(right) == 2
    return 2 * prod(left[1:] if every_column_once else left) * right[-1]


def _trilinear(one: Shape, two: Shape, three: Shape, *others: Any, **_: Any) -> int:
    """Operations of a sum of products of three tensors, each with axes of length 1 where it is expanded."""
    shapes = []
    for shape, expanded in zip((one, two, three), others, strict=False):
        full = list(shape)
        for axis in sorted(expanded):
            full.insert(axis, 1)
        shapes.append(full)
    return int(2 * prod(map(max, zip(*shapes, strict=True))))


def _distances(left: Shape, right: Shape, *_: Any, **__: Any) -> int:
    """Operations of the distances of all pairs of rows: (…, rows, width), (…, rows, width)."""
    return 2 * prod(left) * right[-2]


def _fourier(shape: Shape, axes: Sequence[int], *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Operations of a fast Fourier transform: 5 n log n of n numbers."""
    wide = max((shape, out_shape or shape), key=prod)
    length = prod(wide[axis] for axis in axes)
    return round(5 * prod(wide) * log2(max(length, 2)))
