"""A critical path read as an inequality of the partition problem."""

from dataclasses import dataclass

from pipeplan_formulations.partition.terms import Number


@dataclass(frozen=True, slots=True)
class PathCut:
    """Coefficients of one inequality (6).

    ``forward``, ``backward``, ``update``, ``reduce`` have one entry a stage (an empty ``reduce`` stands for zeros),
    ``send`` and ``send_back`` one a link.

    Raises
    ------
    ValueError
        If a coefficient is negative: an action lies on a path or it does not.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    update: tuple[int, ...]
    send: tuple[int, ...]
    send_back: tuple[int, ...]
    constant: int = 0
    reduce: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("forward", "backward", "update", "send", "send_back", "reduce"):
            if any(coefficient < 0 for coefficient in getattr(self, name)):
                raise ValueError(f"a path counts actions; {name} has a negative coefficient: {getattr(self, name)}")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Lengths of the rows: forward, backward, update, reduce, send, send_back."""
        rows = (self.forward, self.backward, self.update, self.reduce or self.update, self.send, self.send_back)
        return tuple(len(row) for row in rows)

    @property
    def largest(self) -> int:
        """The largest coefficient."""
        return max(0, *self.forward, *self.backward, *self.update, *self.reduce, *self.send, *self.send_back)

    def length(
        self, forward: Number, backward: Number, update: Number, reduce: Number, send: Number, send_back: Number
    ) -> Number:
        """Right side of (6) for these times, each a sequence with one entry per stage or link."""
        total = self.constant
        rows = (self.forward, self.backward, self.update, self.send, self.send_back)
        times = (forward, backward, update, send, send_back)
        pairs = [*zip(rows, times, strict=True), *([(self.reduce, reduce)] if self.reduce else [])]
        for row, entries in pairs:
            for coefficient, time in zip(row, entries, strict=True):
                if coefficient:
                    total = total + coefficient * time
        return total
