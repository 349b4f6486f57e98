"""What a member of a team has of a layer whose operators are split along loops, or run whole by every member.

All signatures of the operators are looked at, and all layouts of the gradients of what they make.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from itertools import product
from typing import Any

from .costs import Costs, in_proportion
from .documents import Document, Link, Question
from .rings import Ring, occupancy

WHOLE, PART = -1, -2
"""Layouts of a tensor; others are the axis along which it is split."""
PASSES = ("forward", "input_gradient", "weight_gradient")
INPUT, TOKEN = "input", "token"
TURNED, ROUND = "token, then heads", "token, keys go round"
"""Attention on parts of the tokens that exchanges them for heads and back; to which keys come one part at a time."""

Cuts = frozenset[tuple[str, int]]
"""Weights of a graph of operators that are split, and their axes."""


@dataclass(frozen=True)
class Choice:
    """A signature for each operator, and what a member has then."""

    shards: Cuts
    forward: int
    backward: int
    input_gradient: int
    weight_gradient: int
    update: int
    summed: int
    parameters: int
    saved: int
    workspace: int

    @property
    def order(self) -> tuple[int, ...]:
        """Of choices with the same shards, the one that has least here is taken."""
        both = self.forward + self.backward
        return both, self.saved, self.forward, self.input_gradient, self.weight_gradient, self.summed

    @property
    def four(self) -> tuple[int, ...]:
        """What shards are compared in."""
        return self.forward + self.backward, self.summed, self.parameters, self.saved


class Member:
    """The choices of one layer on a kind at a micro-batch size."""

    def __init__(
        self, entry: Document, question: Question, kind: str, cost: Costs, parameters: int, **rest: Any
    ) -> None:
        self.team, self.size, self.link, self.sharing = rest["team"], rest["size"], rest["link"], rest["sharing"]
        self.split_input, self.split_output = rest["ends"]
        loss = entry.get("loss") or {"operators": [], "rows": 0}
        self.loss, self.rows, self.split_loss = loss["operators"], loss["rows"], rest["loss"]
        self.context: bool = rest["context"]
        self.tokens = self.split_input or self.split_output
        self.cost, self.parameters = cost, parameters
        self.entry, self.operators = entry, list[Document](entry["operators"])
        self.inputs: dict[str, int] = entry["inputs"] if "inputs" in entry else {INPUT: entry.get("input", 0)}
        self.bytes = self.inputs | {each["name"]: each["output"] for each in self.operators}
        self.inert = set(entry.get("without_gradient", ()))
        self.returned = set(outputs(entry))
        self.split = {
            each["name"]
            for each in self.operators
            if each["name"] not in self.returned and any(each["name"] in other["reads"] for other in self.operators)
        }
        self.overhead: int = question.kinds[kind].get("overhead", 0)
        own, dtype = question.kinds[kind], question.dtype
        self.longer: int = own.get("shard_overhead", 0)
        self.rates: tuple[Fraction, Fraction] | None = None
        if dtype in own.get("peak", {}) and own.get("bandwidth") is not None:
            reached = Fraction(str(own.get("efficiency", 0.5)))
            self.rates = reached * own["peak"][dtype], reached * own["bandwidth"]
        weights = [weight for each in self.operators for weight in each.get("weights", ())]
        every = sum(weight["size"] for weight in weights)
        self.counted = [weight for weight in weights if every == parameters or not weight.get("shared")]
        self.move = cache(self._move)

    def loops(self, operator: Document) -> list[str]:
        """The signatures of an operator; empty for whole."""
        loops = [loop for loop, parts in operator.get("loops", {}).items() if parts % self.team == 0]
        if operator["name"] in self.loss and not self.split_loss:
            return [""]
        if not self.tokens or (waits(operator) and not self.context):
            loops = [loop for loop in loops if loop != TOKEN]
        heads = (operator.get("attention") or {}).get("heads", 1)
        if TOKEN in loops and operator.get("attention"):
            loops += [ROUND, TURNED] if heads % self.team == 0 else [ROUND]
        return ["", *loops]

    def choices(self) -> Iterator[Choice]:
        """Every one of them."""
        for row in product(*map(self.loops, self.operators)):
            loops = dict(zip((each["name"] for each in self.operators), row, strict=True))
            if all(self._possible(each, loops) for each in self.operators):
                yield self._choice(loops)

    def _possible(self, operator: Document, loops: dict[str, str]) -> bool:
        """Whether an operator that has parts of the tokens reads a tensor that has, or several; and the reverse.

        One that may have parts of the tokens, whatever the plan, has them if a tensor that it reads has, and it splits
        no weight. One that reads a single tensor and has no weights is split like this, if it may be; along tokens it
        may be only if no plan decides it. One of the loss has parts of the classes only if what it reads has, and all
        have them then.
        """
        if operator.get("attention") and not all(
            self._reads_alike(source, axes, loops, operator["name"]) for source, axes in operator["reads"].items()
        ):
            return False
        if operator["name"] in self.loss:
            [(source, axes)] = operator["reads"].items()
            alike = self._held(source, loops) == _axis(axes, loops[operator["name"]])
            return alike or (operator["name"] == self.loss[0] and not loops[operator["name"]])
        own = loops[operator["name"]]
        if own != TOKEN and self.tokens and self._follows(operator, own):
            axes = {source: token_axis(self.operators, source) for source in operator["reads"]}
            if any(self._held(source, loops) == axis != WHOLE for source, axis in axes.items()):
                return False
        if len(operator["reads"]) != 1 or (own in (TOKEN, TURNED, ROUND) and waits(operator)):
            return True
        [(source, axes)] = operator["reads"].items()
        if own != TOKEN:
            held = self._held(source, loops)
            wanted = axes[held] if held != WHOLE and not operator.get("weights") else own
            return own == wanted or wanted not in self.loops(operator) or (wanted == TOKEN and waits(operator))
        return TOKEN not in axes or self._held(source, loops) != WHOLE

    def _follows(self, operator: Document, loop: str) -> bool:
        """Whether an operator must have parts of the tokens where it reads such: no plan decides it."""
        splits = loop and any(loop in weight["loops"] for weight in operator.get("weights", ()))
        return TOKEN in operator.get("loops", {}) and not waits(operator) and not splits

    def _reads_alike(self, source: str, axes: Sequence[str], loops: dict[str, str], name: str) -> bool:
        """Whether attention has a tensor along the axis where it is split, unless one of both is whole."""
        held, needed = self._held(source, loops), _axis(axes, loops[name])
        return WHOLE in (held, needed) or held == needed

    def _held(self, name: str, loops: dict[str, str]) -> int:
        """The layout in which a tensor is held."""
        makers = {each["name"]: each for each in self.operators}
        if name in self.inputs:
            is_split = self.split_input and stream(self.entry, list(self.inputs)) == name
            return token_axis(self.operators, name) if is_split else WHOLE
        if name not in self.split:
            is_split = self.split_output and stream(self.entry, outputs(self.entry)) == name
            return token_axis(self.operators, name) if is_split else WHOLE
        made = makers[name]["makes"]
        if _sums(made, loops[name]):
            return _axis(made, TOKEN) if self.tokens else WHOLE
        return _axis(made, loops[name])

    def _choice(self, loops: dict[str, str]) -> Choice:
        forward, back, again = self._redistributed(loops)
        times = dict.fromkeys(("forward", "backward", *PASSES[1:]), 0)
        update = summed = parameters = 0
        shards: set[tuple[str, int]] = set()
        for each in self.operators:
            loop, whole = loops[each["name"]], 0
            mine = 0
            for weight in each.get("weights", ()):
                part = weight["size"]
                if loop in weight["loops"]:
                    shards.add((weight["name"], weight["loops"].index(loop)))
                    part //= self.team
                elif loop and loop in each["makes"]:
                    whole += weight["size"]
                mine += part if weight in self.counted else 0
            if waits(each) and loop in (TOKEN, TURNED, ROUND):
                shards.add((each["name"], {TURNED: -1, ROUND: -2}.get(loop, each["makes"].index(TOKEN))))
            there, here = self._attends(each, loop)
            forward, back = forward + there, back + here
            if loop and each["name"] in self.loss[:1]:
                [axes] = each["reads"].values()
                shards.add((each["name"], _axis(axes, loop)))
                forward += 2 * self._ring(self.rows * self.size, 2)
            parameters += mine
            update += _share(self.cost.update, mine, self.parameters)
            summed += self._ring(whole, 2)
        for name in times:
            rest, total = self._rest(name), self.wholes[name]
            times[name] = getattr(self.cost, name) - rest
            for each in self.operators:
                alone = _share(rest, self.roofline(each, loops[each["name"]], name), total)
                round_ = loops[each["name"]] == ROUND and name != "weight_gradient"
                times[name] += self._one_by_one(each, alone, name) if round_ else alone
        if shards or self.split_input:
            later = {"forward": 0, "input_gradient": 0, "weight_gradient": 0}
            for each in self.operators:
                for name in PASSES[: 3 if each.get("weights") else 2]:
                    later[name] += self.longer if getattr(self.cost, name) > 0 else 0
            times = {name: time + later.get(name, 0) for name, time in times.items()}
            times["backward"] += later["input_gradient"] + later["weight_gradient"]
        times["forward"] += forward
        times["backward"] += back + again
        times["weight_gradient"] += again
        times["input_gradient"] += back
        figures = {"update": update + summed, "summed": summed, "parameters": parameters}
        own = {"saved": self._saved(loops)}
        own["workspace"] = in_proportion(self.cost, own["saved"]) + self._at_once(loops)
        return Choice(frozenset(shards), **times, **figures, **own)

    def _attends(self, operator: Document, loop: str) -> tuple[int, int]:
        """Nanoseconds that attention on parts of the tokens sends in the forward, and in the backward."""
        own = operator.get("attention")
        if not own or loop not in (TOKEN, TURNED):
            return 0, 0
        keys, both, made = (self.size * n for n in (own["keys"], own["queries"] + own["keys"], operator["output"]))
        if loop == TOKEN:
            there, back = [self._ring(keys, 1)], [self._ring(keys, 1), self._ring(keys, 1)]
        else:
            there = [self._to_another_axis(size) for size in (both, made)]
            back = [self._to_another_axis(size) for size in (both, both, 2 * made)]
        return sum(there), 0 if operator["name"] in self.inert else sum(back)

    def _one_by_one(self, operator: Document, alone: int, name: str) -> int:
        """Nanoseconds of attention in which each part of the keys is sent on while it is attended to."""
        own, team, back = operator["attention"], self.team, name != "forward"
        part = -(-own["keys"] * self.size // team)
        parts = [1] + [2 if own.get("causal") else 1] * (team - 1)
        work = [-(-alone * each // sum(parts)) for each in parts] + [0]
        # which parts of keys, and of their gradients, are under way in each step: T - 1 moves of these, T of those
        under_way = [int(step < team - 1) + int(back and step > 0) for step in range(team + 1)]
        if back and operator["name"] in self.inert:
            under_way = [0] * (team + 1)
        time = 0
        for busy, count in zip(work, under_way, strict=True):
            time += max(busy, self._to_the_next(count * part) if count else 0)
        return time + (self.longer * (team - 1) if getattr(self.cost, name) > 0 else 0)

    def _to_the_next(self, size: int) -> int:
        link = self.link
        if not size:
            return 0
        if link.bandwidth is not None and link.efficiency != 1:
            link = Link(max(round(link.bandwidth * Fraction(str(link.efficiency))), 1), link.latency)
        return link.latency + occupancy(link, size)

    def _rest(self, name: str) -> int:
        """Nanoseconds of a pass that are shared out to the operators."""
        whole: int = getattr(self.cost, name)
        twice = name == "backward" and self.cost.input_gradient > 0 and self.cost.weight_gradient > 0
        return max(whole - self.overhead * (2 if twice else 1), 0) if self.wholes[name] else 0

    @cached_property
    def wholes(self) -> dict[str, int]:
        """Rooflines of all operators as wholes."""
        names = ("forward", "backward", *PASSES[1:])
        return {name: sum(self.roofline(each, "", name) for each in self.operators) for name in names}

    def roofline(self, operator: Document, loop: str, name: str) -> int:
        """Picoseconds of a pass of an operator; without rates its operations."""
        if name == "backward":
            return sum(self.roofline(operator, loop, half) for half in PASSES[1:])
        flops, share = operator.get(f"{name}_flops", 0) * self.size, Fraction(self.team if loop else 1)
        own, moved = operator.get("attention") or {}, 0
        if own and loop in (TOKEN, ROUND):
            moved = own["keys"] * self.size - own["keys"] * self.size // self.team
            if own.get("causal"):  # the last part of the queries sees all keys but half of its own
                share = Fraction(self.team**2, 2 * self.team - 1)
        if self.rates is None:
            return int(flops * 1000 // share)
        weights = operator.get("weights", ())
        if name == "weight_gradient" and not weights:
            return 0
        moved += sum(weight["size"] // (self.team if loop in weight["loops"] else 1) for weight in weights)
        for tensor, axes in (*operator["reads"].items(), (operator["name"], operator["makes"])):
            moved += self.size * self.bytes[tensor] // (self.team if _axis(axes, loop) != WHOLE else 1)
        peak, bandwidth = self.rates
        return round(10**12 * max(flops / (share * peak), moved / bandwidth))

    def _saved(self, loops: dict[str, str]) -> int:
        kept = [each for each in self.operators if each.get("kept")]
        total = sum(each["output"] for each in kept)
        if not total:
            return self.cost.saved
        found = 0
        for each in kept:
            split = self._held(each["name"], loops) != WHOLE
            found += _share(self.cost.saved, each["output"] // (self.team if split else 1), total)
        return found

    def _at_once(self, loops: dict[str, str]) -> int:
        """Most bytes that one operator needs beside what is kept, because members keep parts."""
        most = 0
        for each in self.operators:
            loop, own, bytes_ = loops[each["name"]], each.get("attention"), 0
            if own and loop in (TOKEN, TURNED, ROUND):
                every = own["queries"] + own["keys"] + each["output"]
                parts = {
                    TOKEN: (2 * own["keys"], 1),
                    ROUND: (5 * own["keys"], self.team),
                    TURNED: (2 * every, self.team),
                }
                bytes_ += self.size * -(-parts[loop][0] // parts[loop][1])
            for source, axes in each["reads"].items():
                if _axis(axes, loop) == WHOLE != self._held(source, loops):
                    bytes_ += self.bytes[source] * self.size
            most = max(most, bytes_)
        return most

    def _redistributed(self, loops: dict[str, str]) -> tuple[int, int, int]:
        """Nanoseconds of tensors forward, of gradients backward, and of tensors for weight gradients."""
        there = back = again = 0
        makers = {each["name"]: each for each in self.operators}
        for name, bytes_ in self.bytes.items():
            readers, size = [each for each in self.operators if name in each["reads"]], bytes_ * self.size
            held = self._held(name, loops)
            made = needed = held
            if name in makers:
                made = needed = _axis(makers[name]["makes"], loops[name])
                if _sums(makers[name]["makes"], loops[name]):
                    made = PART
            there += self.move(made, held, size) or 0
            reads = [_axis(each["reads"][name], loops[each["name"]]) for each in readers]
            if self.tokens and held != WHOLE and held == token_axis(self.operators, name):
                # all tokens are gathered once for all, and once more if that is for weights
                want = [each for each, read in zip(readers, reads, strict=True) if read == WHOLE]
                gather = self.move(held, WHOLE, size) or 0
                there += gather if want else 0
                again += gather if any(each.get("weights") or each.get("attention") for each in want) else 0
                moved = [(each, read) for each, read in zip(readers, reads, strict=True) if read != WHOLE]
            else:
                moved = list(zip(readers, reads, strict=True))
            there += sum(self.move(held, read, size) or 0 for _, read in moved)
            again += sum(self.move(held, read, size) or 0 for each, read in moved if each.get("weights"))
            returned = [
                PART if loops[each["name"]] and axis == WHOLE else axis
                for each, axis in zip(readers, reads, strict=True)
            ]
            back_size = 0 if name in self.inert else size
            ways = [
                [*(self.move(each, gradient, back_size) for each in returned), self.move(gradient, needed, back_size)]
                for gradient in self._gradients(name, readers, makers.get(name), held)
            ]
            back += min(sum(each for each in way if each is not None) for way in ways if None not in way)
        return there, back, again

    def _gradients(self, name: str, readers: Sequence[Document], maker: Document | None, held: int) -> set[int]:
        """The layouts in which the gradient of a tensor may be summed up."""
        if name in self.returned or (maker and name not in self.split):
            return {held, PART} if held == WHOLE else {held}
        needed = {_axis(maker["makes"], loop) for loop in self.loops(maker)} if maker else set()
        return (
            {WHOLE, PART} | needed | {_axis(each["reads"][name], loop) for each in readers for loop in self.loops(each)}
        )

    def _move(self, source: int, target: int, size: int) -> int | None:
        """Nanoseconds from one layout to another; None if there is no way."""
        if source in (target, WHOLE):
            return 0  # also to parts: one member has the whole
        if target == PART:
            return None
        if not size:
            return 0
        if source == PART or target == WHOLE:
            return self._ring(size, 2 if (source, target) == (PART, WHOLE) else 1)
        return self._to_another_axis(size)

    def _to_another_axis(self, size: int) -> int:
        """Nanoseconds in which all members exchange their parts of a tensor for those along another axis."""
        return (self.team - 1) * self._to_the_next(self.sharing * -(-size // self.team**2))

    def _ring(self, size: int, halves: int) -> int:
        own = Ring(self.team, self.link, halves)
        return own.moves(size) + own.latency if size else 0


def inputs(graph: Document) -> list[str]:
    """The inputs of a graph of operators."""
    return list(graph["inputs"]) if "inputs" in graph else [INPUT]


def outputs(graph: Document) -> list[str]:
    """Its outputs."""
    return list(graph.get("outputs") or [graph["operators"][-1]["name"]])


def stream(graph: Document, names: list[str]) -> str:
    """Which of its inputs or outputs may be split along tokens: a single one, or the one that has a gradient."""
    if len(names) > 1:
        names = [name for name in names if name not in graph.get("without_gradient", ())]
    return names[0] if len(names) == 1 else ""


def token_axis(operators: Sequence[Document], name: str) -> int:
    """The axis of a tensor's tokens, if all say the same."""
    rows = [each["reads"][name] for each in operators if name in each["reads"]]
    rows += [each["makes"] for each in operators if each["name"] == name]
    axes = {_axis(row, TOKEN) for row in rows}
    return axes.pop() if len(axes) == 1 else WHOLE


def waits(operator: Document) -> bool:
    """Whether an operator runs on parts of the tokens only if the plan says so."""
    return bool(operator.get("product") or operator.get("attention"))


def _sums(makes: Sequence[str], loop: str) -> bool:
    """Whether each member makes a part of a sum."""
    return bool(loop) and _axis(makes, loop) == WHOLE


def _axis(axes: Sequence[str], loop: str) -> int:
    loop = TOKEN if loop in (TURNED, ROUND) else loop
    return list(axes).index(loop) if loop in axes else WHOLE


def _share(whole: int, part: int, total: int) -> int:
    return -(-whole * part // total) if total else 0
