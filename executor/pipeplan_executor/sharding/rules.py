"""Rules of DTensor for operations on shards, found once for arguments of equal shapes and placements.

DTensor's dispatch takes about 0.1 ms per operation on a CPU. What it decides depends on the operation, on numbers among
the arguments, and on the tensors' shapes and placements. `Rules` keeps the decision where it is a local operation,
perhaps on shards under other placements; the operation is then called on the shards directly.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.distributed.tensor import DTensor, Placement

from pipeplan_executor.sharding.parts import Specs, local, local_rule, of_spec, shard, spec

MOST = 4096
"""Rules that are kept; more than these many shapes are not repeated."""


class Rule(NamedTuple):
    """Arguments of the local operation, of tensors the placements that they must get first; and what it makes."""

    arguments: tuple[Any, ...]
    specs: Specs


class Rules:
    """Operations on shards by DTensor's rules."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Rule | None] = {}

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operation that writes into none of its arguments; every tensor among them is a DTensor.

        Raises
        ------
        RuntimeError
            If DTensor has no rule for it.
        """
        rule = self._rule(func, args, kwargs)
        if rule is None:
            return func(*args, **kwargs)
        there = zip(args, rule.arguments, strict=True)
        made = func(*[_part(own, kept) if isinstance(own, Tensor) else kept for own, kept in there], **kwargs)
        return _wrapped(made, rule.specs)

    def _rule(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Rule | None:
        try:
            key = func, tuple(map(_key, args)), tuple((name, _key(each)) for name, each in kwargs.items())
            if key not in self._known:
                if len(self._known) >= MOST:
                    self._known.clear()
                found = local_rule(func, tuple(args), dict(kwargs))
                self._known[key] = None if found is None else Rule(*found)
        except TypeError:  # tensors in lists, and what else cannot be hashed
            return None
        return self._known[key]


def _part(tensor: Tensor, placements: Sequence[Placement] | None) -> Tensor:
    return shard(tensor) if placements is None or not isinstance(tensor, DTensor) else local(tensor, placements)


def _key(value: Any) -> Hashable:
    """Return what an argument contributes to the choice of a rule."""
    if isinstance(value, DTensor):
        own: Hashable = spec(value)
        return own
    kind = type(value)
    if kind is list or kind is tuple:
        return kind, *map(_key, value)
    if isinstance(value, Tensor):
        raise TypeError
    return kind, value  # 1, 1.0 and True are equal


def _wrapped(made: Any, specs: Specs) -> Any:
    if isinstance(made, Tensor):
        return of_spec(made, specs)
    if isinstance(made, tuple | list):
        return type(made)(_wrapped(each, how) for each, how in zip(made, specs, strict=True))
    return made
