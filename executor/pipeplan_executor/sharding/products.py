"""Products with a split weight: the weight stays where it is, and what it is multiplied with is moved.

::

    weight split by     other operand     product          its gradient     weight's gradient needs
    outputs (columns)   whole             split            split            the operand whole again
    inputs (rows)       split             part of a sum    whole            the operand split again

DTensor would also move the weight, if that is smaller. Plans are priced with what is moved here
(`pipeplan.costs.teams`). Weights are recognised by a mark that parameters get and that passes to their views and
copies. An operand of a product with a weight is marked with what it was needed as, for the weight's gradient; autograd
keeps it with its mark. A gradient that was moved for such a product is added up for the bias as it was moved.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement

from pipeplan_executor.sharding.grouped import along, divides, is_cut
from pipeplan_executor.sharding.parts import WHOLE, local, placed, spec

_WEIGHT, _OPERAND, _MOVED = "pipeplan_weight", "pipeplan_operand", "pipeplan_moved"
_ATEN = torch.ops.aten
_PRODUCTS = {_ATEN.mm.default: 0, _ATEN.addmm.default: 1}
"""Products of two matrices, and the place of the first."""
_SUM = _ATEN.sum.dim_IntList
_PASSING = {_ATEN.t.default, _ATEN.transpose.int, _ATEN.detach.default, _ATEN.alias.default, _ATEN._to_copy.default}
"""Operations whose result is the same matrix."""


def mark_weight(tensor: DTensor) -> DTensor:
    """Mark the DTensor of a parameter, and return it."""
    setattr(tensor, _WEIGHT, True)
    return tensor


def is_weight(tensor: DTensor) -> bool:
    """Return whether a tensor is a parameter, or its transpose or copy."""
    return hasattr(tensor, _WEIGHT)


def pass_marks(func: Any, args: Sequence[Any], made: Any) -> None:
    """Mark the result of an operation that returns the same matrix as its argument is marked."""
    if func in _PASSING:
        for name in (_WEIGHT, _OPERAND):
            if (mark := getattr(args[0], name, None)) is not None:
                setattr(made, name, mark)


def aligned(func: Any, args: Sequence[Any], given: Sequence[Any]) -> Sequence[Any]:
    """Return the arguments of a product with operands as a split weight, or its gradient, needs them; so of its bias.

    ``given``: the arguments as autograd has them, before tokens were gathered.
    """
    if func is _SUM:
        return [getattr(args[0], _MOVED, args[0]), *args[1:]]
    first = _PRODUCTS.get(func)
    if first is None or not all(isinstance(each, DTensor) for each in args[first : first + 2]):
        return args
    pair, marked = list(args[first : first + 2]), given[first : first + 2]
    for place in (0, 1):
        weight, other = marked[place], pair[1 - place]
        how = spec(weight).placements[0]
        if is_weight(weight) and is_cut(how):
            summed_over = how.dim == 1 - place
            setattr(marked[1 - place], _OPERAND, (not summed_over, how))
            pair[1 - place] = _as(other, along(how, place) if summed_over else WHOLE)
            setattr(marked[1 - place], _MOVED, pair[1 - place])
            break
    else:
        for place in (0, 1):
            if (needed := getattr(marked[place], _OPERAND, None)) is not None:
                whole, how = needed
                pair[place] = _as(pair[place], WHOLE if whole else along(how, place))
                pair[1 - place] = _as(pair[1 - place], along(how, 1 - place) if whole else WHOLE)
                break
    return [*args[:first], *pair, *args[first + 2 :]]


def _as(tensor: Tensor, placements: tuple[Placement, ...]) -> DTensor:
    """Return the matrix under other placements; as it is if its axis cannot be divided."""
    assert isinstance(tensor, DTensor)
    known, how = spec(tensor), placements[0]
    if known.placements == placements:
        return tensor
    if is_cut(how) and not divides(how, tensor.shape[how.dim], tensor.device_mesh.size()):
        return tensor
    return placed(local(tensor, placements), tensor.device_mesh, placements)
