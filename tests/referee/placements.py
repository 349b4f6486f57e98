"""Placements of the tensors of a layer on a mesh, and what it takes to move them from one to another."""

import heapq
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache

from .costs import layer_costs
from .documents import Document, Link
from .graphs import INPUT, PART, TOKEN, WHOLE, has_samples, in_samples, inputs, outputs, stream
from .rings import Ring, occupancy, rings_of, shared, slowest
from .teams import Teams

Placements = tuple[int, ...]


class Tensors:
    """The tensors of a layer on a mesh."""

    def __init__(
        self,
        teams: Teams,
        sizes: tuple[int, ...],
        layer: int,
        kind: str,
        size: int,
        ends: tuple[Placements, Placements],
    ) -> None:
        question = teams.question
        entry = in_samples(teams.graphs[teams.graph(layer)], size, not any(map(has_samples, teams.graphs.values())))
        self.entry, self.operators, self.size = entry, list[Document](entry["operators"]), size
        self.cost, self.parameters = layer_costs(question, kind, size)[layer], question.parameters[layer]
        self.inputs: dict[str, int] = entry["inputs"] if "inputs" in entry else {INPUT: entry.get("input", 0)}
        self.bytes = self.inputs | {each["name"]: each["output"] for each in self.operators}
        self.inert, self.returned = set(entry.get("without_gradient", ())), set(outputs(entry))
        self.readers = {name: [each for each in self.operators if name in each["reads"]] for name in self.bytes}
        self.makers = {each["name"]: each for each in self.operators}
        self.split = {name for name in self.makers if name not in self.returned and self.readers[name]}
        self.kind, self.job = question.kinds[kind], question.job
        self.sizes, self.whole, self.ends = sizes, (WHOLE,) * len(sizes), ends
        rows = teams.homes[kind]
        nodes = teams.having(kind) if len(rows[0]) > 1 else {node for row in rows for node in row}
        inside = slowest([question.links[node] for node in sorted(nodes)])
        network, passing = question.network or inside, rings_of(sizes, teams.team // len(rows[0]))
        assert passing is not None, f"a mesh of {sizes} is uneven"
        self.rings = [
            slowest([*[inside] * (members > 1), shared(network, count)]) if count else inside
            for count, members in passing
        ]
        self.at_card = [members if count else 1 for count, members in passing]
        self.cheapest, self.moved, self.parts = cache(self._cheapest), cache(self._moved), cache(self._divisible)
        self.dtype = question.dtype

    def end(self, name: str) -> Placements:
        """The placements of an input or output."""
        is_input = name in self.inputs
        names = inputs(self.entry) if is_input else outputs(self.entry)
        return self.ends[not is_input] if stream(self.entry, names) == name else self.whole

    def laid(self, axes: Sequence[str], loops: Sequence[str], parts: bool = False) -> Placements:
        """The placements of a tensor with these axes under the loops of an operator; ``parts``: of what it sums."""
        found = []
        for loop in loops:
            axis = list(axes).index(loop) if loop and loop in axes else WHOLE
            found.append(PART if parts and loop and axis == WHOLE else axis)
        return tuple(found)

    def _divisible(self, name: str) -> list[int]:
        """Into how many parts each axis of a tensor may be divided."""
        rows = [(each, each["reads"][name]) for each in self.readers[name]]
        rows += [(self.makers[name], self.makers[name]["makes"])] if name in self.makers else []
        if not rows:
            return []
        every = [each["loops"][TOKEN] for each in self.operators if TOKEN in each.get("loops", {})]
        other = {TOKEN: math.gcd(*every) or 1}  # of tokens on which none of these operators runs in parts
        return [
            math.lcm(*(each.get("loops", {}).get(axes[i], other.get(axes[i], 1)) for each, axes in rows))
            for i in range(len(rows[0][1]))
        ]

    def fits(self, name: str, placements: Placements) -> bool:
        """Whether the devices that split each axis divide its parts."""
        own = self.parts(name)
        counts = [
            math.prod(n for n, e in zip(self.sizes, placements, strict=True) if e == axis) for axis in range(len(own))
        ]
        return max(placements) < len(own) and not any(p % n for p, n in zip(own, counts, strict=True))

    def _moved(self, name: str, source: Placements, target: Placements, gradient: bool = False) -> int | None:
        """Nanoseconds from placements of a tensor to others; None if there is no way."""
        size = 0 if gradient and name in self.inert else self.bytes[name] * self.size
        new = {axis for axis, (one, other) in enumerate(zip(source, target, strict=True)) if other == PART != one}
        if any(source[axis] != WHOLE for axis in new):
            return None
        # parts of a sum that one device has all of cost nothing beyond the whole
        return self.cheapest(name, source, size).get(tuple(WHOLE if k in new else e for k, e in enumerate(target)))

    def _cheapest(self, name: str, source: Placements, size: int) -> dict[Placements, int]:
        """Least nanoseconds to all placements: a collective changes what one axis splits, innermost ones first."""
        lengths, done, queue = self.parts(name), dict[Placements, int](), [(0, source)]
        while queue:
            spent, at = heapq.heappop(queue)
            if at in done:
                continue
            done[at] = spent
            for axis, before in enumerate(at):
                for after in (WHOLE, *range(len(lengths))):
                    to = (*at[:axis], after, *at[axis + 1 :])
                    hidden = {e for e in at[axis + 1 :] if e >= 0}
                    if after == before or before in hidden or after in hidden or to in done or not self.fits(name, to):
                        continue
                    others = math.prod(
                        n for k, (n, e) in enumerate(zip(self.sizes, at, strict=True)) if e >= 0 and k != axis
                    )
                    heapq.heappush(queue, (spent + self.collective(axis, before, after, -(-size // others)), to))
        return done

    def collective(self, axis: int, before: int, after: int, size: int) -> int:
        """Nanoseconds of one along an axis."""
        if before == WHOLE or not size:
            return 0
        if before == PART or after == WHOLE:
            return self.ring(axis, size, 2 if (before, after) == (PART, WHOLE) else 1)
        n = self.sizes[axis]
        return (n - 1) * self.to_next(axis, self.at_card[axis] * -(-size // n**2))

    def ring(self, axis: int, size: int, halves: int) -> int:
        """Nanoseconds of a ring along an axis."""
        own = Ring(self.sizes[axis], self.rings[axis], halves)
        return own.moves(size) + own.latency if size else 0

    def loops_of(self, strategies: Document, name: str) -> tuple[str, ...]:
        """The loops that split an operator along each axis."""
        return tuple(strategies["operators"][name]["loops"])

    def gathers(self, strategies: Document, name: str) -> tuple[bool, ...]:
        """Whether each axis gathers weights that lack its loop."""
        return tuple(strategies["operators"][name]["gathers"])

    def divided(self, weight: Document, loops: Sequence[str]) -> int:
        """Into how many parts a weight is split that are not gathered."""
        return math.prod(n for n, loop in zip(self.sizes, loops, strict=True) if loop and loop in weight["loops"])

    @staticmethod
    def gathered(weight: Document, loops: Sequence[str], gathers: Sequence[bool]) -> set[int]:
        """The axes along which a weight is gathered."""
        return {k for k, loop in enumerate(loops) if gathers[k] and loop not in weight["loops"]}

    def methods(self, strategies: Document, operator: Document) -> dict[int, str]:
        """How attention gets keys along each axis that splits its tokens."""
        own = strategies["operators"][operator["name"]]
        axes = [k for k, loop in enumerate(own["loops"]) if loop == TOKEN] if operator.get("attention") else []
        return {k: (own.get("methods") or {k: ""})[k] or "keys" for k in axes}

    def needs(self, strategies: Document, operator: Document, source: str) -> Placements:
        """The placements in which an operator needs a tensor: rows of masks whole where tokens become heads."""
        found = list(self.laid(operator["reads"][source], self.loops_of(strategies, operator["name"])))
        for axis, method in self.methods(strategies, operator).items():
            if method == "heads" and source in self.inert:
                found[axis] = WHOLE
        return tuple(found)

    def copy(self, strategies: Document, source: str, reader: str) -> Placements | None:
        """The copy of a tensor that an operator reads."""
        own = strategies.get("copies", {}).get(source)
        return tuple(own["placements"]) if own and reader in own["readers"] else None

    def repeats(self, operator: Document) -> bool:
        """Whether an operator moves again in the backward what it reads."""
        return bool(operator.get("weights")) or (bool(operator.get("attention")) and operator["name"] not in self.inert)

    def for_weights(self, operator: Document, source: str) -> bool:
        """Whether what it moves again is for the weight gradient alone."""
        return bool(operator.get("weights")) and (operator.get("weight_gradient_flops", 0) > 0 or source in self.inert)

    def held(self, strategies: Document, name: str) -> Placements:
        """The placements in which a tensor is held."""
        if name in self.inputs or name not in self.split:
            return self.end(name)
        return tuple(strategies["operators"][name]["held"])

    def redistributed(self, name: str, strategies: Document) -> dict[str, int] | None:
        """Nanoseconds in which a tensor and its gradient get other placements, by when; None if there is no way."""
        loops = {each["name"]: self.loops_of(strategies, each["name"]) for each in self.operators}
        spent = {"forward": 0, "back": 0, "again": 0}
        for when, source, target, gradient in self.changes(name, strategies, loops):
            found = self.moved(name, source, target, gradient)
            if found is None:
                return None
            spent[when] += found
        return spent

    def changes(
        self, name: str, strategies: Document, loops: dict[str, tuple[str, ...]]
    ) -> Iterator[tuple[str, Placements, Placements, bool]]:
        """All redistributions of a tensor: when, from, to, and whether it is the gradient."""
        readers, maker, held = self.readers[name], self.makers.get(name), self.held(strategies, name)
        if not readers and name in self.inputs and name not in self.returned:
            return
        wanted = self.laid(maker["makes"], loops[name]) if maker else held
        goal = held if name in self.returned or (maker and not readers) else wanted
        if self._is_summed(name):
            goal = tuple(strategies["sums"].get(name, goal))
        yield from [("back", held, goal, True)] * outputs(self.entry).count(name)
        if maker:
            yield "forward", self.laid(maker["makes"], loops[name], True), held, False
        yield "back", goal, wanted, True
        if copy := strategies.get("copies", {}).get(name):
            placements = tuple(copy["placements"])
            yield "forward", held, placements, False
            if not copy["kept"] and any(self.repeats(each) for each in readers if each["name"] in copy["readers"]):
                early = any(self.repeats(each) and not self.for_weights(each, name) for each in readers)
                when = "back" if early else "again"
                yield when, held, placements, False
        for each in readers:
            at, need = self.copy(strategies, name, each["name"]) or held, self.needs(strategies, each, name)
            yield "forward", at, need, False
            yield "back", self.laid(each["reads"][name], loops[each["name"]], True), goal, True
            if self.repeats(each):
                yield "again" if self.for_weights(each, name) else "back", at, need, False

    def to_next(self, axis: int, size: int) -> int:
        link = self.rings[axis]
        if not size:
            return 0
        if link.bandwidth is not None and link.efficiency != 1:
            link = Link(max(round(link.bandwidth * Fraction(str(link.efficiency))), 1), link.latency)
        return link.latency + occupancy(link, size)

    def _parts(self, placements: Sequence[int]) -> int:
        """Into how many parts placements split a tensor."""
        return math.prod(n for n, entry in zip(self.sizes, placements, strict=True) if entry >= 0)

    def _is_summed(self, name: str) -> bool:
        """Whether a gradient comes from several sides: operators that read the tensor, and from behind the layer."""
        return bool(self.readers[name]) and len(self.readers[name]) + (name in self.returned) > 1
