"""Copies of tensors on a mesh: one redistribution for several operators that read a tensor.

A tensor that several operators read is a node of the problem of its own. Its state is the placements in which it is
held, that of a copy with some of its dimensions gathered, if there is one, and whether the copy is made once more in
the backward, or kept for it::

    norm, 1/T of the tokens ──▶ (tensor: 1/T held, a whole copy, again) ──┬──▶ query, columns      one gather forward,
                                                                          ├──▶ key, columns        one backward; each
                                                                          ├──▶ value, columns      of them takes its
                                                                          └──▶ others, 1/T         part for nothing

Operators get a tensor from its copy if that takes less time. Those that move in the backward again what they read, with
weights or as attention, take the copy only if it is made again too, or kept. One that is kept costs its bytes, and may
be for a single operator.
"""

from collections.abc import Iterator
from functools import cached_property, partial
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.operators import Operator
from pipeplan.core.strategies import WHOLE, Placements
from pipeplan.costs.sharding.layer_redistributions import moves_again
from pipeplan.costs.sharding.signatures import MeshSignatures

Array = NDArray[np.int64]


class CopyState(NamedTuple):
    """How a tensor is held, the placements of its copy, and whether a backward makes that again, or it is kept."""

    held: Placements
    copy: Placements | None = None
    again: bool = False
    kept: bool = False


class CopiedTensor(NamedTuple):
    """A tensor that may have a copy, and the states that it may have."""

    tensor: str
    states: tuple[CopyState, ...]


class MeshCopies(MeshSignatures):
    """The operators of one layer, or of all layers of a model, on a mesh, and the tensors that may have copies."""

    @cached_property
    def copied(self) -> tuple[CopiedTensor, ...]:
        """Tensors that several operators read, or one that moves them again, which may have a copy."""
        found = []
        for name, readers in self.readers.items():
            alone = len(readers) == 1 and not (self.keeps and moves_again(self.graph, readers[0]))
            if alone or (self.joined and name in self.graph.inputs):
                continue
            chosen = None if self.only is None else self.only.copies.get(name)
            alike = tuple((self.likeness[reader.name], reader.reads[name]) for reader in readers)
            key = "copies", self.tensors[name], self.likeness.get(name, name), alike, chosen
            states = self.once(key, partial(self._states, name))
            if any(state.copy is not None for state in states):
                found.append(CopiedTensor(name, states))
        return tuple(found)

    @cached_property
    def copied_names(self) -> frozenset[str]:
        """The tensors that may have copies."""
        return frozenset(each.tensor for each in self.copied)

    def takes_copy(self, reader: Operator, name: str, state: CopyState, need: Placements) -> bool:
        """Return whether an operator that needs a tensor in placements gets it from the copy."""
        if state.copy is None:
            return False
        if self.only is not None:
            return reader.name in self.only.copies[name].readers
        moves = self.moves(name, False)
        held, copied = moves.cost(state.held, need), moves.cost(state.copy, need)
        return (
            (state.again or state.kept or not moves_again(self.graph, reader))
            and held is not None
            and copied is not None
            and copied < held
        )

    def _states(self, name: str) -> tuple[CopyState, ...]:
        """The states of a tensor: without a copy, and with each that could spare several readers a redistribution."""
        if name not in self.index:
            helds = [self._end(name)]
        else:
            helds = list(dict.fromkeys(each.held for each in self.signatures[self.index[name]]))
        if self.only is not None:
            copy = self.only.copies.get(name)
            used = () if copy is None else copy.readers
            kept = copy is not None and copy.kept
            again = any(moves_again(self.graph, each) for each in self.readers[name] if each.name in used)
            return (CopyState(helds[0], copy and copy.placements, again and not kept, kept),)
        if not self.shares:
            return tuple(map(CopyState, helds))
        return tuple(state for held in helds for state in (CopyState(held), *self._with_copy(name, held)))

    def _with_copy(self, name: str, held: Placements) -> Iterator[CopyState]:
        needs = {
            each.name: {self.needed(each, own.strategy, name) for own in self.signatures[self.index[each.name]]}
            for each in self.readers[name]
        }
        for copy in product(*((placement, WHOLE) if placement != WHOLE else (WHOLE,) for placement in held)):
            if copy == held or not self.moves(name, False).cost(held, copy):
                continue
            for again, kept in ((False, False), (True, False), *([(False, True)] if self.keeps else [])):
                state = CopyState(held, copy, again, kept)
                users = [
                    each
                    for each in self.readers[name]
                    if any(self.takes_copy(each, name, state, need) for need in needs[each.name])
                ]
                repeats = any(moves_again(self.graph, each) for each in users)
                if (len(users) > 1 or kept) and (repeats or not (again or kept)):
                    yield state
