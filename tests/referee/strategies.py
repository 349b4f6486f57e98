"""All strategies of a layer on a mesh, and the fastest of them."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product
from typing import Any

from .documents import Document
from .graphs import PART, SAMPLE, TOKEN, WHOLE, waits
from .members import Member
from .placements import Placements

Figures = tuple[int, int, int]
"""Nanoseconds of a forward and a backward, of what is once per step, and of the forward alone."""
Steps = tuple[int, int]
"""A number of micro-batches, and of forwards of each: a backward may have another one in it."""
Times = dict[Steps, int]
"""Nanoseconds of each sort of step."""
Row = tuple[dict[str, int], list[list[Figures]]]
"""What a layer takes under some strategies, and what copies spare, for each tensor."""
Main = frozenset[tuple[str, tuple[str, ...], tuple[str, ...]]]
"""The main strategies of a layer: names of operators, with their loops and the ways in which they get keys."""
FEW = 3000
"""Choices of a layer up to which all are tried."""


class Strategies(Member):
    """A layer on a mesh, and its strategies."""

    def __init__(self, *place: Any) -> None:
        super().__init__(*place)
        self.context, self.split_loss = self.job["context_parallel"], self.job["vocabulary_parallel"]
        self.plain = False

    def choices(self) -> Iterator[Document]:  # type: ignore[override]
        """All strategies, with all placements of sums, without copies."""
        rows = [list(self._signatures(each)) for each in self.operators]
        sums = [name for name in self.bytes if self._is_summed(name)]
        choices = [list(self._sum_choices(name)) for name in sums]
        if math.prod(map(len, (*rows, *choices))) > FEW:
            return
        for row in product(*rows):
            operators = {each["name"]: own for each, own in zip(self.operators, row, strict=True)}
            for chosen in product(*choices):
                yield {"operators": operators, "sums": dict(zip(sums, chosen, strict=True))}

    @property
    def on_tokens(self) -> bool:
        """Whether there are parts of the tokens around a layer."""
        return {*self.ends[0], *self.ends[1]} != {WHOLE}

    def main(self, strategies: Document) -> Main:
        """The main strategies: of what splits weights, or sums more than few gradients; products on tokens; losses."""
        rows = ((each, strategies["operators"][each["name"]]) for each in self.operators)
        return frozenset(
            (each["name"], own["loops"], own["methods"]) for each, own in rows if self._is_main(each, {*own["loops"]})
        )

    def _is_main(self, operator: Document, loops: set[str]) -> bool:
        weights, every = operator.get("weights", ()), [w for o in self.operators for w in o.get("weights", ())]
        summed = sum(w["size"] for w in weights if (loops & {*operator["makes"]}) - {*w["loops"]})
        return (
            any(loops & {*w["loops"]} or w.get("shared") for w in weights)
            or summed * 1024 > sum(w["size"] for w in every)
            or (waits(operator) and TOKEN in loops)
            or (operator["name"] in self.loss and loops != {""})
        )

    def savings(self, strategies: Document) -> list[list[Figures]]:
        """For each tensor what its copies spare: of a forward and a backward, once, and of the forward."""
        found = []
        for name in (name for name in self.bytes if self.readers[name]):
            alone = self.redistributed(name, strategies)
            own = [
                self.redistributed(name, strategies | {"copies": {name: copy}})
                for copy in self._copies(name, strategies)
            ]
            rows = [{when: alone[when] - each[when] for when in each} for each in own if each is not None and alone]
            found.append([(0, 0, 0), *((sum(row.values()), 0, row["forward"]) for row in rows)])
        return found

    def _copies(self, name: str, strategies: Document) -> Iterator[Document]:
        """Each copy of a tensor that is gathered along some axes that split it, for two or more of its readers.

        One that is kept may be for a single reader.
        """
        names, held = [each["name"] for each in self.readers[name]], self.held(strategies, name)
        for placements in product(*({entry, WHOLE} for entry in held)):
            for count in range(1, len(names) + 1) if placements != held else ():
                for readers, kept in product(combinations(names, count), (False, True) if count > 1 else (True,)):
                    yield {"placements": placements, "readers": readers, "kept": kept}

    def _methods(self, operator: Document, row: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Methods by which attention may get keys along each axis; empty along those that do not split its tokens."""
        own, tokens = operator.get("attention"), [k for k, loop in enumerate(row) if loop == TOKEN]
        for chosen in product(("ring", "keys", "heads"), repeat=len(tokens)) if own else ((),):
            methods = dict(zip(tokens, chosen, strict=False))
            rest = list(chosen[1:] if chosen[:1] == ("ring",) else chosen)
            late = rest.index("heads") if "heads" in rest else len(rest)
            heads = self.along(methods, "heads") * math.prod(
                n for n, loop in zip(self.sizes, row, strict=True) if loop not in ("", TOKEN, SAMPLE)
            )
            divided = "heads" not in chosen or not own or own.get("heads", 1) % heads == 0
            if "ring" not in rest and "keys" not in rest[late:] and divided:
                yield tuple({"keys": ""}.get(methods.get(k, ""), methods.get(k, "")) for k in range(len(row)))

    def _loops(self, operator: Document) -> Iterator[tuple[tuple[str, ...], tuple[bool, ...]]]:
        """The loops along each axis, and whether weights without them are gathered."""
        loops = {loop: n for loop, n in operator.get("loops", {}).items() if self._may(operator, loop)}
        weights = operator.get("weights", ())
        entries = [("", False), *((loop, False) for loop in loops)]
        shares = any(weight.get("shared") for each in self.operators for weight in each.get("weights", ()))
        if not shares and not self.plain:
            lacked = [loop for loop in loops if any(loop not in weight["loops"] for weight in weights)]
            entries += [(loop, True) for loop in lacked if loop in operator["makes"]]
        for strategy in product(entries, repeat=len(self.sizes)):
            row, gathers = tuple(loop for loop, _ in strategy), tuple(gather for _, gather in strategy)
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

    def follows(self, strategies: Document, names: set[str]) -> bool:
        """Whether all products of matrices are split by one of these methods, of those that can be without tokens."""
        for each in self.operators:
            able = any(
                TOKEN not in row and self._name(each, row, gathers) in names for row, gathers in self._loops(each)
            )
            own = self._name(each, self.loops_of(strategies, each["name"]), self.gathers(strategies, each["name"]))
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
            return self.on_tokens and (self.context or not waits(operator))
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
                    for methods in self._methods(operator, loops):
                        yield {"loops": loops, "gathers": gathers, "methods": methods, "held": held}

    def _sum_choices(self, name: str) -> set[Placements]:
        found = {self.whole} | ({self.end(name)} if name in self.inputs or name in self.returned else set())
        for each in self.readers[name]:
            found |= {self.laid(each["reads"][name], loops, True) for loops, _ in self._loops(each)}
        if name in self.makers:
            found |= {self.laid(self.makers[name]["makes"], loops) for loops, _ in self._loops(self.makers[name])}
        return found


def taken(figures: Figures, count: int, times: int) -> int:
    """Nanoseconds of so many micro-batches with one or two forwards each."""
    time, once, again = figures
    return count * (time + (times - 1) * again) + once


def fastest(rows: Sequence[Row], count: int, steps: Sequence[Steps]) -> Times:
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


def min_of(rows: Iterable[Times]) -> Times:
    """The least of each sort of step; nothing of no rows."""
    every = list(rows)
    return {step: min(row[step] for row in every) for step in every[0]} if every else {}
