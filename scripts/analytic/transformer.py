"""Transformers: BERT (Devlin et al., 2019), GPT-2 (Radford et al., 2019), GPT-3 (Brown et al., 2020), Llama 3 (2024).

One sample is one sequence of s tokens; h hidden size, k width of keys and of values, f inner width, V vocabulary, e
bytes of a number. Operations of a block forward, a token: 2 for each weight, and 4 s h for scores and weighted sum
(nothing is saved by a causal mask). The input gradient costs 2 for each weight and twice the attention, the weight
gradient 2 for each weight. Saved bytes of a block, a token, with an attention that keeps no s × s matrix and without
dropout:

    e (2 h two norms, 2 h inputs of attention and of the inner part, h + 2 k queries, keys, values, h attention's
       output, 2 f or 3 f inner part)

For GPT with f = 4 h and 2-byte numbers this is 32 h: the 34 h of Korthikanti et al. (2022, section 4.1) less the two
dropout masks. While a block's backward runs there are, beyond what it still keeps, at most 5 h numbers a token, and
the gradient of its largest matrix. A loss in float32 makes the gradient of the log-softmax and that of the logits, 8 V
bytes a token; the logits, which count as saved, are gone by then. Head and embedding may share one matrix (``tied``);
it then counts as the embedding's, and ties the two.
"""

from dataclasses import dataclass
from typing import Any

from pipeplan.core.model import Layer, Model, Tie, Work
from pipeplan.core.operators import INPUT, TOKEN, Attention, CrossEntropy, Operator, OperatorGraph, Weight
from pipeplan.costs.layers import item_size


@dataclass(frozen=True)
class Shape:
    """Published hyper-parameters.

    ``positions`` is the number of learned positions (0 for rotary ones), ``segments`` that of learned segments;
    ``gated`` inner parts have three matrices; ``biased`` layers have biases and two-parameter norms; ``transform`` is
    a square layer before the head (BERT, whose attention alone looks ahead); ``dtype`` the number format; ``key_heads``
    the heads of keys and values, if there are fewer of them than ``heads``.
    """

    name: str
    source: str
    blocks: int
    hidden: int
    keys: int
    inner: int
    vocabulary: int
    tokens: int
    positions: int = 0
    segments: int = 0
    heads: int = 1
    key_heads: int = 0
    gated: bool = False
    biased: bool = True
    tied: bool = True
    transform: bool = False
    dtype: str = "bfloat16"


SHAPES = (
    Shape(
        "bert-large", "Devlin et al., 2019", 24, 1024, 1024, 4096, 30_522, 512,
        positions=512, segments=2, transform=True, heads=16, dtype="float32",
    ),
    Shape(
        "gpt2-small", "Radford et al., 2019", 12, 768, 768, 3072, 50_257, 1024,
        positions=1024, heads=12, dtype="float32",
    ),
    Shape(
        "gpt2-xl", "Radford et al., 2019", 48, 1600, 1600, 6400, 50_257, 1024,
        positions=1024, heads=25, dtype="float16",
    ),
    Shape("gpt3-175b", "Brown et al., 2020", 96, 12_288, 12_288, 49_152, 50_257, 2048, positions=2048, heads=96),
    Shape(
        "llama3-8b", "Llama 3 model card, 2024", 32, 4096, 1024, 14_336, 128_256, 8192,
        heads=32, key_heads=8, gated=True, biased=False, tied=False,
    ),
    Shape(
        "llama3-8b-32k", "Llama 3.1 model card, 2024", 32, 4096, 1024, 14_336, 128_256, 32_768,
        heads=32, key_heads=8, gated=True, biased=False, tied=False,
    ),
    Shape(
        "llama3-70b", "Llama 3 model card, 2024", 80, 8192, 1024, 28_672, 128_256, 8192,
        heads=64, key_heads=8, gated=True, biased=False, tied=False,
    ),
    Shape(
        "llama3-405b", "Llama 3.1 model card, 2024", 126, 16_384, 1024, 53_248, 128_256, 8192,
        heads=128, key_heads=8, gated=True, biased=False, tied=False,
    ),
)  # fmt: skip


def _norm(shape: Shape) -> int:
    return (2 if shape.biased else 1) * shape.hidden


