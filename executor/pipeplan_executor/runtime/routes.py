"""Routes of messages between stages whose ranks have several processes, equally many or not.

::

    whole tensors, teams of 2 and 4        tokens in parts, teams of 2 and 4

    0 ──▶ 0, 1                             0  tokens 0 1 2 3 ──▶ 0  tokens 0 1
    1 ──▶ 2, 3                                               ──▶ 1  tokens 2 3
                                           1  tokens 4 5 6 7 ──▶ 2  tokens 4 5
    and back                                                 ──▶ 3  tokens 6 7
    0 ◀── 0
    1 ◀── 2                                and back the same way

Of a team of b, member j receives a whole tensor from member ⌊j a / b⌋ of a team of a: each member has the same.
"""

from collections.abc import Sequence
from functools import cache

from pipeplan_executor.runtime.program.lower import Message
from pipeplan_executor.sharding.processes import Processes

Route = tuple[int, slice | None]
"""Another process, and the tokens of the own part that pass; all of the tensor if that is None."""


class Routes:
    """The processes with which one process exchanges the tensors of messages.

    Parameters
    ----------
    processes : Processes
    rank, tensor_rank : int
        Of this process.
    tokens : sequence of int or None
        For each stage the tokens of its whole output, where the members of a team have parts of it.
    """

    def __init__(self, processes: Processes, rank: int, tensor_rank: int, tokens: Sequence[int | None]) -> None:
        self._processes, self._rank, self._member, self._tokens = processes, rank, tensor_rank, tokens
        self._to, self._from = cache(self._sends), cache(self._receives)

    def sends(self, message: Message) -> tuple[Route, ...]:
        """Where this process sends the tensors of a message, or parts of them."""
        return self._to(message.target, self._boundary(message))

    def receives(self, message: Message) -> tuple[Route, ...]:
        """Where the tensors of a message come from; several routes bring parts in the order of their tokens."""
        return self._from(message.source, self._boundary(message))

    @staticmethod
    def _boundary(message: Message) -> int:
        return min(message.made.stage, message.reads.stage)

    def _sends(self, other: int, boundary: int) -> tuple[Route, ...]:
        there, own = self._processes.of_rank(other), len(self._processes.of_rank(self._rank))
        tokens = self._tokens[boundary]
        if tokens is None or own == len(there):
            return tuple((process, None) for j, process in enumerate(there) if j * own // len(there) == self._member)
        return self._overlaps(there, own, tokens)

    def _receives(self, other: int, boundary: int) -> tuple[Route, ...]:
        there, own = self._processes.of_rank(other), len(self._processes.of_rank(self._rank))
        tokens = self._tokens[boundary]
        if tokens is None or own == len(there):
            return ((there[self._member * len(there) // own], None),)
        return self._overlaps(there, own, tokens)

    def _overlaps(self, there: range, own: int, tokens: int) -> tuple[Route, ...]:
        """The members of another team whose tokens are some of this member's."""
        mine, part = tokens // own, tokens // len(there)
        begin, end = self._member * mine, (self._member + 1) * mine
        return tuple(
            (process, slice(max(j * part, begin) - begin, min((j + 1) * part, end) - begin))
            for j, process in enumerate(there)
            if max(j * part, begin) < min((j + 1) * part, end)
        )
