"""The calls of modules that a graph's work belongs to, as a tree of spans of units.

::

    unit       0     1     2     3     4     5     6
    ""         ├───────────────────────────────────────┤
    "h.0"            ├───────────────────┤
    "h.0.norm"       ├─────┤
    "h.0.mlp"              ├───────┤                      unit 4 is h.0's own: a residual
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import fx


@dataclass(frozen=True)
class Call:
    """One call of a module: units ``first`` … ``end`` − 1.

    Attributes
    ----------
    path : str
        The module's path in the model.
    kind : str
        Name of its class.
    """

    path: str
    kind: str
    first: int
    end: int
    inside: tuple["Call", ...] = field(repr=False)

    def ends(self) -> tuple[int, ...]:
        """Where it begins and ends, and where the calls in it do, in order."""
        return tuple(sorted({self.first, self.end, *(p for call in self.inside for p in (call.first, call.end))}))

    def walk(self) -> Iterator["Call"]:
        """It and all calls inside it."""
        yield self
        for call in self.inside:
            yield from call.walk()


def calls_of(units: Sequence[tuple[fx.Node, ...]], kind: str) -> Call:
    """The tree of calls; its root is the model, of class ``kind``."""
    stacks: list[tuple[tuple[str, str], ...]] = []
    for unit in units:
        stack = tuple((path, kind) for path, kind in unit[0].meta["nn_module_stack"].values() if path)
        stacks.append(stack if unit[0].meta["nn_module_stack"] or not stacks else stacks[-1])
    return Call("", kind, 0, len(units), tuple(_inside(stacks, 0, len(units), 0)))


def _inside(stacks: Sequence[tuple[tuple[str, str], ...]], first: int, end: int, depth: int) -> Iterator[Call]:
    while first < end:
        here = stacks[first][depth : depth + 1]
        after = first + 1
        while after < end and stacks[after][depth : depth + 1] == here:
            after += 1
        if here:
            path, kind = here[0]
            inside = tuple(_inside(stacks, first, after, depth + 1))
            yield Call(path.partition("@")[0], kind.rpartition(".")[2], first, after, inside)
        first = after