def _embedding(shape: Shape, e: int) -> Layer:
    rows = shape.vocabulary + shape.positions + shape.segments
    numbers = rows * shape.hidden + (_norm(shape) if shape.transform else 0)
    size = e * shape.tokens * shape.hidden
    return Layer(
        "embedding",
        e * numbers,
        (),
        Work(0, 0, shape.tokens * shape.hidden, size, size, workspace_fixed=e * shape.vocabulary * shape.hidden),
        "Embedding",
        "embedding",
    )


def _block(shape: Shape, e: int, i: int) -> Layer:
    h, k, f, s = shape.hidden, shape.keys, shape.inner, shape.tokens
    weights = 2 * h * h + 2 * h * k + (3 if shape.gated else 2) * h * f
    biases = (2 * h + 2 * k) + f + h if shape.biased else 0
    attention = 4 * s * h
    saved = 4 * h + (h + 2 * k) + h + (3 if shape.gated else 2) * f
    work = Work(
        forward_flops=s * (2 * weights + attention),
        input_gradient_flops=s * (2 * weights + 2 * attention),
        weight_gradient_flops=s * 2 * weights,
        output=e * s * h,
        saved=e * s * saved,
        workspace=5 * e * s * h,
        workspace_fixed=e * h * f,
    )
    source = f"block.{i - 1}" if i else "embedding"
    return Layer(f"block.{i}", e * (weights + biases + 2 * _norm(shape)), (source,), work, "Transformer block", "block")


def _head(shape: Shape, e: int) -> Layer:
    """Final norm, projection to the vocabulary, cross-entropy (which keeps a float32 log-softmax)."""
    h, v, s = shape.hidden, shape.vocabulary, shape.tokens
    weights = h * v + (h * h if shape.transform else 0)
    own = (0 if shape.tied else h * v) + (h * h + h + v if shape.transform else 0) + _norm(shape)
    flops = 2 * s * weights
    saved = s * (e * (2 * h if shape.transform else h) + e * v + 4 * v)
    work = Work(flops, flops, flops, e * s * v, saved, workspace=s * v * (8 - e))
    return Layer("head", e * own, (f"block.{shape.blocks - 1}",), work, "Norm + Linear + loss", "head")


def transformer(shape: Shape) -> Model:
    """Model of embedding, blocks and head."""
    e = item_size(shape.dtype)
    layers = (_embedding(shape, e), *(_block(shape, e, i) for i in range(shape.blocks)), _head(shape, e))
    notes = (f"hyper-parameters: {shape.source}; one sample is one sequence of {shape.tokens} tokens",)
    ties = (Tie(("embedding", "head"), e * shape.vocabulary * shape.hidden),) if shape.tied else ()
    graphs = {"embedding": _Operators(shape, e).embedding(), "block": _Operators(shape, e).block()}
    graphs["head"] = _Operators(shape, e).head()
    return Model(shape.name, layers, dtype=shape.dtype, notes=notes, ties=ties, operators=graphs)


