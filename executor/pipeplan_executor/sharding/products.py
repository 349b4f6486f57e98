"""Products with a split weight: the weight stays where it is, and what it is multiplied with is moved.

::

    weight split by     other operand     product          its gradient     weight's gradient needs
    outputs (columns)   whole             split            split            the operand whole again
    inputs (rows)       split             part of a sum    whole            the operand split again

A whole weight whose product a plan has on parts of the tokens is multiplied with these (`on_tokens`)::

    weight              other operand     product           its gradient      weight's gradient
    whole               own tokens        own tokens        own tokens        a part of a sum

DTensor would also move the weight, if that is smaller. Plans are priced with what is moved here
(`pipeplan.costs.teams`). Weights are recognised by a mark that parameters get and that passes to their views and
copies. An operand of a product with a weight is marked with what it was needed as, for the weight's gradient; autograd
keeps it with its mark. A gradient that was moved for such a product is added up for the bias as it was moved. No
operand of a forward refers to what it was moved to, which would then be kept until the backward.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement
from torch.distributed.tensor.placement_types import _StridedShard

from pipeplan_executor.sharding.grouped import along, divides, is_cut
from pipeplan_executor.sharding.moves import LastMoved, flattened
from pipeplan_executor.sharding.parts import WHOLE, local, placed, shard, spec
from pipeplan_executor.sharding.sequence import Stream

_WEIGHT, _OPERAND, _MOVED = "pipeplan_weight", "pipeplan_operand", "pipeplan_moved"
_TOKENS = "tokens"
"""Mark of weights, and of what they are multiplied with, whose products run on parts of the tokens."""
_ATEN = torch.ops.aten
_PRODUCTS = {_ATEN.mm.default: 0, _ATEN.addmm.default: 1}
"""Products of two matrices, and the place of the first."""
_SUM = _ATEN.sum.dim_IntList
_PASSING = {_ATEN.t.default, _ATEN.transpose.int, _ATEN.detach.default, _ATEN.alias.default, _ATEN._to_copy.default}
"""Operations whose result is the same matrix."""


def mark_weight(tensor: DTensor, on_tokens: bool = False) -> DTensor:
    """Mark the DTensor of a parameter, and return it."""
    setattr(tensor, _WEIGHT, _TOKENS if on_tokens else True)
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


def on_tokens(
    func: Any, args: Sequence[Any], streams: Sequence[Stream], last: LastMoved, forward: bool
) -> DTensor | None:
    """Run a product on the tokens of each rank if a plan has it so; or the sum of its gradient for a bias.

    Returns None for other operations.
    """
    if func is _SUM:
        return _summed(args)
    first = _PRODUCTS.get(func)
    if first is None or not all(isinstance(each, DTensor) for each in args):
        return None
    pair: list[DTensor] = list(args[first : first + 2])
    weights = [place for place in (0, 1) if hasattr(pair[place], _WEIGHT)]
    if weights and getattr(pair[weights[0]], _WEIGHT) != _TOKENS:
        return None
    if not weights and not any(getattr(each, _OPERAND, None) == _TOKENS for each in pair):
        return None
    # with a weight the other operand has rows of tokens; the gradient of a weight sums over those of both
    axes = {1 - weights[0]: 1 - weights[0]} if weights else {0: 1, 1: 0}
    mesh = pair[0].device_mesh
    rows = {pair[place].shape[axis] for place, axis in axes.items()}
    stream = next((each for each in streams if rows == {each.rows} and each.tokens % mesh.size() == 0), None)
    if stream is None:
        return None
    moved = {place: last.to_tokens(pair[place], axis, stream) for place, axis in axes.items()}
    for place in axes if weights else ():
        setattr(pair[place], _OPERAND, _TOKENS)
        _note_moved(pair[place], moved[place], forward)
    parts = [shard(moved[place]) if place in moved else local(pair[place], WHOLE) for place in (0, 1)]
    made = func(*(local(each, WHOLE) for each in args[:first]), *parts, *args[first + 2 :])
    how = flattened(stream, next(iter(axes))) if weights else (Partial(),)
    return placed(made, mesh, how)


def _summed(args: Sequence[Any]) -> DTensor | None:
    """Return the sum over the rows of a gradient of which each rank has its tokens, as a part of a sum."""
    moved = getattr(args[0], _MOVED, args[0])
    if not isinstance(moved, DTensor) or not isinstance(moved.placements[0], _StridedShard) or moved.placements[0].dim:
        return None
    if moved.dim() != 2 or list(args[1]) != [0]:
        return None
    return placed(_SUM(shard(moved), *args[1:]), moved.device_mesh, (Partial(),))


def features_wanted(func: Any, args: Sequence[Any]) -> tuple[int, Placement] | None:
    """Return the argument that is needed in parts of features, and which parts; None if there is none.

    Products with a split weight have such, or their gradients.
    """
    first = _PRODUCTS.get(func)
    if first is None or not all(isinstance(each, DTensor) for each in args[first : first + 2]):
        return None
    pair = args[first : first + 2]
    for place in (0, 1):
        how = spec(pair[place]).placements[0]
        if hasattr(pair[place], _WEIGHT):
            return (first + 1 - place, along(how, place)[0]) if is_cut(how) and how.dim == 1 - place else None
    for place in (0, 1):
        if (needed := getattr(pair[place], _OPERAND, None)) is not None:
            whole, how = needed
            own = 1 - place if whole else place
            return first + own, along(how, own)[0]
    return None


def aligned(func: Any, args: Sequence[Any], given: Sequence[Any], forward: bool) -> Sequence[Any]:
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
            _note_moved(marked[1 - place], pair[1 - place], forward)
            break
    else:
        for place in (0, 1):
            if (needed := getattr(marked[place], _OPERAND, None)) is not None:
                whole, how = needed
                pair[place] = _as(pair[place], WHOLE if whole else along(how, place))
                pair[1 - place] = _as(pair[1 - place], along(how, 1 - place) if whole else WHOLE)
                break
    return [*args[:first], *pair, *args[first + 2 :]]


def _note_moved(tensor: DTensor, moved: DTensor, forward: bool) -> None:
    """Note what the gradient of a product was moved to, for the bias.

    A tensor that refers to itself would stay until Python's collector runs.
    """
    if forward or moved is tensor:
        vars(tensor).pop(_MOVED, None)
    else:
        setattr(tensor, _MOVED, moved)


def _as(tensor: Tensor, placements: tuple[Placement, ...]) -> DTensor:
    """Return the matrix under other placements; as it is if its axis cannot be divided."""
    assert isinstance(tensor, DTensor)
    known, how = spec(tensor), placements[0]
    if known.placements == placements:
        return tensor
    if is_cut(how) and not divides(how, tensor.shape[how.dim], tensor.device_mesh.size()):
        return tensor
    return placed(local(tensor, placements), tensor.device_mesh, placements)
