"""A critical path read as an inequality of the partition problem."""

from collections.abc import Callable
from dataclasses import dataclass

from pipeplan_formulations.partition.terms import Number


@dataclass(frozen=True, slots=True)
class PathCut:
    """Coefficients of one inequality (6).

    ``forward``, ``backward``, ``update``, ``reduce`` have one entry a stage (an empty ``reduce`` stands for zeros),
    ``send`` and ``send_back`` one a link. ``surplus``: links, and for each cut what the path's transfers over the link
    take beyond f or g, as they do where they pass slower wires.

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
    surplus: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def __post_init__(self) -> None:
        for name in ("forward", "backward", "update", "send", "send_back", "reduce"):
            if any(coefficient < 0 for coefficient in getattr(self, name)):
                raise ValueError(f"a path counts actions; {name} has a negative coefficient: {getattr(self, name)}")
        for link, row in self.surplus:
            if any(time < 0 for time in row):
                raise ValueError(f"a wire of link {link} is faster than the fastest one: {row}")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Lengths of the rows: forward, backward, update, reduce, send, send_back."""
        rows = (self.forward, self.backward, self.update, self.reduce or self.update, self.send, self.send_back)
        return tuple(len(row) for row in rows)

    @property
    def largest(self) -> int:
        """The largest coefficient."""
        return max(0, *self.forward, *self.backward, *self.update, *self.reduce, *self.send, *self.send_back)

    @property
    def most_surplus(self) -> int:
        """No partition has more of it."""
        return sum(max(row, default=0) for _, row in self.surplus)

    def length(
        self,
        forward: Number,
        backward: Number,
        update: Number,
        reduce: Number,
        send: Number,
        send_back: Number,
        chosen: Callable[[int, tuple[int, ...]], Number] | None = None,
    ) -> Number:
        """Right side of (6) for these times, each a sequence with one entry per stage or link.

        ``chosen(link, row)``: the entry of the row for the cut at which the link lies.
        """
        total = self.constant
        for link, row in self.surplus:
            assert chosen is not None, "a path over unlike wires depends on where its links lie"
            total = total + chosen(link, row)
        rows = (self.forward, self.backward, self.update, self.send, self.send_back)
        times = (forward, backward, update, send, send_back)
        pairs = [*zip(rows, times, strict=True), *([(self.reduce, reduce)] if self.reduce else [])]
        for counts, entries in pairs:
            for coefficient, time in zip(counts, entries, strict=True):
                if coefficient:
                    total = total + coefficient * time
        return total