class _Operators:
    """Operators of the layers; bytes and operations of one sample."""

    def __init__(self, shape: Shape, e: int) -> None:
        self.shape, self.e = shape, e
        self.rows: list[Operator] = []

    def embedding(self) -> OperatorGraph:
        """Tokens, positions and segments, and BERT's norm."""
        shape, e, h = self.shape, self.e, self.shape.hidden
        size = e * shape.tokens * h
        axes, words, s = (TOKEN, "feature"), shape.vocabulary, shape.tokens
        learned = {"positions": shape.positions, "segments": shape.segments}
        others = tuple(Weight(f"{name}.weight", ("row", "feature"), e * n * h) for name, n in learned.items() if n)
        self._add(
            "lookup", "embedding", {"feature": h, "vocabulary": words, TOKEN: s}, {INPUT: (TOKEN,)}, axes, size,
            kept=not (others or shape.transform), weight_gradient_flops=shape.tokens * h,
            weights=(Weight("tokens.weight", ("vocabulary", "feature"), e * words * h, shape.tied),),
        )  # fmt: skip
        if others:
            kept = not shape.transform
            loops = {"feature": h, TOKEN: s}
            self._add("places", "embedding", loops, {"lookup": axes}, axes, size, kept=kept, weights=others)
        if shape.transform:
            self._norm("norm", "places")
        return OperatorGraph(tuple(self.rows))

    def block(self) -> OperatorGraph:
        """Attention and inner part, each behind a norm and beside a residual."""
        shape, e, h, k, f, s = self.shape, self.e, *self._widths()
        self._norm("norm_1", INPUT)
        for name, width in (("query", h), ("key", k), ("value", k)):
            self._linear(name, "norm_1", h, width)
        own, heads = (TOKEN, "head"), shape.key_heads or shape.heads
        self._add(
            "attention", "attention", {"head": heads, TOKEN: s},
            dict.fromkeys(("query", "key", "value"), own), own, e * s * h, kept=True,
            forward_flops=4 * s * s * h, input_gradient_flops=8 * s * s * h,
            attention=Attention(e * s * h, 2 * e * s * k, heads, masked=not shape.transform),
        )  # fmt: skip
        self._linear("out", "attention", h, h, kept=False)
        self._elementwise("residual_1", (INPUT, "out"), h)
        self._norm("norm_2", "residual_1")
        for name in ("gate", "up") if shape.gated else ("up",):
            self._linear(name, "norm_2", h, f)
        self._elementwise("inner", ("gate", "up") if shape.gated else ("up",), f, feature=f)
        self._linear("down", "inner", f, h, kept=False)
        self._elementwise("residual_2", ("residual_1", "down"), h)
        return OperatorGraph(tuple(self.rows), {INPUT: e * s * h})

    def head(self) -> OperatorGraph:
        """Final norm, BERT's square layer, projection to the vocabulary, cross-entropy."""
        shape, e, h, _, _, s = self.shape, self.e, *self._widths()
        before = "norm"
        if shape.transform:
            self._linear("transform", INPUT, h, h)
            self._norm("norm", "transform")
        else:
            self._norm("norm", INPUT)
        self._linear("projection", before, h, shape.vocabulary, bias=shape.transform, shared=shape.tied)
        axes, loops, words = (TOKEN, "vocabulary"), {"vocabulary": shape.vocabulary}, shape.vocabulary
        self._add("log_softmax", "softmax", loops, {"projection": axes}, axes, 4 * s * words, kept=True)
        self._add("loss", "loss", loops, {"log_softmax": axes}, (), 4)
        loss = CrossEntropy(("log_softmax", "loss"), 4 * s)
        return OperatorGraph(tuple(self.rows), {INPUT: e * s * h}, loss=loss)

    def _widths(self) -> tuple[int, int, int, int]:
        return self.shape.hidden, self.shape.keys, self.shape.inner, self.shape.tokens

    def _add(self, name: str, kind: str, loops: dict[str, int], reads: dict[str, tuple[str, ...]],
             makes: tuple[str, ...], output: int, **figures: Any) -> None:  # fmt: skip
        self.rows.append(Operator(name, kind, loops, reads, makes, output, **figures))

    def _norm(self, name: str, source: str) -> None:
        shape, axes = self.shape, (TOKEN, "feature")
        weights = (Weight(f"{name}.weight", ("feature",), self.e * _norm(shape)),)
        self._add(
            name, "norm", {TOKEN: shape.tokens}, {source: axes}, axes, self.e * shape.tokens * shape.hidden, kept=True,
            weights=weights,
        )  # fmt: skip

    def _linear(
        self, name: str, source: str, width: int, out: int, *, kept: bool = True, bias: bool | None = None,
        shared: bool = False,
    ) -> None:  # fmt: skip
        flops, s = 2 * self.shape.tokens * width * out, self.shape.tokens
        weights = [Weight(f"{name}.weight", ("out", "in"), self.e * width * out, shared)]
        if self.shape.biased if bias is None else bias:
            weights.append(Weight(f"{name}.bias", ("out",), self.e * out))
        self._add(
            name, "linear", {"out": out, "in": width, TOKEN: s}, {source: (TOKEN, "in")}, (TOKEN, "out"),
            self.e * self.shape.tokens * out, kept=kept, weights=tuple(weights),
            forward_flops=flops, input_gradient_flops=flops, weight_gradient_flops=flops, product=True,
        )  # fmt: skip

    def _elementwise(self, name: str, sources: tuple[str, ...], width: int, **loops: int) -> None:
        axes = (TOKEN, "feature")
        self._add(
            name,
            "elementwise",
            {**loops, TOKEN: self.shape.tokens},
            dict.fromkeys(sources, axes),
            axes,
            self.e * self.shape.tokens * width,
            kept=True,
        )
