"""Operators of a recorded layer: its calls, with views folded away.

Every tensor is followed as a view of what an operator makes, of an input or of a weight (see `sources`). An operator
may be split along an axis if that is, on a tensor that it reads, the outermost part of an axis along which this tensor
may be split itself.
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import torch
from torch import Tensor

from pipeplan.core.operators import INPUT, SAMPLE, TOKEN, Attention, CrossEntropy, Operator, OperatorGraph, Weight
from pipeplan.frontend.capture.private import memory_of
from pipeplan.frontend.operators.alignment import Alignment
from pipeplan.frontend.operators.factors import opaque
from pipeplan.frontend.operators.groups import Groups, Reading
from pipeplan.frontend.operators.masks import hides_later
from pipeplan.frontend.operators.program import Program, Role, Step
from pipeplan.frontend.operators.record import Call, Record
from pipeplan.frontend.operators.rules import Rule, copied, is_causal, loss_rule, rule_of
from pipeplan.frontend.operators.sources import CHANNEL, FEATURE, WHOLE, Source, View
from pipeplan.frontend.operators.views import viewed, views
from pipeplan.frontend.parameters import bytes_of
from pipeplan.frontend.profile import counting

Tokens = Sequence[int | None]


class UnfollowedError(Exception):
    """The operators cannot be told from the calls."""


@dataclass(frozen=True)
class NamedWeight:
    """A parameter of a layer: its name there in a `Weight`, and whether other layers share it."""

    name: str
    shared: bool


def operators_of(record: Record, weights: Mapping[str, NamedWeight], samples: int) -> OperatorGraph:
    """Return the operators of a recorded layer, with figures of one of ``samples`` samples.

    ``weights``: trainable parameters by their names in the layer; others count as constants.

    Raises
    ------
    UnfollowedError
        If a tensor is written in place and then read as part of another one.
    """
    return program_of(record, weights, samples).graph


def program_of(record: Record, weights: Mapping[str, NamedWeight], samples: int, tokens: Tokens = ()) -> Program:
    """Return a recorded layer as a program; arguments and errors are those of `operators_of`.

    ``tokens``: for layers that run on parts of their own tokens, the axis of these of each input that comes in parts.
    """
    follower = _Follower(record, weights, samples, tokens)
    graph = follower.graph()
    return Program(graph, record, follower.steps, follower.given)


class _Follower:
    """Walk over the calls of a record."""

    def __init__(self, record: Record, weights: Mapping[str, NamedWeight], samples: int, tokens: Tokens = ()) -> None:
        self._record, self._samples, self._sliced = record, samples, bool(tokens)
        self._views: dict[int, View | None] = {}  # None: a constant
        self.steps: list[Step] = []
        self._memories: dict[Any, bool] = {}  # whether it holds constants
        self._stale: set[int] = set()
        self._operators: dict[str, Operator] = {}
        self._owners: dict[Any, str] = {}  # operator whose output a memory holds
        self._random: set[Any] = set()  # memory of random constants
        self._weights: dict[str, Weight] = {}
        self._listed: set[str] = set()  # weights that an operator has
        self._names: Counter[str] = Counter()
        self._inputs: dict[str, int] = {}
        self._inert: set[str] = set()  # inputs and operators whose tensors have no gradient
        self._groups = Groups()
        self._readings: dict[str, list[tuple[Source, Reading]]] = {}  # of loops along which an operator may be split
        self._loss: list[str] = []  # operators of a cross entropy, each of which reads the one before
        self._rows = 0  # bytes of a number for each row of its logits
        for number, tensor in enumerate(record.inputs, 1):
            name = INPUT if number == 1 else f"{INPUT}#{number}"
            self._inputs[name] = self._each(bytes_of((tensor,)))
            self._names[INPUT] = number
            if not tensor.requires_grad:
                self._inert.add(name)
            self._put(tensor, self._input(name, tensor, tokens[number - 1] if tokens else None))
        known: dict[int, str] = {}
        for local, parameter in record.parameters.items():
            if local in weights and id(parameter) not in known:
                known[id(parameter)] = weights[local].name
                size = bytes_of((parameter,))
                row = (WHOLE,) * parameter.dim()
                self._weights[weights[local].name] = Weight(weights[local].name, row, size, weights[local].shared)
                shape = tuple(parameter.shape)
                source = Source(weights[local].name, row, shape, shape, weight=True)
                self._put(parameter, View(source, tuple(axis if axis[0].size > 1 else () for axis in source.axes)))
            elif id(parameter) not in known:
                self._put(parameter, None)
        self.given = dict(self._views)
        self._names.update(self._weights.keys())  # operators have the name of no weight
        self._uses: Counter[str] = Counter()

    def _input(self, name: str, tensor: Tensor, token: int | None) -> View:
        """Return the view of an input: samples, tokens and, of floating-point numbers, features.

        There are tokens along axis 1 of numbers [sample, token] and of tensors [sample, token, feature]. An image
        [sample, channel, height, width] has channels there; one with channels last has them as features.
        """
        shape = tuple(tensor.shape)
        batched = shape[:1] == (self._samples,)
        kept = [n for n, size in enumerate(shape) if size > 1 or (n == 0 and batched)]
        features = tensor.is_floating_point() and len(shape) > 1
        rest = [TOKEN if len(shape) == 2 + features else WHOLE] * (len(shape) - 1 - features)
        if features and len(rest) > 1:
            rest[0] = CHANNEL
        if token is not None:
            rest = [TOKEN if n == token - 1 else WHOLE for n in range(len(rest))]
        every = (SAMPLE if batched else WHOLE, *rest, *[FEATURE] * features)
        names = tuple(every[n] for n in kept)
        sizes = tuple(shape[n] for n in kept)
        parts = tuple(size if each in (CHANNEL, FEATURE) else 1 for each, size in zip(names, sizes, strict=True))
        source = Source(name, names, sizes, parts)
        places = dict(zip(kept, source.axes, strict=True))
        return View(source, tuple(places.get(n, ()) for n in range(len(shape))))

    def _put(self, tensor: Tensor, view: View | None) -> None:
        self._views[id(tensor)] = view
        self._stale.discard(id(tensor))
        self._memories[memory_of(tensor)] = view is None

    def _view(self, tensor: Tensor) -> View | None:
        if id(tensor) in self._stale:
            raise UnfollowedError("a tensor was written in place, and then read as part of another one")
        if id(tensor) not in self._views:
            if not self._memories.get(memory_of(tensor), True):
                raise UnfollowedError("a tensor is a view that no operation made")
            self._views[id(tensor)] = None
        return self._views[id(tensor)]

    def graph(self) -> OperatorGraph:
        """Return the operators."""
        self._count_uses()
        for number, call in enumerate(self._record.calls):
            self._follow(call, is_loss=number >= self._record.loss)
        outputs = tuple(map(self._output, self._record.outputs))
        if not self._operators:
            outputs = (self._pass_on(self._record.outputs[0]), *outputs[1:])
        loss = self._cross_entropy()
        self._group()
        views = (self._views.get(id(each)) for each in self._record.returned)
        operators = _reached(self._operators, {*outputs, *(view.source.name for view in views if view is not None)})
        unused = tuple(weight for name, weight in self._weights.items() if name not in self._listed)
        if unused:
            operators.insert(0, Operator("unused", "unused", {}, {}, (), 0, weights=unused))
        kept = {self._owners[memory] for memory in self._record.kept if memory in self._owners}
        inert = (*self._inputs, *(each.name for each in operators))
        return OperatorGraph(
            tuple(replace(e, kept=e.kept or e.name in kept) for e in operators),
            self._inputs,
            outputs,
            tuple(name for name in inert if name in self._inert),
            loss,
        )

    def _loss_rule(self, call: Call, read: Sequence[View | None]) -> Rule | None:
        """Return the rule of a call of the loss that goes on with a cross entropy, and note it; else None."""
        sources = {view.source.name for view in read if view is not None and not view.source.weight}
        ended = self._loss and not self._operators[self._loss[-1]].makes
        rule = loss_rule(call)
        if rule is None or ended or len(sources) != 1 or (self._loss and sources != {self._loss[-1]}):
            return None
        if call.operation.overloadpacket is torch.ops.aten._log_softmax:
            made = call.made[0]
            self._rows = self._each(made.numel() // made.shape[-1] * max(made.element_size(), 4))
        return rule

    def _cross_entropy(self) -> CrossEntropy | None:
        """Return the loss if it is a cross entropy that alone reads the logits; its operators are whole otherwise.

        So they are if it draws random numbers, which are not seeded as those of layers are.
        """
        of = [self._operators[name] for name in self._loss]
        logits = [source for each in of[:1] for source in each.reads]
        readers = Counter(source for each in self._operators.values() for source in each.reads)
        alone = all(readers[name] == 1 for name in (*logits, *self._loss[:-1]))
        is_whole = self._record.loss_draws or not alone or any(len(each.loops) != 1 for each in of)
        if of and self._rows and not of[-1].makes and not is_whole:
            return CrossEntropy(tuple(self._loss), self._rows)
        self._operators |= {each.name: replace(each, loops={}) for each in of}
        return None

    def _each(self, total: int) -> int:
        """Return a figure per sample."""
        return -(-total // self._samples)

    def _count_uses(self) -> None:
        """Count the operators that read each weight; one that several read is split by none."""
        names = {key: view.source.name for key, view in self._views.items() if view is not None and view.source.weight}
        for call in self._record.calls:
            read = {names[id(each)] for each in call.given if id(each) in names}
            if read and views(call, is_weight=True):
                names |= {id(each): next(iter(read)) for each in call.made}
            else:
                self._uses.update(read)

    def _follow(self, call: Call, *, is_loss: bool) -> None:
        if any(id(each) in self._stale for each in call.given) and views(call, is_weight=False):
            self._stale.update(id(each) for each in call.made)  # autograd makes such views anew; few are read
            return
        read = [self._view(each) for each in call.given]
        written = {id(each) for each in call.given} & {id(each) for each in call.made}
        if all(view is None for view in read) or call.name.endswith("_like") or call.name.startswith("new_"):
            drawn = torch.Tag.nondeterministic_seeded in call.operation.tags
            drawn |= any(memory_of(each) in self._random for each in call.given)
            for each in call.made:
                self._put(each, None)
                if drawn:
                    self._random.add(memory_of(each))
            self.steps.append(Step(call, Role.CONSTANT, (None,) * len(call.made)))
            return
        if written:
            self._write(call)
        first = read[0]
        if first is not None and views(call, first.source.weight):
            found = viewed(call, first)
            self.steps.append(Step(call, Role.VIEW, tuple(found)))
            for each, view in zip(call.made, found, strict=True):
                self._put(each, view)
                if memory_of(each) not in self._owners and self._is_made(first):
                    self._owners[memory_of(each)] = first.source.name
            return
        rule = self._loss_rule(call, read) if is_loss else rule_of(call)
        name = self._operate(call, rule)
        if is_loss and rule is not None:
            self._loss.append(name)

    def _write(self, call: Call) -> None:
        """Mark all other views of memory that is written."""
        memories = {memory_of(each) for each in call.made}
        mine = {id(each) for each in call.made}
        for other in self._record.calls:
            for each in (*other.given, *other.made):
                if memory_of(each) in memories and id(each) not in mine:
                    self._stale.add(id(each))

    def _operate(self, call: Call, rule: Rule | None) -> str:
        """Append the operator of a call, follow its results, and return its name."""
        made = call.made[0]
        closed = rule is None or any(
            view is not None and view.source.weight and self._uses[view.source.name] > 1
            for view in map(self._view, call.given)
        )
        if rule is None:
            reads = tuple((each, (None,) * each.dim()) for each in call.given)
            rule = Rule(call.name.lstrip("_").replace("_", " "), reads, tuple(range(made.dim())))
        listed = [self._view(each) for each, _ in rule.reads]
        if rule.kind == "matmul" and any(view is not None and view.source.weight for view in listed[:2]):
            rule = replace(rule, kind="linear")
        dropped = [each for each in call.given if memory_of(each) in self._random & self._record.kept]
        if dropped:
            rule = replace(rule, kind="dropout")
        forward, to_input, to_weight = self._flops(call)
        view = self._append(
            rule,
            made,
            closed=closed,
            attention=None if rule.keys is None else self._attention(call),
            kept=bool(dropped),
            forward_flops=forward,
            input_gradient_flops=to_input,
            weight_gradient_flops=to_weight,
        )
        self._owners[memory_of(made)] = view.source.name
        if not (any(call.wanted) and made.is_floating_point()):
            self._inert.add(view.source.name)
        views = [view, *(View(view.source, tuple(map(opaque, each.shape))) for each in call.made[1:])]
        self.steps.append(Step(call, Role.OPERATOR, tuple(views), view.source.name, self._operands))
        for each, own in zip(call.made, views, strict=True):
            self._put(each, own)
        return view.source.name

    def _append(self, rule: Rule, made: Tensor, *, closed: bool, **figures: Any) -> View:
        """Append an operator, split by no loop if it is ``closed``; return what it makes."""
        views = [self._view(each) for each, _ in rule.reads]
        found = Alignment(rule, views, made, self._samples, tables=self._sliced)
        loops = {} if closed else dict(found.loops())
        rows: dict[str, tuple[str, ...]] = {}
        for source, row in found.rows():
            rows[source.name] = _agreed(rows.get(source.name, row), row, loops)
        used = {loop for row in rows.values() for loop in row}
        readings = [(s, own) for s, own in found.readings() if rows[s.name][own.axis] == own.loop]
        loops = {loop: parts for loop, parts in loops.items() if loop in used}
        weights = [replace(self._weights[name], loops=row) for name, row in rows.items() if name in self._weights]
        name = self._name(rule.kind, weights)
        reads = {source: row for source, row in rows.items() if source not in self._weights}
        own = tuple(each for each in weights if each.name not in self._listed)
        self._listed.update(each.name for each in own)
        loops = {loop: n for loop, n in loops.items() if loop == TOKEN or self._joins(name, loop, readings, found)}
        self._readings[name] = [(source, own) for source, own in readings if own.loop in loops and own.loop != TOKEN]
        output = self._each(bytes_of((made,)))
        figures["product"] = rule.kind == "linear" and any(len(weight.loops) > 1 for weight in own)
        if rule.kind == "linear" and not figures["product"]:  # plans name the first reader of a matrix only
            loops.pop(TOKEN, None)
        self._operators[name] = Operator(name, rule.kind, loops, reads, found.makes, output, weights=own, **figures)
        self._operands = {id(each): found.pieces(each, axes) for each, axes in rule.reads}
        parts = tuple(loops.get(loop, 1) for loop in found.makes)
        return View(Source(name, found.makes, found.sizes, parts), found.axes)

    def _attention(self, call: Call) -> Attention:
        """Return what attention reads, and how heads may be divided."""
        query, key, value = call.given[:3]
        sizes = (self._each(bytes_of((query,))), self._each(bytes_of((key, value))))
        masked = any(hides_later(each, self._record.calls, self._record.inputs) for each in call.given[3:])
        return Attention(*sizes, gcd(query.shape[1], key.shape[1]), is_causal(call), masked)

    def _joins(self, name: str, loop: str, readings: Sequence[tuple[Source, Reading]], found: Alignment) -> bool:
        """Let an operator be split along a loop if it cuts no axis unevenly, and return whether it may."""
        read = [(own, source.sizes[own.axis]) for source, own in readings if own.loop == loop]
        rows = enumerate(zip(found.makes, found.sizes, strict=True))
        made = [(Reading(name, axis, loop, 0, size, size), size) for axis, (own, size) in rows if own == loop]
        return self._groups.add(name, loop, [*read, *made])

    def _group(self) -> None:
        """Note the groups of all loops; no team splits a loop into more parts than each group has."""
        for name, each in self._operators.items():
            parts = dict(each.loops)
            for source, own in self._readings[name]:
                if own.loop in parts:
                    limits = self._groups.lengths((source.name, own.axis))
                    parts[own.loop] = gcd(parts[own.loop], self._made_parts(source, own.axis), *limits)
            lengths = {loop: self._groups.lengths((name, loop)) for loop in parts if loop != TOKEN}
            parts = {loop: gcd(count, *lengths.get(loop, ())) for loop, count in parts.items()}
            parts = {loop: count for loop, count in parts.items() if count > 1}
            groups = {loop: own for loop, own in lengths.items() if loop in parts and len(own) > 1}
            lowest = {loop: tuple(one // gcd(*own) for one in own) for loop, own in groups.items()}
            self._operators[name] = replace(each, loops=parts, groups=lowest)

    def _made_parts(self, source: Source, axis: int) -> int:
        """Return the number of parts into which an operator splits an axis that it makes; 0 if it does not."""
        maker = self._operators.get(source.name)
        return 0 if maker is None else maker.loops.get(source.loops[axis], 0)

    def _name(self, kind: str, weights: Sequence[Weight]) -> str:
        path = weights[0].name.rpartition(".")[0].strip(".") if weights else ""
        name = path or kind
        self._names[name] += 1
        return name if self._names[name] == 1 and name != INPUT else f"{name}#{self._names[name]}"

    def _flops(self, call: Call) -> tuple[int, int, int]:
        """Return operations per sample: forward, and gradients of inputs and of weights."""
        formula = counting.Counter().flop_registry.get(call.operation.overloadpacket)
        if formula is None:
            return 0, 0, 0
        forward = formula(*call.args, **call.kwargs, out_val=call.made[0] if len(call.made) == 1 else call.made)
        if "attention" in call.name:
            return self._each(forward), self._each(forward * 5 // 2) * any(call.wanted), 0
        to_input = to_weight = 0
        for each, wanted in list(zip(call.given, call.wanted, strict=True))[-2 if "mm" in call.name else 0 :][:2]:
            view = self._view(each)
            to_weight += forward * (wanted and view is not None and view.source.weight)
            to_input += forward * (wanted and view is not None and not view.source.weight)
        return self._each(forward), self._each(to_input), self._each(to_weight)

    def _output(self, tensor: Tensor) -> str:
        """Return the operator that makes an output of the layer, or the input that it is."""
        view = self._view(tensor)
        return self._pass_on(tensor) if view is None or view.source.weight else view.source.name

    def _pass_on(self, tensor: Tensor) -> str:
        """Append an operator that returns a constant, a weight or an input."""
        view = self._append(copied(tensor), tensor, closed=False)
        self.steps.append(Step(None, Role.OPERATOR, (view,), view.source.name, self._operands, tensor))
        return view.source.name

    def _is_made(self, view: View | None) -> bool:
        return view is not None and not view.source.weight and view.source.name in self._operators


def _agreed(one: Sequence[str], other: Sequence[str], loops: Mapping[str, int]) -> tuple[str, ...]:
    """Return the loops of a source that is read twice; an axis that is read in two ways is split in none."""
    return tuple(a if a == b or not {a, b} & loops.keys() else WHOLE for a, b in zip(one, other, strict=True))


def _reached(operators: Mapping[str, Operator], outputs: Set[str]) -> list[Operator]:
    """Return the operators that outputs depend on, and those with weights, in order."""
    needed = {*outputs} | {each.name for each in operators.values() if each.weights}
    for each in reversed(list(operators.values())):
        if each.name in needed:
            needed.update(each.reads)
    return [each for each in operators.values() if each.name in needed]
