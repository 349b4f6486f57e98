"""Operators of a layer: what each reads and makes, and along which loops a team of devices may split it.

An operator is described by its loops, as in an einsum. A linear map of s tokens from h to f features::

    makes   [token, f]          loops: token, h, f; h is summed over
    reads   [token, h]
    weight  [f, h]              bias [f]

Devices of a team split an operator along one loop, or all of them run the whole of it. The loop says which tensors each
of them needs and makes: a tensor that has the loop is split along that axis, another one is whole; and what is made is
a part of a sum where the loop is not among the axes of the output.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from pipeplan.core.errors import InputError
from pipeplan.core.figures import whole
from pipeplan.core.grouped_axis import GroupedAxis, ShardAxis, check_groups
from pipeplan.core.wording import hint, some

INPUT = "input"
"""Name of a layer's first input, where operators say what they read; others are ``input#2``, ``input#3``."""
SAMPLE = "sample"
"""The loop over samples, where a tensor has an axis of them."""
TOKEN = "token"
"""The loop over the tokens of a sequence, axis 1 of the tensors that pass between layers.

Axes have this name wherever they are the tokens; only operators that may run on a part of the tokens have the loop.
"""


@dataclass(frozen=True, slots=True)
class Attention:
    """What attention reads, for one sample, and what it takes on a part of the tokens.

    Attributes
    ----------
    queries, keys : int
        Bytes of the queries, and of keys and values together.
    heads : int
        Into how many parts heads may be divided, those of keys and values too; 1 if they may not.
    causal : bool
        Whether queries attend to no later keys, and no work is spent on these.
    masked : bool
        Whether queries attend to no later keys where nothing is padded, and work on these is counted all the same.
    """

    queries: int
    keys: int
    heads: int = 1
    causal: bool = False
    masked: bool = False

    @property
    def looks_back(self) -> bool:
        """Whether queries attend to no later keys."""
        return self.causal or self.masked

    def of_samples(self, count: int) -> "Attention":
        """Return what it is for so many samples as one."""
        return replace(self, queries=self.queries * count, keys=self.keys * count)


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter of an operator.

    Attributes
    ----------
    name : str
        Name within the layer, like ``'query.weight'``.
    loops : tuple of str
        The loop of each axis.
    size : int
        Bytes.
    shared : bool
        Whether the layer shares it with another one (see `pipeplan.core.model.Tie`); it counts for the first of them.
    """

    name: str
    loops: tuple[str, ...]
    size: int
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a layer; bytes and operations are those of one sample.

    Attributes
    ----------
    name : str
    kind : str
        Description for reports: ``'linear'``, ``'attention'``.
    loops : mapping of str to int
        Loops along which the operator may be split, and the number of parts that each has: a length, or of attention
        the number of heads. A team splits a loop if its size divides that number.
    reads : mapping of str to tuple of str
        The operators and inputs of the layer that it reads, and the loop of each axis.
    makes : tuple of str
        Loop of each axis of the output.
    output : int
        Bytes of the output.
    kept : bool
        Whether the output is kept until the backward, by this operator or by one that reads it.
    weights : tuple of Weight
    forward_flops, input_gradient_flops, weight_gradient_flops : int
        A multiply-add counts as two.
    product : bool
        Whether it is a product of matrices.
    attention : Attention or None
        Of attention.
    groups : mapping of str to tuple of int
        Loops whose axes, of weights and of the output, consist of several groups, one behind the other, like those of
        queries, keys and values in one matrix: their relative lengths. A member has its part of each of them.
    """

    name: str
    kind: str
    loops: Mapping[str, int]
    reads: Mapping[str, tuple[str, ...]]
    makes: tuple[str, ...]
    output: int
    kept: bool = False
    weights: tuple[Weight, ...] = ()
    forward_flops: int = 0
    input_gradient_flops: int = 0
    weight_gradient_flops: int = 0
    product: bool = False
    attention: Attention | None = None
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def by_plan(self) -> bool:
        """Whether it gathers all tokens unless a plan says that it runs on parts: products of matrices and attention.

        All others run on parts where they can.
        """
        return self.product or self.attention is not None


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """The operators of a loss that a team can compute on logits split along their classes.

    Where the first one is split, so are all, each along its only loop; else none is.

    Attributes
    ----------
    operators : tuple of str
        Names, in order: each reads the one before it only, the first one the logits, and the last one makes a number.
    rows : int
        Bytes of one number for each row of logits, of a sample. Members exchange two: the largest logit of each row,
        and the sum of its exponentials.
    """

    operators: tuple[str, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class OperatorGraph:
    """The operators of a layer in topological order.

    Attributes
    ----------
    operators : tuple of Operator
    inputs : mapping of str to int
        Bytes of each input of the layer for one sample, in the order of its arguments.
    outputs : tuple of str
        The operators that make the layer's outputs, or inputs that it passes on, in the order of its results; by
        default the last operator.
    without_gradient : tuple of str
        Operators and inputs whose tensors have no gradient, as far as that is known: numbers of tokens, masks.
    loss : CrossEntropy or None
        Of a model's last layer: its loss, if logits split along their classes suffice for it.

    Raises
    ------
    InputError
        If there is no operator, names repeat, an operator reads what no earlier one makes, an output is not made, a
        figure is negative, a loop is grouped that is not split, or the loss is none of the kind.
    """

    operators: tuple[Operator, ...]
    inputs: Mapping[str, int] = field(default_factory=lambda: {INPUT: 0})
    outputs: tuple[str, ...] = ()
    without_gradient: tuple[str, ...] = ()
    loss: CrossEntropy | None = None

    def __post_init__(self) -> None:
        if not self.operators:
            raise InputError("a list of operators has none; leave it out")
        for name, size in self.inputs.items():
            whole(size, f"bytes of a layer's {name}")
        made: dict[str, int] = {}
        for each in self.operators:
            what = f"operator {each.name!r}"
            if not each.name or each.name in (INPUT, *self.inputs, *made):
                raise InputError(f"{what}: names of operators differ, and none is empty, {INPUT!r} or another input")
            known = (*self.inputs, *made)
            for source, axes in each.reads.items():
                if source not in known:
                    raise InputError(f"{what} reads {source!r}, which no earlier operator makes{hint(source, known)}")
                if source in made and len(axes) != made[source]:
                    raise InputError(f"{what} reads {source!r} with {len(axes)} axes, and it has {made[source]}")
            for name in ("output", "forward_flops", "input_gradient_flops", "weight_gradient_flops"):
                whole(getattr(each, name), f"{what}: {name}")
            for weight in each.weights:
                whole(weight.size, f"{what}: bytes of {weight.name!r}")
            used = {loop for row in (each.makes, *each.reads.values()) for loop in row}
            used |= {loop for weight in each.weights for loop in weight.loops}
            for loop, parts in each.loops.items():
                whole(parts, f"{what}: parts of loop {loop!r}", 1)
                if loop not in used:
                    raise InputError(f"{what}: no axis has the loop {loop!r}{hint(loop, used)}")
            if each.by_plan and any(weight.name == each.name for own in self.operators for weight in own.weights):
                raise InputError(f"{what}: a product or attention has the name of no weight")
            if each.attention is not None:
                for name in ("queries", "keys", "heads"):
                    whole(getattr(each.attention, name), f"{what}: {name} of its attention", int(name == "heads"))
                if each.weights or each.product:
                    raise InputError(f"{what}: attention is no product, and has no weights")
            if each.product and not any(len(weight.loops) > 1 for weight in each.weights):
                raise InputError(f"{what}: a product has a matrix, a weight with several loops; plans name it by that")
            if each.by_plan and TOKEN in each.loops and TOKEN not in each.makes:
                raise InputError(f"{what}: it may run on a part of the tokens, and makes no axis {TOKEN!r}")
            _check_groups(each, what)
            made[each.name] = len(each.makes)
        object.__setattr__(self, "outputs", self.outputs or (self.operators[-1].name,))
        known = (*self.inputs, *made)
        for name in (*self.outputs, *self.without_gradient):
            if name not in known:
                raise InputError(f"a layer's output {name!r} is no operator, nor an input{hint(name, known)}")
        for fault in self._loss_faults():
            raise InputError(f"a loss on split logits: {fault}")

    def _loss_faults(self) -> Iterator[str]:
        """Yield what is wrong with the operators of the loss."""
        if self.loss is None:
            return
        whole(self.loss.rows, "a loss on split logits: bytes of a number for each row")
        of, before = {each.name: each for each in self.operators}, ""
        if any(weight.name == self.loss_name for weight in self.weights):
            yield f"{self.loss_name!r} is also the name of a weight"
        if not self.loss.operators:
            yield "it has no operators; leave it out"
        for name in self.loss.operators:
            if name not in of:
                yield f"{name!r} is none of the operators{hint(name, of)}"
                return
            each = of[name]
            readers = [other.name for other in self.operators if name in other.reads]
            if len(each.reads) != 1 or before not in ("", *each.reads):
                yield f"{name!r} reads {some(tuple(each.reads)) or 'nothing'}, and not only {before or 'the logits'}"
            classes = [loop for loop in each.loops if loop != SAMPLE]
            if len(classes) != 1 or each.weights:
                yield f"{name!r} has {len(classes)} loops and {len(each.weights)} weights, and not a single loop"
            if any(row.count(loop) != 1 for row in each.reads.values() for loop in classes):
                yield f"{name!r} reads no axis with its loop, the classes"
            if name != self.loss.operators[-1]:
                if not set(classes) <= set(each.makes):
                    yield f"{name!r} makes no axis with its loop, the classes"
                if len(readers) != 1 or name in self.outputs:
                    yield f"{name!r} is read by others than the next one"
            elif each.makes:
                yield f"{name!r}, the last one, makes {len(each.makes)} axes, and not a number"
            before = name

    @property
    def loss_name(self) -> str:
        """The operator whose signature says whether the loss is split; empty if none can be."""
        return next(iter(self.loss_names), "")

    @property
    def loss_names(self) -> tuple[str, ...]:
        """The operators of the loss that are split together."""
        return () if self.loss is None else self.loss.operators

    @property
    def whole(self) -> frozenset[str]:
        """The tensors that are whole on every member of a team: inputs, outputs and what no operator reads."""
        read = {source for each in self.operators for source in each.reads}
        unread = (each.name for each in self.operators if each.name not in read)
        return frozenset((*self.inputs, *self.outputs, *unread))

    @property
    def weights(self) -> tuple[Weight, ...]:
        """All weights."""
        return tuple(weight for each in self.operators for weight in each.weights)

    @property
    def parameters(self) -> int:
        """Bytes of all weights."""
        return sum(weight.size for weight in self.weights)

    def shard_axis(self, name: str, axis: int) -> ShardAxis:
        """Return how a weight is split along an axis: whether its groups are, one by one."""
        found = ((each.groups.get(w.loops[axis]), w) for each in self.operators for w in each.weights if w.name == name)
        groups = next((groups for groups, _ in found), None)
        return GroupedAxis(axis, groups) if groups else axis

    def counted(self, parameters: int) -> tuple[Weight, ...]:
        """Return the weights that make up a layer's ``parameters``: all, or those not shared with an earlier one."""
        return tuple(weight for weight in self.weights if self.parameters == parameters or not weight.shared)


def _check_groups(operator: Operator, what: str) -> None:
    """Refuse groups of loops that are not split, and of weights that cannot be divided like them."""
    for loop, groups in operator.groups.items():
        check_groups(groups, f"{what}: loop {loop!r}")
        if loop not in operator.loops:
            raise InputError(f"{what}: loop {loop!r} has groups and is not split{hint(loop, operator.loops)}")
        for weight in operator.weights:
            if loop in weight.loops and weight.size % sum(groups):
                raise InputError(
                    f"{what}: the {weight.size} bytes of {weight.name!r} have no groups of lengths "
                    f"{' : '.join(map(str, groups))} along {loop!r}"
                )


def tokens_of(graphs: Iterable[OperatorGraph]) -> int:
    """Return the tokens of a sample, the most that an operator may run on in parts; 0 if there are none."""
    return max((each.loops.get(TOKEN, 0) for graph in graphs for each in graph.operators), default=0)
