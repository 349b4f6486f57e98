"""`SharedCopy`: a tensor in other placements, moved once for several operators that read it.

::

    forward     held part ──▶ copy ──┬──▶ reader      the last reader of a forward takes it, and it is dropped
                                     └──▶ reader
    backward    held part ──▶ copy again ─┬▶ reader   made where the first of them needs it, dropped behind the last
                                          └▶ reader

Of a copy that is kept for the backward readers keep it as they would keep the held part.
"""

from torch import Tensor

from pipeplan_executor.sharding.mesh.moves import Move
from pipeplan_executor.sharding.mesh.saving import Repeated


class SharedCopy:
    """The copy of a tensor in one forward and its backward.

    Parameters
    ----------
    move : Move
        From the placements in which the tensor is held to that of the copy.
    readers : int
        Operators that read it in the forward.
    for_inputs : bool
        Whether a backward makes it again for the input gradient, also if only weight gradients read it.
    """

    def __init__(self, move: Move, readers: int, for_inputs: bool) -> None:
        self._make, self._readers, self._for_inputs = move.forward, readers, for_inputs
        self._made: Tensor | None = None
        self._again = Repeated(self._make)

    def take(self, held: Tensor) -> Tensor:
        """Return the copy for the next reader of the forward."""
        made = self._make(held) if self._made is None else self._made
        self._readers -= 1
        self._made = made if self._readers else None
        return made

    def repeated(self, move: Move) -> Repeated:
        """Return what a reader moves from the copy, as a backward makes it again."""
        begin = self._again.prepare if self._for_inputs else None
        return Repeated(lambda held: move.forward(self._again.again(held)), self._again.keep, begin)
