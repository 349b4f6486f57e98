"""What a device of a mesh has of a layer under given strategies: its passes, its weights, and what it keeps."""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import permutations
from typing import Any

from .costs import in_proportion
from .documents import Document
from .graphs import PASSES, TOKEN, outputs, stream
from .placements import Tensors


class Member(Tensors):
    """A layer on a mesh, as each device has it."""

    def __init__(self, *place: Any) -> None:
        super().__init__(*place)
        loss = self.entry.get("loss") or {"operators": [], "rows": 0}
        self.loss, self.rows = loss["operators"], loss["rows"]
        kind = self.kind
        self.overhead, self.longer = kind.get("overhead", 0), kind.get("shard_overhead", 0)
        self.rates: tuple[Fraction, Fraction] | None = None
        if self.dtype in kind.get("peak", {}) and kind.get("bandwidth") is not None:
            reached = Fraction(str(kind.get("efficiency", 0.5)))
            self.rates = reached * kind["peak"][self.dtype], reached * kind["bandwidth"]
        weights = [weight for each in self.operators for weight in each.get("weights", ())]
        every = sum(weight["size"] for weight in weights)
        self.known = dict[object, dict[str, int]]()
        self.counted = [weight for weight in weights if every == self.parameters or not weight.get("shared")]

    def _rest(self, name: str) -> int:
        """Nanoseconds of a pass that are shared out to the operators."""
        whole: int = getattr(self.cost, name)
        twice = name == "backward" and self.cost.input_gradient > 0 and self.cost.weight_gradient > 0
        return max(whole - self.overhead * (2 if twice else 1), 0) if self.wholes[name] else 0

    @cached_property
    def wholes(self) -> dict[str, int]:
        """Rooflines of all operators as wholes."""
        names = ("forward", "backward", *PASSES[1:])
        loops = ("",) * len(self.sizes)
        return {name: sum(self.share(each, loops, name, {}) for each in self.operators) for name in names}

    def coordinates(self, strategies: Document) -> dict[str, int] | None:
        """What a device has under strategies; None if a tensor cannot be moved, or the loss is split in two ways."""
        loops = {each["name"]: self.loops_of(strategies, each["name"]) for each in self.operators}
        classes = self.classes(strategies)
        if any(self._of_classes(loops[name]) != classes for name in self.loss):
            return None
        spent = {"forward": 0, "back": 0, "again": 0}
        for name in self.bytes:
            own = self.redistributed(name, strategies)
            if own is None:
                return None
            spent = {when: spent[when] + own[when] for when in spent}
        row = dict.fromkeys(("forward", "backward", *PASSES[1:], "update", "summed", "parameters"), 0)
        for each in self.operators:
            for key, value in self._of_operator(each, strategies).items():
                (row if key in row else spent)[key] += value
        row["forward"] += spent["forward"]
        row["backward"] += spent["back"] + spent["again"]
        row["input_gradient"] += spent["back"]
        row["weight_gradient"] += spent["again"]
        copies = [(name, own["placements"]) for name, own in strategies.get("copies", {}).items() if own["kept"]]
        beside = sum(self.bytes[name] * self.size // self._parts(placements) for name, placements in copies)
        return row | {"saved": self._kept(strategies) + beside}

    def _of_operator(self, operator: Document, strategies: Document) -> dict[str, int]:
        """What an operator adds to what a device has, by its strategies alone."""
        own = strategies["operators"][operator["name"]]
        key = operator["name"], tuple(own["loops"]), tuple(own["gathers"]), tuple(own.get("methods") or ())
        if key not in self.known:
            self.known[key] = self._added(operator, strategies)
        return self.known[key]

    def _added(self, operator: Document, strategies: Document) -> dict[str, int]:
        loops, gathers = self.loops_of(strategies, operator["name"]), self.gathers(strategies, operator["name"])
        there, back = self._keys(operator, loops, strategies)
        if operator["name"] in self.loss[:1]:
            rows = self.rows * self.size
            there += 2 * sum(self.ring(axis, rows, 2) for axis in self._of_classes(loops))
        moved, parameters = self._gathering(operator, loops, gathers), 0
        for weight in operator.get("weights", ()):
            axes = self.gathered(weight, loops, gathers)
            count = self.divided(weight, loops) * math.prod(self.sizes[k] for k in axes)
            parameters += weight["size"] // count if weight in self.counted else 0
        found = {"back": back + moved, "again": moved, "parameters": parameters}
        found["update"] = -(-self.cost.update * parameters // self.parameters) if self.parameters else 0
        found["summed"] = self._sums(operator, loops, gathers)
        for name in ("forward", "backward", *PASSES[1:]):
            rest, total = self._rest(name), self.wholes[name]
            alone = (
                -(-rest * self.share(operator, loops, name, self.methods(strategies, operator)) // total)
                if total
                else 0
            )
            found[name] = self._round(operator, loops, strategies, alone, name)
        return found | {"forward": found["forward"] + there + moved}

    def classes(self, strategies: Document) -> list[int]:
        """The axes that split the classes of the loss."""
        return self._of_classes(self.loops_of(strategies, self.loss[0])) if self.loss else []

    @staticmethod
    def _of_classes(loops: Sequence[str]) -> list[int]:
        return [axis for axis, loop in enumerate(loops) if loop]

    def share(self, operator: Document, loops: Sequence[str], name: str, methods: dict[int, str]) -> int:
        """Picoseconds of a pass of an operator; without rates its operations."""
        if name == "backward":
            return sum(self.share(operator, loops, half, methods) for half in PASSES[1:])
        counts: dict[str, int] = {}
        for n, loop in zip(self.sizes, loops, strict=True):
            if loop:
                counts[loop] = counts.get(loop, 1) * n
        flops, devices = operator.get(f"{name}_flops", 0) * self.size, Fraction(math.prod(counts.values()))
        own, moved, tokens = operator.get("attention") or {}, 0, self.along(methods, "ring", "keys")
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

    def along(self, methods: dict[int, str], *which: str) -> int:
        """Devices along the axes whose attention gets keys by one of these methods."""
        return math.prod(self.sizes[axis] for axis, method in methods.items() if method in which)

    def apart(self, loops: Sequence[str]) -> int:
        """Devices along the axes that split other loops than tokens."""
        return math.prod(n for n, loop in zip(self.sizes, loops, strict=True) if loop not in ("", TOKEN))

    def _keys(self, operator: Document, loops: Sequence[str], strategies: Document) -> tuple[int, int]:
        """Nanoseconds in which attention on parts of the tokens exchanges heads and gathers keys, forward and back."""
        own, methods = operator.get("attention"), self.methods(strategies, operator)
        if not own or not methods:
            return 0, 0
        there = back = 0
        every, others = math.prod(self.sizes[axis] for axis in methods), self.apart(loops)
        both, made = self.size * (own["queries"] + own["keys"]), self.size * operator["output"]
        for axis, method in methods.items():
            if method == "heads":
                beside = others * every // self.sizes[axis]
                turns = [self.collective(axis, 0, 1, -(-size // beside)) for size in (both, made, 2 * made)]
                there += turns[0] + turns[1]
                back += 2 * turns[0] + turns[2]
            if method == "keys":
                before = math.prod(self.sizes[other] for other in methods if other < axis)
                beside = others * self.along(methods, "heads") * before
                once = self.ring(axis, -(-own["keys"] * self.size // beside), 1)
                there, back = there + once, back + 2 * once
        return there, 0 if operator["name"] in self.inert else back

    def _block(self, operator: Document, loops: Sequence[str], methods: dict[int, str]) -> int:
        """Bytes of keys and values that go round at a time."""
        parts = self.apart(loops) * self.along(methods, "ring", "heads")
        return -(-operator["attention"]["keys"] * self.size // parts)

    def _round(self, operator: Document, loops: Sequence[str], strategies: Document, alone: int, name: str) -> int:
        """Nanoseconds of a pass that takes so long alone, where blocks of keys go round meanwhile."""
        methods = self.methods(strategies, operator)
        axis = next((axis for axis, method in methods.items() if method == "ring"), None)
        if axis is None or name == "weight_gradient":
            return alone
        n, inner, size = self.sizes[axis], self.along(methods, "keys"), self._block(operator, loops, methods)
        parts = [2 * inner] * n if operator["attention"].get("causal") else [1] * n
        parts[0] -= operator["attention"].get("causal") or 0
        work, time = [-(-alone * each // sum(parts)) for each in parts] + [0], 0
        back, still = name != "forward", name != "forward" and operator["name"] in self.inert
        for step, busy in enumerate(work):  # blocks go on before the last step, gradients one step behind them
            moving = 0 if still else int(step < n - 1) + int(back and step > 0)
            time += max(busy, self.to_next(axis, moving * size) if moving else 0)
        return time + (self.longer * (n - 1) if getattr(self.cost, name) > 0 else 0)

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

    def _kept(self, strategies: Document) -> int:
        kept = [each for each in self.operators if each.get("kept")]
        total = sum(each["output"] for each in kept)
        if not total:
            return self.cost.saved
        found = 0
        for each in kept:
            count = math.prod(n for n, e in zip(self.sizes, self.held(strategies, each["name"]), strict=True) if e >= 0)
            found += -(-self.cost.saved * (each["output"] // count) // total)
        return found

    def device(self, strategies: Document) -> Document:
        """The costs of the layer on each device, and bytes of its parameters."""
        own = self.coordinates(strategies)
        assert own is not None
        for name in ("forward", "backward", *PASSES[1:]):
            own[name] += getattr(self.cost, name) - self._rest(name)
        split = any(any(self.loops_of(strategies, each["name"])) for each in self.operators)
        if split and self.longer:
            later = dict.fromkeys(PASSES, 0)
            for each in self.operators:
                for name in PASSES[: 3 if each.get("weights") else 2]:
                    later[name] += self.longer if getattr(self.cost, name) > 0 else 0
            own = {name: value + later.get(name, 0) for name, value in own.items()}
            own["backward"] += later["input_gradient"] + later["weight_gradient"]
        own["update"] += own["summed"]
        space = in_proportion(self.cost, own["saved"]) + self._at_once(strategies)
        output = -(-self._output() // math.prod(self.sizes[axis] for axis in self.classes(strategies)))
        return own | {"output": output, "workspace": space}

    def _at_once(self, strategies: Document) -> int:
        """Most bytes for one operator: weights and keys, with gradients, copies, and what it reads of others."""
        found, order = [0], [each["name"] for each in self.operators]
        for number, each in enumerate(self.operators):
            loops, gathers = self.loops_of(strategies, each["name"]), self.gathers(strategies, each["name"])
            rows = [weight for weight in each.get("weights", ()) if self.gathered(weight, loops, gathers)]
            own = 2 * sum(weight["size"] // self.divided(weight, loops) for weight in rows)
            own += self._beside(each, loops, self.methods(strategies, each))
            for source, copy in strategies.get("copies", {}).items():
                readers = [order.index(name) for name in copy["readers"]]
                if min(readers) <= number <= max(readers) and not copy["kept"]:
                    own += self.bytes[source] * self.size // self._parts(copy["placements"])
            for source in each["reads"]:
                need = self.needs(strategies, each, source)
                if self._parts(need) < self._parts(self.held(strategies, source)):
                    is_copy = self.copy(strategies, source, each["name"]) == need
                    own += 0 if is_copy else self.bytes[source] * self.size // self._parts(need)
            found.append(own)
        return max(found)

    def _beside(self, operator: Document, loops: Sequence[str], methods: dict[int, str]) -> int:
        """Bytes that attention on parts of the tokens needs beside these."""
        own, found = operator.get("attention"), 0
        if not own or not methods:
            return 0
        if "ring" in methods.values():
            found += 5 * self._block(operator, loops, methods)
        elif "keys" in methods.values():
            found += 2 * -(-own["keys"] * self.size // (self.apart(loops) * self.along(methods, "heads")))
        if "heads" in methods.values():
            every = 2 * self.size * (own["queries"] + own["keys"] + operator["output"])
            found += -(-every // (self.apart(loops) * self.along(methods, "ring", "keys", "heads")))
        return found

    def _output(self) -> int:
        count = math.prod(n for n, entry in zip(self.sizes, self.ends[1], strict=True) if entry >= 0)
        if count == 1:
            return self.cost.output
        made = outputs(self.entry)
        beside = sum(self.bytes[name] for name in made if name != stream(self.entry, made)) * self.size
        beside = min(beside, self.cost.output)
        return beside + -(-(self.cost.output - beside) // count)
