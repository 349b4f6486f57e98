"""Operators for all samples of a batch at once, which a mesh may split: `SAMPLE` is a loop of most operators.

Graphs of operators have the figures of one sample. If no tensor of a model has an axis of samples, each gets one, as
the first. What depends on no sample, like a table of positions, is the same for all of them.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace

from pipeplan.core.operators import SAMPLE, Operator, OperatorGraph


def has_samples(graph: OperatorGraph) -> bool:
    """Return whether any tensor has an axis of samples."""
    return any(SAMPLE in row for each in graph.operators for row in (each.makes, *each.reads.values()))


def with_samples(graph: OperatorGraph, plain: bool = False) -> OperatorGraph:
    """Return the operators of a layer whose tensors have an axis of samples, along which nothing may be split."""
    every = _with_axes(graph, set(), plain)
    loops = ({loop: parts for loop, parts in each.loops.items() if loop != SAMPLE} for each in graph.operators)
    return replace(graph, operators=tuple(replace(each, loops=own) for each, own in zip(every, loops, strict=True)))


def by_samples(graph: OperatorGraph, size: int, plain: bool = False) -> OperatorGraph:
    """Return the operators of a layer for ``size`` samples, of which devices may have parts; figures are those of one.

    Operators that compute each sample by itself have the loop. One that reads all samples together has it not, nor has
    the loss, which the whole outputs go to.

    Parameters
    ----------
    plain : bool
        As in `of_batch`.
    """

    def own(each: Operator) -> Operator:
        splits = SAMPLE in each.makes and each.name not in graph.loss_names
        return replace(each, loops={**each.loops, SAMPLE: size}) if splits and _along(each) else each

    found = with_samples(graph, plain)
    return replace(found, operators=tuple(map(own, found.operators)))


def of_batch(graph: OperatorGraph, batch: int, constant: Collection[str] = (), plain: bool = True) -> OperatorGraph:
    """Return the operators of a layer for a batch as their sample.

    An operator has the loop over samples if it reads them along an axis; where what it makes has none, it sums over
    them. One without a rule reads the whole of everything, and has no such loop.

    Parameters
    ----------
    graph : OperatorGraph
    batch : int
    constant : collection of str
        Inputs of the layer that depend on no sample.
    plain : bool
        Whether all tensors are those of one sample, without an axis of samples. Else one without such an axis has all
        samples in some other order, as the tokens of all of them do.
    """
    fixed = {*constant}
    operators = []
    for each in _with_axes(graph, fixed, plain):
        if each.name not in fixed:
            own = replace(
                each,
                loops={SAMPLE: batch, **each.loops} if batch > 1 and _along(each, fixed) else each.loops,
                output=each.output * batch if each.makes else each.output,
                forward_flops=each.forward_flops * batch,
                input_gradient_flops=each.input_gradient_flops * batch,
                weight_gradient_flops=each.weight_gradient_flops * batch,
                attention=each.attention and each.attention.of_samples(batch),
            )
        operators.append(each if each.name in fixed else own)
    inputs = {name: size if name in fixed else size * batch for name, size in graph.inputs.items()}
    loss = None if graph.loss is None else replace(graph.loss, rows=graph.loss.rows * batch)
    return replace(graph, operators=tuple(operators), inputs=inputs, loss=loss)


def _with_axes(graph: OperatorGraph, fixed: set[str], plain: bool) -> Iterator[Operator]:
    """Yield the operators, with an axis of samples if they are ``plain``; add to ``fixed`` those without samples."""
    for each in graph.operators:
        if all(source in fixed for source in each.reads):
            fixed.add(each.name)
            yield each
        elif plain:
            reads = {source: row if source in fixed else (SAMPLE, *row) for source, row in each.reads.items()}
            yield replace(each, reads=reads, makes=(SAMPLE, *each.makes) if each.makes else ())
        else:
            yield each


def _along(operator: Operator, fixed: Collection[str] = ()) -> bool:
    """Return whether an operator reads samples along an axis."""
    return any(SAMPLE in row for source, row in operator.reads.items() if source not in fixed)
