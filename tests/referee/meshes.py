"""Teams as meshes: what a device has of layers under given words."""

import heapq
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from itertools import combinations, permutations, product

from .costs import in_proportion, layer_costs
from .documents import Document, Link
from .members import PART, PASSES, TOKEN, WHOLE, Member, inputs, outputs, stream, token_axis, waits
from .rings import Ring, occupancy, slowest
from .teams import Teams

Layout = tuple[int, ...]
COUNTS = (1, 4, 16, 64)
"""Numbers of micro-batches for which the fastest words are searched, if a step has so many."""
Figures = tuple[int, int, int]
"""Nanoseconds of a forward and a backward, of what is once per step, and of the forward alone."""
Steps = tuple[int, int]
"""A number of micro-batches, and of forwards of each: a backward may have another one in it."""
FEW = 3000
"""Choices of a layer up to which all are tried."""
SAMPLE = "sample"
NAMED = {"2d": ("wo",), "2.5d": ("rwo",), "3d": ("wio", "wi", "io")}
"""What products of matrices are split by along each axis, by name: rows, with weights that are gathered or not (w, r),
outputs and inputs."""
SWAPPED = str.maketrans("io", "oi")


def rings_of(sizes: Sequence[int], within: int) -> list[tuple[int, int]] | None:
    """For each axis how many rings pass a node's card at once, and members of one in a node; None if they are uneven.

    No ring passes a card if all of its members are in one node. Device by device, the last axis fastest.
    """
    found = []
    for axis in range(len(sizes)):
        rows: dict[tuple[int, ...], list[int]] = {}
        for device, place in enumerate(product(*map(range, sizes))):
            rows.setdefault((*place[:axis], *place[axis + 1 :]), []).append(device // within)
        counts = {row.count(node) for row in rows.values() for node in row}
        if len(counts) > 1:
            return None
        passing = sum(0 in row for row in rows.values() if len(set(row)) > 1)
        found.append((passing, counts.pop()))
    return found


def shapes_of(team: int, axes: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a product of at most so many factors above 1, in order."""
    if team > 1 and axes:
        yield (team,)
        for first in range(2, team):
            if team % first == 0:
                yield from ((first, *rest) for rest in shapes_of(team // first, axes - 1))


def shared(link: Link, rings: int) -> Link:
    """The share of a link that each of several rings has."""
    if link.bandwidth is None:
        return link
    return Link(max(link.bandwidth // rings, 1), link.latency, link.efficiency)


def in_samples(entry: Document, size: int, plain: bool) -> Document:
    """Operators of a micro-batch, which may be split along samples where each of them is computed by itself.

    ``plain``: no tensor has samples as an axis, so that all that depend on an input get one.
    """
    depend = set(inputs(entry))
    operators = []
    for each in entry["operators"]:
        own = dict(each)
        if depend & set(each["reads"]):
            depend.add(each["name"])
            if plain:
                own["reads"] = {name: [SAMPLE] * (name in depend) + [*row] for name, row in each["reads"].items()}
                own["makes"] = [SAMPLE, *each["makes"]] if each["makes"] else []
        along = SAMPLE in own["makes"] and any(SAMPLE in row for row in own["reads"].values())
        if along and each["name"] not in (entry.get("loss") or {"operators": ()})["operators"]:
            own["loops"] = each.get("loops", {}) | {SAMPLE: size}
        operators.append(own)
    return entry | {"operators": operators}


class OnMesh(Member):
    """A layer on a mesh."""

    def __init__(
        self, teams: Teams, sizes: tuple[int, ...], layer: int, kind: str, size: int, ends: tuple[Layout, Layout]
    ) -> None:
        cost, parameters = layer_costs(teams.question, kind, size)[layer], teams.question.parameters[layer]
        entry = in_samples(teams.graphs[teams.graph(layer)], size, not any(map(_has_samples, teams.graphs.values())))
        rest = {"team": 1, "size": size, "link": Link(None, 0), "sharing": 1, "ends": (False, False)}
        rest["loss"] = teams.question.job["vocabulary_parallel"]
        super().__init__(
            entry,
            teams.question,
            kind,
            cost,
            parameters,
            **rest,
            context=teams.question.job["context_parallel"],
        )
        rows = teams.homes[kind]
        nodes = teams.having(kind) if len(rows[0]) > 1 else {node for row in rows for node in row}
        inside = slowest([teams.question.links[node] for node in sorted(nodes)])
        network = teams.question.network or inside
        self.sizes, self.whole, self.ends = sizes, (WHOLE,) * len(sizes), ends
        passing = rings_of(sizes, teams.team // len(rows[0]))
        assert passing is not None, f"a mesh of {sizes} is uneven"
        self.rings = [
            slowest([*[inside] * (members > 1), shared(network, count)]) if count else inside
            for count, members in passing
        ]
        self.at_card = [members if count else 1 for count, members in passing]
        self.readers = {name: [each for each in self.operators if name in each["reads"]] for name in self.bytes}
        self.makers = {each["name"]: each for each in self.operators}
        self.cheapest = cache(self._cheapest)
        self.plain = False

    # layouts

    def end(self, name: str) -> Layout:
        """The layout of an input or output."""
        is_input = name in self.inputs
        names = inputs(self.entry) if is_input else outputs(self.entry)
        return self.ends[not is_input] if stream(self.entry, names) == name else self.whole

    def laid(self, axes: Sequence[str], loops: Sequence[str], parts: bool = False) -> Layout:
        """The layout of a tensor with these axes under the loops of an operator; ``parts``: of what it sums."""
        found = []
        for loop in loops:
            axis = list(axes).index(loop) if loop and loop in axes else WHOLE
            found.append(PART if parts and loop and axis == WHOLE else axis)
        return tuple(found)

    def parts(self, name: str) -> list[int]:
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

    def fits(self, name: str, layout: Layout) -> bool:
        """Whether the devices that split each axis divide its parts."""
        own = self.parts(name)
        counts = [
            math.prod(n for n, e in zip(self.sizes, layout, strict=True) if e == axis) for axis in range(len(own))
        ]
        return max(layout) < len(own) and not any(p % n for p, n in zip(own, counts, strict=True))

    def moved(self, name: str, source: Layout, target: Layout, gradient: bool = False) -> int | None:
        """Nanoseconds from one layout of a tensor to another; None if there is no way."""
        size = 0 if gradient and name in self.inert else self.bytes[name] * self.size
        new = {axis for axis, (one, other) in enumerate(zip(source, target, strict=True)) if other == PART != one}
        if any(source[axis] != WHOLE for axis in new):
            return None
        # parts of a sum that one device has all of cost nothing beyond the whole
        return self.cheapest(name, source, size).get(tuple(WHOLE if k in new else e for k, e in enumerate(target)))

    def _cheapest(self, name: str, source: Layout, size: int) -> dict[Layout, int]:
        """Least nanoseconds to every layout: a collective changes what one axis splits, innermost ones first."""
        lengths, done, queue = self.parts(name), dict[Layout, int](), [(0, source)]
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
        n, link = self.sizes[axis], self.rings[axis]
        if link.bandwidth is not None and link.efficiency != 1:
            link = Link(max(round(link.bandwidth * Fraction(str(link.efficiency))), 1), link.latency)
        return (n - 1) * (link.latency + occupancy(link, self.at_card[axis] * -(-size // n**2)))

    def ring(self, axis: int, size: int, halves: int) -> int:
        """Nanoseconds of a ring along an axis."""
        own = Ring(self.sizes[axis], self.rings[axis], halves)
        return own.moves(size) + own.latency if size else 0

    # costs of given words

    def coordinates(self, words: Document) -> dict[str, int] | None:
        """What a device has under these words; None if a tensor cannot be moved, or the loss is split in two ways."""
        loops = {each["name"]: self.letters(words, each["name"]) for each in self.operators}
        classes = self.classes(words)
        if any(self._of_classes(loops[name]) != classes for name in self.loss):
            return None
        spent = {"forward": 0, "back": 0, "again": 0}
        for name in self.bytes:
            own = self.redistributed(name, words)
            if own is None:
                return None
            spent = {when: spent[when] + own[when] for when in spent}
        row = dict.fromkeys(("forward", "backward", *PASSES[1:], "update", "summed", "parameters"), 0)
        for each in self.operators:
            own = loops[each["name"]]
            there, here = self._keys(each, own, words)
            spent["forward"] += there
            spent["back"] += here
            gathers, mine = self.gathers(words, each["name"]), 0
            for weight in each.get("weights", ()):
                count = self.divided(weight, own) * math.prod(
                    self.sizes[k] for k in self.gathered(weight, own, gathers)
                )
                mine += weight["size"] // count if weight in self.counted else 0
            if each["name"] in self.loss[:1]:
                there = self.rows * self.size
                spent["forward"] += 2 * sum(self.ring(axis, there, 2) for axis in classes)
            moved = self._gathering(each, own, gathers)
            spent["forward"] += moved
            spent["back"] += moved
            spent["again"] += moved
            row["parameters"] += mine
            row["update"] += -(-self.cost.update * mine // self.parameters) if self.parameters else 0
            row["summed"] += self._sums(each, own, gathers)
            for name in ("forward", "backward", *PASSES[1:]):
                rest, total = self._rest(name), self.wholes[name]
                alone = -(-rest * self.share(each, own, name, self.ways(words, each)) // total) if total else 0
                row[name] += self._round(each, own, words, alone, name)
        row["forward"] += spent["forward"]
        row["backward"] += spent["back"] + spent["again"]
        row["input_gradient"] += spent["back"]
        row["weight_gradient"] += spent["again"]
        copies = [(name, own["layout"]) for name, own in words.get("copies", {}).items() if own["kept"]]
        beside = sum(self.bytes[name] * self.size // self._parts(layout) for name, layout in copies)
        return row | {"saved": self._kept(words) + beside}

    def letters(self, words: Document, name: str) -> tuple[str, ...]:
        """The loops that split an operator along each axis."""
        return tuple(words["operators"][name]["loops"])

    def classes(self, words: Document) -> list[int]:
        """The axes that split the classes of the loss."""
        return self._of_classes(self.letters(words, self.loss[0])) if self.loss else []

    @staticmethod
    def _of_classes(loops: Sequence[str]) -> list[int]:
        return [axis for axis, loop in enumerate(loops) if loop]

    def gathers(self, words: Document, name: str) -> tuple[bool, ...]:
        """Whether each axis gathers weights that lack its loop."""
        return tuple(words["operators"][name]["gathers"])

    def divided(self, weight: Document, loops: Sequence[str]) -> int:
        """Into how many parts a weight is split that are not gathered."""
        return math.prod(n for n, loop in zip(self.sizes, loops, strict=True) if loop and loop in weight["loops"])

    @staticmethod
    def gathered(weight: Document, loops: Sequence[str], gathers: Sequence[bool]) -> set[int]:
        """The axes along which a weight is gathered."""
        return {k for k, loop in enumerate(loops) if gathers[k] and loop not in weight["loops"]}

    def ways(self, words: Document, operator: Document) -> dict[int, str]:
        """How attention gets keys along each axis that splits its tokens."""
        own = words["operators"][operator["name"]]
        axes = [k for k, loop in enumerate(own["loops"]) if loop == TOKEN] if operator.get("attention") else []
        return {k: (own.get("ways") or {k: ""})[k] or "keys" for k in axes}

    def needs(self, words: Document, operator: Document, source: str) -> Layout:
        """The layout in which an operator needs a tensor: rows of masks whole where tokens become heads."""
        found = list(self.laid(operator["reads"][source], self.letters(words, operator["name"])))
        for axis, way in self.ways(words, operator).items():
            if way == "heads" and source in self.inert:
                found[axis] = WHOLE
        return tuple(found)

    def copy(self, words: Document, source: str, reader: str) -> Layout | None:
        """The copy of a tensor that an operator reads."""
        own = words.get("copies", {}).get(source)
        return tuple(own["layout"]) if own and reader in own["readers"] else None

    def repeats(self, operator: Document) -> bool:
        """Whether an operator moves again in the backward what it reads."""
        return bool(operator.get("weights")) or (bool(operator.get("attention")) and operator["name"] not in self.inert)

    def waits(self, operator: Document, source: str) -> bool:
        """Whether what it moves again is for the weight gradient alone."""
        return bool(operator.get("weights")) and (operator.get("weight_gradient_flops", 0) > 0 or source in self.inert)

    def held(self, words: Document, name: str) -> Layout:
        """The layout in which a tensor is held."""
        if name in self.inputs or name not in self.split:
            return self.end(name)
        return tuple(words["operators"][name]["held"])

    def redistributed(self, name: str, words: Document) -> dict[str, int] | None:
        """Nanoseconds in which a tensor and its gradient get other layouts, by when; None if there is no way."""
        loops = {each["name"]: self.letters(words, each["name"]) for each in self.operators}
        spent = {"forward": 0, "back": 0, "again": 0}
        for when, source, target, gradient in self.changes(name, words, loops):
            found = self.moved(name, source, target, gradient)
            if found is None:
                return None
            spent[when] += found
        return spent

    def changes(
        self, name: str, words: Document, loops: dict[str, tuple[str, ...]]
    ) -> Iterator[tuple[str, Layout, Layout, bool]]:
        """All changes of layout of a tensor: when, from, to, and whether it is the gradient."""
        readers, maker, held = self.readers[name], self.makers.get(name), self.held(words, name)
        if not readers and name in self.inputs and name not in self.returned:
            return
        wanted = self.laid(maker["makes"], loops[name]) if maker else held
        goal = held if name in self.returned or (maker and not readers) else wanted
        if self._is_summed(name):
            goal = tuple(words["sums"].get(name, goal))
        yield from [("back", held, goal, True)] * outputs(self.entry).count(name)
        if maker:
            yield "forward", self.laid(maker["makes"], loops[name], True), held, False
        yield "back", goal, wanted, True
        if copy := words.get("copies", {}).get(name):
            layout = tuple(copy["layout"])
            yield "forward", held, layout, False
            if not copy["kept"] and any(self.repeats(each) for each in readers if each["name"] in copy["readers"]):
                when = "again" if any(self.waits(each, name) for each in readers) else "back"
                yield when, held, layout, False
        for each in readers:
            at, need = self.copy(words, name, each["name"]) or held, self.needs(words, each, name)
            yield "forward", at, need, False
            yield "back", self.laid(each["reads"][name], loops[each["name"]], True), goal, True
            if self.repeats(each):
                yield "again" if self.waits(each, name) else "back", at, need, False

    def share(self, operator: Document, loops: Sequence[str], name: str, ways: dict[int, str]) -> int:
        """Picoseconds of a pass of an operator; without rates its operations."""
        if name == "backward":
            return sum(self.share(operator, loops, half, ways) for half in PASSES[1:])
        counts: dict[str, int] = {}
        for n, loop in zip(self.sizes, loops, strict=True):
            if loop:
                counts[loop] = counts.get(loop, 1) * n
        flops, devices = operator.get(f"{name}_flops", 0) * self.size, Fraction(math.prod(counts.values()))
        own, moved, tokens = operator.get("attention") or {}, 0, self.along(ways, "ring", "keys")
        if own and tokens > 1:
            others = math.prod(counts.values()) // tokens
            moved = own["keys"] * self.size // others - own["keys"] * self.size // (others * tokens)
            if own.get("causal"):
                devices = devices * tokens / (2 * tokens - 1)
        if self.rates is None:
            return int(flops * 1000 // devices)
        weights = operator.get("weights", ())
        if name == "weight_gradient" and not weights:
            return 0
        for axes, size in (
            *((weight["loops"], weight["size"]) for weight in weights),
            *((axes, self.size * self.bytes[tensor]) for tensor, axes in operator["reads"].items()),
            (operator["makes"], self.size * self.bytes[operator["name"]]),
        ):
            moved += size // math.prod(counts[loop] for loop in {*axes} & {*counts})
        peak, bandwidth = self.rates
        return round(10**12 * max(flops / (devices * peak), moved / bandwidth))

    def along(self, ways: dict[int, str], *which: str) -> int:
        """Devices along the axes whose attention gets keys in one of these ways."""
        return math.prod(self.sizes[axis] for axis, way in ways.items() if way in which)

    def apart(self, loops: Sequence[str]) -> int:
        """Devices along the axes that split other loops than tokens."""
        return math.prod(n for n, loop in zip(self.sizes, loops, strict=True) if loop not in ("", TOKEN))

    def _keys(self, operator: Document, loops: Sequence[str], words: Document) -> tuple[int, int]:
        """Nanoseconds in which attention on parts of the tokens exchanges heads and gathers keys, forward and back."""
        own, ways = operator.get("attention"), self.ways(words, operator)
        if not own or not ways:
            return 0, 0
        there = back = 0
        every, others = math.prod(self.sizes[axis] for axis in ways), self.apart(loops)
        both, made = self.size * (own["queries"] + own["keys"]), self.size * operator["output"]
        for axis, way in ways.items():
            if way == "heads":
                beside = others * every // self.sizes[axis]
                turns = [self.collective(axis, 0, 1, -(-size // beside)) for size in (both, made, 2 * made)]
                there += turns[0] + turns[1]
                back += 2 * turns[0] + turns[2]
            if way == "keys":
                before = math.prod(self.sizes[other] for other in ways if other < axis)
                beside = others * self.along(ways, "heads") * before
                once = self.ring(axis, -(-own["keys"] * self.size // beside), 1)
                there, back = there + once, back + 2 * once
        return there, 0 if operator["name"] in self.inert else back

    def _block(self, operator: Document, loops: Sequence[str], ways: dict[int, str]) -> int:
        """Bytes of keys and values that go round at a time."""
        parts = self.apart(loops) * self.along(ways, "ring", "heads")
        return -(-operator["attention"]["keys"] * self.size // parts)

    def _round(self, operator: Document, loops: Sequence[str], words: Document, alone: int, name: str) -> int:
        """Nanoseconds of a pass that takes so long alone, where blocks of keys go round meanwhile."""
        ways = self.ways(words, operator)
        axis = next((axis for axis, way in ways.items() if way == "ring"), None)
        if axis is None or name == "weight_gradient":
            return alone
        n, inner, size = self.sizes[axis], self.along(ways, "keys"), self._block(operator, loops, ways)
        parts = [2 * inner] * n if operator["attention"].get("causal") else [1] * n
        parts[0] -= operator["attention"].get("causal") or 0
        work, time = [-(-alone * each // sum(parts)) for each in parts] + [0], 0
        back, still = name != "forward", name != "forward" and operator["name"] in self.inert
        for step, busy in enumerate(work):  # blocks go on before the last step, gradients one step behind them
            moving = 0 if still else int(step < n - 1) + int(back and step > 0)
            time += max(busy, self._to_next(axis, moving * size) if moving else 0)
        return time + (self.longer * (n - 1) if getattr(self.cost, name) > 0 else 0)

    def _to_next(self, axis: int, size: int) -> int:
        link = self.rings[axis]
        if not size:
            return 0
        if link.bandwidth is not None and link.efficiency != 1:
            link = Link(max(round(link.bandwidth * Fraction(str(link.efficiency))), 1), link.latency)
        return link.latency + occupancy(link, size)

    def _sums(self, operator: Document, loops: Sequence[str], gathers: Sequence[bool]) -> int:
        """Nanoseconds in which gradients of an operator's weights are summed once per step, in the best order."""
        rows = []
        for weight in operator.get("weights", ()):
            own = {a for a, loop in enumerate(loops) if loop and not gathers[a] and loop in operator["makes"]}
            axes = {a for a in own if loops[a] not in weight["loops"]}
            kept = self.divided(weight, loops) * math.prod(self.sizes[a] for a in self.gathered(weight, loops, gathers))
            rows.append((weight["size"] // kept, axes))
        return min(
            sum(
                self.ring(axis, size, 2) if last else 2 * self.ring(axis, size, 1)
                for axis, size, last in self._in_turn(order, rows)
            )
            for order in permutations(sorted(set[int]().union(*(axes for _, axes in rows))))
        )

    def _gathering(self, operator: Document, loops: Sequence[str], gathers: Sequence[bool]) -> int:
        """Nanoseconds in which an operator's weights are gathered, in the best order."""
        rows = [
            (weight["size"] // self.divided(weight, loops), self.gathered(weight, loops, gathers))
            for weight in operator.get("weights", ())
        ]
        return min(
            sum(self.ring(axis, size, 1) for axis, size, _ in self._in_turn(order, rows))
            for order in permutations(sorted(set[int]().union(*(axes for _, axes in rows))))
        )

    def _in_turn(self, order: Sequence[int], rows: Sequence[tuple[int, set[int]]]) -> Iterator[tuple[int, int, bool]]:
        """Each axis in an order, the bytes that are moved along it, and whether it is the last."""
        for k, axis in enumerate(order):
            before = set(order[:k])
            size = sum(own // math.prod(self.sizes[a] for a in before & axes) for own, axes in rows if axis in axes)
            yield axis, size, k == len(order) - 1

    def _kept(self, words: Document) -> int:
        kept = [each for each in self.operators if each.get("kept")]
        total = sum(each["output"] for each in kept)
        if not total:
            return self.cost.saved
        found = 0
        for each in kept:
            count = math.prod(n for n, e in zip(self.sizes, self.held(words, each["name"]), strict=True) if e >= 0)
            found += -(-self.cost.saved * (each["output"] // count) // total)
        return found

    def device(self, words: Document) -> Document:
        """The costs of the layer on each device, and bytes of its parameters."""
        own = self.coordinates(words)
        assert own is not None
        for name in ("forward", "backward", *PASSES[1:]):
            own[name] += getattr(self.cost, name) - self._rest(name)
        split = any(any(self.letters(words, each["name"])) for each in self.operators)
        if split and self.longer:
            later = dict.fromkeys(PASSES, 0)
            for each in self.operators:
                for name in PASSES[: 3 if each.get("weights") else 2]:
                    later[name] += self.longer if getattr(self.cost, name) > 0 else 0
            own = {name: value + later.get(name, 0) for name, value in own.items()}
            own["backward"] += later["input_gradient"] + later["weight_gradient"]
        own["update"] += own["summed"]
        space = in_proportion(self.cost, own["saved"]) + self._at_once(words)
        output = -(-self._output() // math.prod(self.sizes[axis] for axis in self.classes(words)))
        return own | {"output": output, "workspace": space}

    def _at_once(self, words: Document) -> int:
        """Most bytes for one operator: weights and keys, with gradients, copies, and what it reads of others."""
        found, order = [0], [each["name"] for each in self.operators]
        for number, each in enumerate(self.operators):
            loops, gathers = self.letters(words, each["name"]), self.gathers(words, each["name"])
            rows = [weight for weight in each.get("weights", ()) if self.gathered(weight, loops, gathers)]
            own = 2 * sum(weight["size"] // self.divided(weight, loops) for weight in rows)
            own += self._beside(each, loops, self.ways(words, each))
            for source, copy in words.get("copies", {}).items():
                readers = [order.index(name) for name in copy["readers"]]
                if min(readers) <= number <= max(readers) and not copy["kept"]:
                    own += self.bytes[source] * self.size // self._parts(copy["layout"])
            for source in each["reads"]:
                need = self.needs(words, each, source)
                if self._parts(need) < self._parts(self.held(words, source)):
                    is_copy = self.copy(words, source, each["name"]) == need
                    own += 0 if is_copy else self.bytes[source] * self.size // self._parts(need)
            found.append(own)
        return max(found)

    def _parts(self, layout: Sequence[int]) -> int:
        """Into how many parts a layout splits a tensor."""
        return math.prod(n for n, entry in zip(self.sizes, layout, strict=True) if entry >= 0)

    def _beside(self, operator: Document, loops: Sequence[str], ways: dict[int, str]) -> int:
        """Bytes that attention on parts of the tokens needs beside these."""
        own, found = operator.get("attention"), 0
        if not own or not ways:
            return 0
        if "ring" in ways.values():
            found += 5 * self._block(operator, loops, ways)
        elif "keys" in ways.values():
            found += 2 * -(-own["keys"] * self.size // (self.apart(loops) * self.along(ways, "heads")))
        if "heads" in ways.values():
            every = 2 * self.size * (own["queries"] + own["keys"] + operator["output"])
            found += -(-every // (self.apart(loops) * self.along(ways, "ring", "keys", "heads")))
        return found

    def _output(self) -> int:
        count = math.prod(n for n, entry in zip(self.sizes, self.ends[1], strict=True) if entry >= 0)
        if count == 1:
            return self.cost.output
        made = outputs(self.entry)
        beside = sum(self.bytes[name] for name in made if name != stream(self.entry, made)) * self.size
        beside = min(beside, self.cost.output)
        return beside + -(-(self.cost.output - beside) // count)

    # all words

    def choices(self) -> Iterator[Document]:  # type: ignore[override]
        """All words, with all layouts of sums, without copies."""
        rows = [list(self._signatures(each)) for each in self.operators]
        sums = [name for name in self.bytes if self._is_summed(name)]
        layouts = [list(self._sum_layouts(name)) for name in sums]
        if math.prod(map(len, (*rows, *layouts))) > FEW:
            return
        for row in product(*rows):
            operators = {each["name"]: own for each, own in zip(self.operators, row, strict=True)}
            for chosen in product(*layouts):
                yield {"operators": operators, "sums": dict(zip(sums, chosen, strict=True))}

    def savings(self, words: Document) -> list[list[Figures]]:
        """For each tensor what its copies spare: of a forward and a backward, once, and of the forward."""
        found = []
        for name in (name for name in self.bytes if self.readers[name]):
            alone = self.redistributed(name, words)
            own = [self.redistributed(name, words | {"copies": {name: copy}}) for copy in self._copies(name, words)]
            rows = [{when: alone[when] - each[when] for when in each} for each in own if each is not None and alone]
            found.append([(0, 0, 0), *((sum(row.values()), 0, row["forward"]) for row in rows)])
        return found

    def _copies(self, name: str, words: Document) -> Iterator[Document]:
        """Each copy of a tensor that is gathered along some axes that split it, for two or more of its readers.

        One that is kept may be for a single reader.
        """
        names, held = [each["name"] for each in self.readers[name]], self.held(words, name)
        for layout in product(*({entry, WHOLE} for entry in held)):
            for count in range(1, len(names) + 1) if layout != held else ():
                for readers, kept in product(combinations(names, count), (False, True) if count > 1 else (True,)):
                    yield {"layout": layout, "readers": readers, "kept": kept}

    def _is_summed(self, name: str) -> bool:
        """Whether a gradient comes from several sides: operators that read the tensor, and from behind the layer."""
        return bool(self.readers[name]) and len(self.readers[name]) + (name in self.returned) > 1

    def _ways(self, operator: Document, row: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Ways in which attention may get keys along each axis; empty along those that do not split its tokens."""
        own, tokens = operator.get("attention"), [k for k, loop in enumerate(row) if loop == TOKEN]
        for chosen in product(("ring", "keys", "heads"), repeat=len(tokens)) if own else ((),):
            ways = dict(zip(tokens, chosen, strict=False))
            rest = list(chosen[1:] if chosen[:1] == ("ring",) else chosen)
            late = rest.index("heads") if "heads" in rest else len(rest)
            heads = self.along(ways, "heads") * math.prod(
                n for n, loop in zip(self.sizes, row, strict=True) if loop not in ("", TOKEN, SAMPLE)
            )
            divided = "heads" not in chosen or not own or own.get("heads", 1) % heads == 0
            if "ring" not in rest and "keys" not in rest[late:] and divided:
                yield tuple({"keys": ""}.get(ways.get(k, ""), ways.get(k, "")) for k in range(len(row)))

    def _loops(self, operator: Document) -> Iterator[tuple[tuple[str, ...], tuple[bool, ...]]]:
        """The loops along each axis, and whether weights without them are gathered."""
        loops = {loop: n for loop, n in operator.get("loops", {}).items() if self._may(operator, loop)}
        weights = operator.get("weights", ())
        letters = [("", False), *((loop, False) for loop in loops)]
        shares = any(weight.get("shared") for each in self.operators for weight in each.get("weights", ()))
        if not shares and not self.plain:
            lacked = [loop for loop in loops if any(loop not in weight["loops"] for weight in weights)]
            letters += [(loop, True) for loop in lacked if loop in operator["makes"]]
        for word in product(letters, repeat=len(self.sizes)):
            row, gathers = tuple(loop for loop, _ in word), tuple(gather for _, gather in word)
            if operator["name"] in self.loss and any(row) and not self.split_loss:
                continue
            counts = {
                loop: math.prod(n for n, own in zip(self.sizes, row, strict=True) if own == loop) for loop in loops
            }
            if any(parts % counts[loop] for loop, parts in loops.items()):
                continue
            left = {loop: parts // counts[loop] for loop, parts in loops.items()}
            if all(self._keeps(operator, weight, left, row, gathers) for weight in weights):
                yield row, gathers

    def follows(self, words: Document, names: set[str]) -> bool:
        """Whether all products of matrices are split in one of these ways, of those that can be without tokens."""
        for each in self.operators:
            able = any(
                TOKEN not in row and self._name(each, row, gathers) in names for row, gathers in self._loops(each)
            )
            own = self._name(each, self.letters(words, each["name"]), self.gathers(words, each["name"]))
            if able and own not in names:
                return False
        return True

    @staticmethod
    def _name(operator: Document, loops: Sequence[str], gathers: Sequence[bool]) -> str:
        """What each axis splits of a product of matrices; empty if it is none."""
        sides = [(w["loops"], {loop in operator["makes"] for loop in w["loops"]}) for w in operator.get("weights", ())]
        matrix, found = next((own for own, both in sides if len(both) == 2), None), ""
        for loop, gathered in zip(loops, gathers, strict=True) if matrix is not None else ():
            if loop in matrix:
                found += "o" if loop in operator["makes"] else "i"
            elif loop in operator["makes"]:
                found += "w" if gathered else "r"
        return found

    def _may(self, operator: Document, loop: str) -> bool:
        """Whether an axis may split an operator along a loop."""
        if not self.plain:
            return self.context or loop != TOKEN
        if loop == TOKEN:
            return {*self.ends[0], *self.ends[1]} != {WHOLE} and (self.context or not waits(operator))
        return loop != SAMPLE

    def _keeps(
        self,
        operator: Document,
        weight: Document,
        left: dict[str, int],
        row: Sequence[str],
        gathers: Sequence[bool],
    ) -> bool:
        """Whether what is gathered can be kept in equal parts, for each axis along the first dimension that can be."""
        free = [1 if loop in operator.get("groups", {}) else left.get(loop, 1) for loop in weight["loops"]]
        for axis in sorted(self.gathered(weight, row, gathers)):
            place = next((k for k, parts in enumerate(free) if parts % self.sizes[axis] == 0), None)
            if place is None:
                return False
            free[place] //= self.sizes[axis]
        return True

    def _signatures(self, operator: Document) -> Iterator[Document]:
        name = operator["name"]
        for loops, gathers in self._loops(operator):
            made = self.laid(operator["makes"], loops, True)
            targets = [(WHOLE, *range(len(operator["makes"]))) if entry == PART else (entry,) for entry in made]
            for held in product(*targets) if name in self.split else [self.end(name)]:
                if name not in self.split or PART not in made or self.fits(name, held):
                    for ways in self._ways(operator, loops):
                        yield {"loops": loops, "gathers": gathers, "ways": ways, "held": held}

    def _sum_layouts(self, name: str) -> set[Layout]:
        found = {self.whole} | ({self.end(name)} if name in self.inputs or name in self.returned else set())
        for each in self.readers[name]:
            found |= {self.laid(each["reads"][name], loops, True) for loops, _ in self._loops(each)}
        if name in self.makers:
            found |= {self.laid(self.makers[name]["makes"], loops) for loops, _ in self._loops(self.makers[name])}
        return found


class Meshes:
    """Teams of one size on meshes, for a question."""

    def __init__(self, teams: Teams) -> None:
        self.teams, self.name = teams, str(teams.question.job["strategy"])
        nodes = {len(row) for rows in teams.homes.values() for row in rows}
        axes = teams.question.job["mesh_axes"]
        if self.name and len(nodes) == 1:
            every = [own for own in shapes_of(teams.team, 3) if len(own) in {len(row) for row in NAMED[self.name]}]
            fit = {own for own in every if rings_of(own, teams.team // min(nodes)) is not None}
            self.shapes = {own for own in fit if len(own) == max(map(len, fit))}
        elif nodes == {1}:  # inside a node
            axes = 0 if any(TOKEN in each["makes"] for g in teams.graphs.values() for each in g["operators"]) else axes
            self.shapes = {(teams.team,)} if axes else set[tuple[int, ...]]()
        else:
            every = shapes_of(teams.team, axes) if len(nodes) == 1 else ()
            count = nodes.pop() if nodes else 1
            self.shapes = {own for own in every if rings_of(own, teams.team // count) is not None}

    def layer(self, i: int, kind: str, size: int, split: Document) -> tuple[OnMesh, Document]:
        """A layer, and its words in a way, at a size at which it is not possible those of another one."""
        sizes = tuple(split["sizes"])
        whole = (WHOLE,) * len(sizes)
        before = split["layout"] if i and split["passes"][i - 1] else whole
        ends = tuple(before), tuple(split["layout"] if split["passes"][i] else whole)
        words = split["words"].get((kind, size)) or next(iter(split["words"].values()))
        return OnMesh(self.teams, sizes, i, kind, size, ends), words[i]

    def possible(self, split: Document) -> list[int]:
        """The micro-batch sizes whose samples the axes divide that split them."""
        return [size for size in self.teams.sizes if self._runs(split, size)]

    def _runs(self, split: Document, size: int) -> bool:
        kind = next(iter(self.teams.homes))
        for i in filter(self.teams.graph, range(self.teams.question.n)):
            member, words = self.layer(i, kind, size, split)
            for each in member.operators:
                axes = [
                    n for n, own in zip(member.sizes, member.letters(words, each["name"]), strict=True) if own == SAMPLE
                ]
                if size % math.prod(axes):
                    return False
            if member.coordinates(words) is None:
                return False
        return True

    def document(self, split: Document) -> Document:
        """The question in which meshes are devices."""
        teams, question, possible = self.teams, self.teams.question, self.possible(split)
        own, model = teams.document(), question.document["model"]
        layers = [
            {name: layer[name] for name in ("name", "inputs", "frozen") if name in layer} | {"parameters": parameters}
            for layer, parameters in zip(teams.layers, self.parameters(split), strict=True)
        ]
        ties = [tie | {"parameters": self.shared(tie, split)} for tie in model.get("ties", ())]
        profiles = [
            {"device": kind, "micro_batch": size, "costs": self.costs(kind, size, split)}
            for kind in teams.links
            for size in possible
        ]
        job = own["job"] | {"micro_batches": [question.batch // size for size in possible]}
        ties = [tie for tie in ties if tie["parameters"] or tie.get("frozen")]
        return own | {"job": job, "model": model | {"layers": layers, "profiles": profiles, "ties": ties}}

    def parameters(self, split: Document) -> list[int]:
        """Bytes of each layer's parameters on a device."""
        kind, size, found = next(iter(self.teams.homes)), self.possible(split)[0], list(self.teams.question.parameters)
        for i in filter(self.teams.graph, range(self.teams.question.n)):
            member, words = self.layer(i, kind, size, split)
            found[i] = member.device(words)["parameters"]
        return found

    def costs(self, kind: str, size: int, split: Document) -> Document:
        """Costs of a device's layers, by their names."""
        rows = {}
        for i, cost in enumerate(layer_costs(self.teams.question, kind, size)):
            row = dict(vars(cost))
            if self.teams.graph(i):
                member, words = self.layer(i, kind, size, split)
                own = member.device(words)
                row |= {key: own[key] for key in row}
            rows[self.teams.question.names[i]] = row
        return rows

    def shared(self, tie: Document, split: Document | None) -> int:
        """Bytes of shared weights on a device, or on one by itself."""
        first = self.teams.question.place[tie["layers"][0]]
        whole = int(tie.get("parameters", 0))
        if split is None or not self.teams.graph(first):
            return whole
        member, words = self.layer(first, next(iter(self.teams.homes)), self.possible(split)[0], split)
        every = own = 0
        for each in member.operators:
            loops = member.letters(words, each["name"])
            for weight in each.get("weights", ()):
                if weight.get("shared"):
                    every, own = every + weight["size"], own + weight["size"] // member.divided(weight, loops)
        return whole * own // every if every else whole

    def faults(self, split: Document) -> Iterator[str]:
        """What is wrong with a way: sizes, the layers that hand on parts, nothing split, or shared weights apart."""
        teams, sizes = self.teams, tuple(split["sizes"])
        if sizes not in self.shapes | ({(teams.team,)} if not self.name else set()):
            yield f"a mesh of {sizes} is searched, not of {self.shapes}"
            return
        if {size for _, size in split["words"]} != set(self.possible(split)):
            yield f"a way is searched at {sorted({size for _, size in split['words']})}, not at {self.possible(split)}"
            return
        for kind, size in split["words"]:
            rows = [self.layer(i, kind, size, split) if teams.graph(i) else None for i in range(teams.question.n)]
            known = [row for row in rows if row is not None]
            every = [member.letters(words, each["name"]) for member, words in known for each in member.operators]
            if not any(map(any, every)):
                yield "nothing is split"
            on_tokens = (
                TOKEN in member.letters(words, each["name"])
                for member, words in known
                for each in filter(waits, member.operators)
            )
            if not teams.question.job["context_parallel"] and any(on_tokens):
                yield "products run on parts of the tokens against a wish"
            for tied in teams.question.sharing:
                cuts = [self._shared_cuts(*row) for i in tied if (row := rows[i]) is not None]
                unknown = any(rows[i] is None for i in tied)
                if any(own != cuts[0] for own in cuts) or (unknown and any(any(cut) for own in cuts for cut in own)):
                    yield f"shared weights lie in unlike ways: {cuts}"

    def _by_name(self, splits: Sequence[Document]) -> Iterator[str]:
        """Wrong about ways of a named strategy: products that are not split by it, those of a cube by one of two."""
        rows = [row for row in NAMED[self.name] if len(row) in {len(own) for own in self.shapes}]
        named = [{row, row.translate(SWAPPED) if self.name == "3d" else row} for row in rows]
        for split in splits:
            kind, size = next(iter(self.teams.homes)), self.possible(split)[0]
            every = [self.layer(i, kind, size, split) for i in filter(self.teams.graph, range(self.teams.question.n))]
            if not any(all(member.follows(words, names) for member, words in every) for names in named):
                yield f"products are not split by {self.name}"

    @staticmethod
    def _shared_cuts(member: OnMesh, words: Document) -> list[tuple[object, ...]]:
        """Along each axis the dimension of each shared weight that is split, or whether gradients are parts."""
        found = []
        for each in member.operators:
            for weight in (weight for weight in each.get("weights", ()) if weight.get("shared")):
                row: list[object] = []
                for loop in member.letters(words, each["name"]):
                    groups = tuple(each.get("groups", {}).get(loop, ()))
                    ratio = tuple(own // math.gcd(*groups) for own in groups)
                    cut = (weight["loops"].index(loop), ratio) if loop and loop in weight["loops"] else ()
                    row.append(cut or ("parts" if loop and loop in each["makes"] else None))
                found.append(tuple(row))
        return found

    def unsearched(self, splits: Sequence[Document]) -> Iterator[str]:
        """Wrong about the ways that are searched: impossible ones, none at all, or none of the fastest."""
        teams, question = self.teams, self.teams.question
        cells = [(kind, size) for kind in teams.homes for size in teams.sizes]
        if any(fault for split in splits for fault in self.faults(split)):
            yield next(fault for split in splits for fault in self.faults(split))
            return
        if self.name:
            yield from self._by_name(splits)
        if question.sharing or self.name:
            return
        plain = (teams.team,)
        layouts = {(sizes, (WHOLE,) * len(sizes), False): [False] * question.n for sizes in self.shapes}
        layouts |= {
            (tuple(split["sizes"]), tuple(split["layout"]), False): split["passes"]
            for split in splits
            if tuple(split["sizes"]) in self.shapes
        }
        layouts[plain, (WHOLE,), True] = [False] * question.n
        if any(teams.sequence):
            entry = teams.graphs[teams.graph(teams.sequence.index(True))]
            axis = token_axis(entry["operators"], stream(entry, outputs(entry)))
            axis += not any(map(_has_samples, teams.graphs.values()))
            layouts[plain, (axis,), True] = teams.sequence
        for kind, size in cells:
            if size not in (min(teams.sizes), max(teams.sizes)):
                continue
            found = [self._figures(kind, size, split) for split in splits if size in self.possible(split)]
            every_step = list(product(COUNTS, (1, 2) if teams.again else (1,)))
            later = (
                3
                * question.kinds[kind].get("shard_overhead", 0)
                * sum(len(teams.graphs[teams.graph(i)]["operators"]) for i in range(question.n) if teams.graph(i))
            )  # a way may split fewer layers for it
            unsplit = {sizes: self._unsplit(kind, size, sizes) for sizes in self.shapes | {plain}}
            for (sizes, layout, is_plain), passes in layouts.items():
                least = self._least(kind, size, sizes, layout, passes, every_step, is_plain)
                for (count, times), best in least.items():
                    rounded = question.n * (count * (times + 2) + 2)  # the mean of layers, in each coordinate
                    if count * size > question.job["batch"] or best + rounded >= taken(unsplit[sizes], count, times):
                        continue
                    have = min((taken(each, count, times) for each in found), default=math.inf)
                    if have > best + best // 16 + 8 * question.n * (count + 1) + count * times * later:
                        what = f"fastest words of {sizes} for {count} micro-batches of {times} forwards on {kind}"
                        yield f"{what} take {best} in {layout}, not {have}"

    def _figures(self, kind: str, size: int, split: Document) -> Figures:
        time = once = again = 0
        for i in range(self.teams.question.n):
            if self.teams.graph(i):
                member, words = self.layer(i, kind, size, split)
                row = member.coordinates(words)
                assert row is not None
                time, once = time + row["forward"] + row["backward"], once + row["summed"] + row["update"]
                again += row["forward"]
        return time, once, again

    def _unsplit(self, kind: str, size: int, sizes: tuple[int, ...]) -> Figures:
        """The same if every device does everything."""
        whole = (WHOLE,) * len(sizes)
        time = once = again = 0
        for i in filter(self.teams.graph, range(self.teams.question.n)):
            member = OnMesh(self.teams, sizes, i, kind, size, (whole, whole))
            own = {"loops": ("",) * len(sizes), "gathers": (False,) * len(sizes), "held": whole}
            words = {"operators": {each["name"]: own for each in member.operators}}
            row = member.coordinates(words | {"sums": dict.fromkeys(member.bytes, whole)})
            assert row is not None
            time, once, again = time + row["forward"] + row["backward"], once + row["update"], again + row["forward"]
        return time, once, again

    def _least(
        self,
        kind: str,
        size: int,
        sizes: tuple[int, ...],
        layout: Layout,
        passes: Sequence[bool],
        steps: Sequence[Steps],
        plain: bool,
    ) -> dict[Steps, int]:
        """The least nanoseconds of all words for each sort of step; nothing if there are too many words.

        ``plain``: of those without samples, gathered weights and, between whole ends, tokens.

        Nor where words that split nothing are as fast: they are no way to run a team.
        """
        found, alone = dict.fromkeys(steps, 0), dict.fromkeys(steps, 0)
        whole = (WHOLE,) * len(sizes)
        alike: dict[object, list[OnMesh]] = {}
        for i in range(self.teams.question.n):
            if self.teams.graph(i):
                ends = (layout if i and passes[i - 1] else whole, layout if passes[i] else whole)
                member = OnMesh(self.teams, sizes, i, kind, size, ends)
                member.plain = plain
                alike.setdefault((self.teams.graph(i), ends), []).append(member)
        for members in alike.values():  # layers of one graph are split alike
            rows = []
            for words in members[0].choices():
                own = [row for member in members if (row := member.coordinates(words)) is not None]
                if len(own) == len(members):
                    is_split = any(any(each["loops"]) for each in words["operators"].values())
                    savings = members[0].savings(words)
                    rows.append((is_split, ({name: sum(row[name] for row in own) for name in own[0]}, savings)))
            if not rows:
                return {}
            best, unsplit = (
                _fastest([row for _, row in rows], len(members), steps),
                _fastest([row for is_split, row in rows if not is_split], len(members), steps),
            )
            found = {step: found[step] + best[step] for step in steps}
            alone = {step: alone[step] + unsplit[step] for step in steps}
        return {step: best for step, best in found.items() if best < alone[step]}


def _has_samples(entry: Document) -> bool:
    """Whether a tensor has samples as an axis."""
    return any(SAMPLE in row for each in entry["operators"] for row in (each["makes"], *each["reads"].values()))


def taken(figures: Figures, count: int, times: int) -> int:
    """Nanoseconds of so many micro-batches with one or two forwards each."""
    time, once, again = figures
    return count * (time + (times - 1) * again) + once


def _fastest(
    rows: Sequence[tuple[dict[str, int], list[list[Figures]]]], count: int, steps: Sequence[Steps]
) -> dict[Steps, int]:
    """The least nanoseconds of each sort of step, of so many layers whose copies spare the same."""
    found = {}
    for step in steps:
        every = []
        for row, savings in rows:
            own = row["forward"] + row["backward"], row["summed"] + row["update"], row["forward"]
            spared = sum(max(taken(each, *step) for each in copies) for copies in savings)
            every.append(taken(own, *step) - count * spared)
        found[step] = min(every)
    return found
