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
    operators = tuple(_operators(graph, batch, fixed, plain))
    inputs = {name: size if name in fixed else size * batch for name, size in graph.inputs.items()}
    loss = None if graph.loss is None else replace(graph.loss, rows=graph.loss.rows * batch)
    return replace(graph, operators=operators, inputs=inputs, loss=loss)


def _operators(graph: OperatorGraph, batch: int, fixed: set[str], plain: bool) -> Iterator[Operator]:
    """Yield the operators; add to ``fixed`` those that depend on no sample."""
    for each in graph.operators:
        if all(source in fixed for source in each.reads):
            fixed.add(each.name)
            yield each
            continue
        reads, makes = each.reads, each.makes
        if plain:
            reads = {source: row if source in fixed else (SAMPLE, *row) for source, row in each.reads.items()}
            makes = (SAMPLE, *makes) if makes else ()
        along = any(SAMPLE in row for source, row in reads.items() if source not in fixed)
        yield replace(
            each,
            loops={SAMPLE: batch, **each.loops} if along and batch > 1 else each.loops,
            reads=reads,
            makes=makes,
            output=each.output * batch if makes else each.output,
            forward_flops=each.forward_flops * batch,
            input_gradient_flops=each.input_gradient_flops * batch,
            weight_gradient_flops=each.weight_gradient_flops * batch,
        )
