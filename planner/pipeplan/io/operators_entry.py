"""The operators of a layer in a model file: schema, reading and writing."""

from typing import Any, Self

from pydantic import Field, model_validator

from pipeplan.core.operators import INPUT, Attention, CrossEntropy, Operator, OperatorGraph, Weight
from pipeplan.io.schema import Bytes, Count, Flops, Items, Strict, written_bytes, written_flops
from pipeplan.io.text import Line, Row, lean


class WeightEntry(Strict):
    """A parameter of an operator; see `pipeplan.core.operators.Weight`."""

    describes = Weight

    name: str
    loops: Items[str]
    size: Bytes
    shared: bool = False


class AttentionEntry(Strict):
    """What attention reads, and how it may run on parts of the tokens; see `pipeplan.core.operators.Attention`."""

    describes = Attention

    queries: Bytes
    keys: Bytes
    heads: Count = 1
    causal: bool = False
    masked: bool = False


class OperatorEntry(Strict):
    """An operator of a layer; see `pipeplan.core.operators.Operator`."""

    describes = Operator

    name: str
    kind: str
    loops: dict[str, Count] = Field(default_factory=dict)
    groups: dict[str, Items[Count]] = Field(default_factory=dict)
    reads: dict[str, Items[str]]
    makes: Items[str]
    output: Bytes
    kept: bool = False
    weights: Items[WeightEntry] = ()
    forward_flops: Flops = 0
    input_gradient_flops: Flops = 0
    weight_gradient_flops: Flops = 0
    product: bool = False
    attention: AttentionEntry | None = None


class LossEntry(Strict):
    """A loss that a team can compute on split logits; see `pipeplan.core.operators.CrossEntropy`."""

    describes = CrossEntropy

    operators: Items[str]
    rows: Bytes


class OperatorsEntry(Strict):
    """The operators of a layer; see `pipeplan.core.operators.OperatorGraph`.

    ``input`` are the bytes of the only input of a layer that returns what its last operator makes.
    """

    describes = OperatorGraph

    input: Bytes = 0
    inputs: dict[str, Bytes] | None = None
    outputs: Items[str] = ()
    without_gradient: Items[str] = ()
    loss: LossEntry | None = None
    operators: Items[OperatorEntry]

    def graph(self) -> OperatorGraph:
        """Return the operators that this entry describes."""
        return OperatorGraph(
            tuple(map(_operator, self.operators)),
            {INPUT: self.input} if self.inputs is None else self.inputs,
            self.outputs,
            self.without_gradient,
            None if self.loss is None else CrossEntropy(self.loss.operators, self.loss.rows),
        )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.input and self.inputs is not None:
            raise ValueError("either 'input' or 'inputs'")
        return self


def _operator(entry: OperatorEntry) -> Operator:
    row: dict[str, Any] = {name: getattr(entry, name) for name in OperatorEntry.model_fields}
    row["weights"] = tuple(Weight(each.name, each.loops, each.size, each.shared) for each in entry.weights)
    if entry.attention is not None:
        own = entry.attention
        row["attention"] = Attention(own.queries, own.keys, own.heads, own.causal, own.masked)
    return Operator(**row)


def operators_data(graph: OperatorGraph) -> dict[str, Any]:
    """Return the plain data of the operators of a layer, as in a file."""
    simple = tuple(graph.inputs) == (INPUT,)
    last = graph.outputs == (graph.operators[-1].name,)
    sizes = {name: written_bytes(size) for name, size in graph.inputs.items()}
    loss = graph.loss and Row(operators=Line(graph.loss.operators), rows=written_bytes(graph.loss.rows))
    return (
        lean(input=sizes[INPUT] if simple and graph.inputs[INPUT] else "")
        | ({} if simple else {"inputs": Row(sizes)})
        | lean(outputs=Line(() if last else graph.outputs), without_gradient=Line(graph.without_gradient), loss=loss)
        | {"operators": [_operator_data(each) for each in graph.operators]}
    )


def _operator_data(each: Operator) -> Row:
    weights = [
        Row(name=w.name, loops=Line(w.loops), size=written_bytes(w.size), **lean(shared=w.shared or None))
        for w in each.weights
    ]
    flops = {
        name: written_flops(getattr(each, name))
        for name in ("forward_flops", "input_gradient_flops", "weight_gradient_flops")
        if getattr(each, name)
    }
    own = each.attention and Row(
        queries=written_bytes(each.attention.queries),
        keys=written_bytes(each.attention.keys),
        **lean(heads=each.attention.heads if each.attention.heads > 1 else None),
        **lean(causal=each.attention.causal or None, masked=each.attention.masked or None),
    )
    return Row(
        name=each.name,
        kind=each.kind,
        **lean(loops=Row(each.loops), groups=Row({loop: Line(groups) for loop, groups in each.groups.items()})),
        reads=Row({source: Line(axes) for source, axes in each.reads.items()}),
        makes=Line(each.makes),
        output=written_bytes(each.output),
        **lean(kept=each.kept or None, weights=weights),
        **flops,
        **lean(product=each.product or None, attention=own),
    )
