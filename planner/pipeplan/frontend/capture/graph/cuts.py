"""Module calls as a tree of spans of units, and the cuts between them where few tensors pass.

::

    unit       0     1     2     3     4     5     6
    ""         ├───────────────────────────────────────┤
    "h.0"            ├───────────────────┤
    "h.0.norm"       ├─────┤
    "h.0.mlp"              ├───────┤                      unit 4 is h.0's own: a residual

A module is opened if both its ends are cuts. Every end of a module inside it is then a candidate. Between two of these
ends, the place where the fewest tensors pass is a candidate too. A candidate becomes a cut unless fewer tensors pass
somewhere ahead of it and somewhere behind it:

::

    block        ╭─────────────────────── + ──╮                    + ─
    x ──────┴─ norm ── attention ─────────╯   ┴─ norm ── perceptron ╯
    passing   1     2          2            1       2            2    1      so the block is cut in its middle

Skip connections over most of a model would leave it whole (in a U-shaped net all places are dominated in this way).
So a stretch with more than an eighth of all parameters is cut at every place between modules. A layer without a matrix
(a rectifier, a pooling, a norm) joins a neighbour. The rule counts tensors, not bytes, so that the cuts are the same
for every micro-batch size.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import accumulate, pairwise

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
        """First and end units of the call and of the calls directly inside it, in order."""
        return tuple(sorted({self.first, self.end, *(p for call in self.inside for p in (call.first, call.end))}))

    def walk(self) -> Iterator["Call"]:
        """Yield the call and all calls inside it."""
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


STRETCH = 8
"""A stretch is long if it holds more than 1/STRETCH of the model's parameters."""
MOST = 256
"""Most layers; beyond them, cuts inside small modules are dropped."""


def module_cuts(
    root: Call, passing: Callable[[int], int], matrices: Sequence[int], allowed: Collection[int]
) -> tuple[int, ...]:
    """Cuts between modules, in order.

    Parameters
    ----------
    passing : callable
        Number of tensors that pass a place.
    matrices : sequence of int
        Number of elements that each unit reads of parameters with two axes or more.
    allowed : collection of int
        Places that may be cut.
    """
    before = [0, *accumulate(matrices)]
    depth: dict[int, int] = {}
    waiting = [(root, 0)]
    while waiting:
        call, level = waiting.pop()
        ends = [p for p in _ends(call, passing, allowed) if p in allowed or p in (call.first, call.end)]
        kept = set(_kept(ends, {p: passing(p) for p in ends}, before))
        for place in kept - {call.first, call.end}:
            depth[place] = min(level, depth.get(place, level))
        waiting += [(inner, level + 1) for inner in call.inside if inner.first in kept and inner.end in kept]
    cuts = with_matrices(sorted(depth), passing, matrices)
    while len(cuts) >= MOST and len({depth[cut] for cut in cuts}) > 1:
        deepest = max(depth[cut] for cut in cuts)
        cuts = tuple(cut for cut in cuts if depth[cut] < deepest)
    return cuts


def place_cuts(places: Sequence[int], passing: Callable[[int], int], matrices: Sequence[int]) -> tuple[int, ...]:
    """Cuts of a graph without modules to cut between: the same rule for all places."""
    ends = [0, *places, len(matrices)]
    kept = set(_kept(ends, {p: passing(p) for p in ends}, [0, *accumulate(matrices)]))
    return with_matrices(sorted(kept - {0, len(matrices)}), passing, matrices)


def _ends(call: Call, passing: Callable[[int], int], allowed: Collection[int]) -> list[int]:
    """Ends of the call and of calls in it; between two of these also the place where fewer tensors pass, if any."""
    ends = call.ends()
    inside = {(inner.first, inner.end) for inner in call.inside}
    found = list(ends)
    for a, b in pairwise(ends):
        own = [p for p in range(a + 1, b) if p in allowed] if (a, b) not in inside else []
        best = min(own, key=passing, default=a)
        if passing(best) < min(passing(a), passing(b)):
            found.append(best)
    return sorted(found)


def _kept(ends: Sequence[int], passing: Mapping[int, int], before: Sequence[int]) -> Iterator[int]:
    """The two ends, the places that are not dominated, and all places in long stretches."""
    # ahead[i], behind[i]: fewest tensors at a place up to i, and from i on; free: indices that are not dominated
    ahead = list(accumulate((passing[p] for p in ends), min))
    behind = list(accumulate((passing[p] for p in reversed(ends)), min))[::-1]
    free = [i for i, p in enumerate(ends) if passing[p] <= max(ahead[i], behind[i])]
    yield from (ends[i] for i in free)
    for a, b in pairwise(free):
        if (before[ends[b]] - before[ends[a]]) * STRETCH > before[-1]:
            yield from ends[a + 1 : b]


def with_matrices(cuts: Sequence[int], passing: Callable[[int], int], matrices: Sequence[int]) -> tuple[int, ...]:
    """Drop cuts so that every layer has a matrix: one without joins the neighbour behind the cut of more tensors."""
    # before[u]: elements of matrices ahead of unit u; left: the remaining cuts with both ends
    before = [0, *accumulate(matrices)]
    left = [0, *cuts, len(matrices)]
    number = 0
    while number < len(left) - 1:
        start, end = left[number], left[number + 1]
        if before[end] > before[start] or len(left) == 2:
            number += 1
        elif number == 0 or (end < len(matrices) and passing(end) > passing(start)):
            del left[number + 1]
        else:
            del left[number]
            number -= 1
    return tuple(left[1:-1])


def whole_calls(root: Call, group: Sequence[str]) -> Iterator[Call]:
    """Calls to keep whole, by the user's patterns of paths or class names."""
    for call in root.walk():
        if call.path and any(fnmatchcase(call.path, pattern) or call.kind == pattern for pattern in group):
            yield call
