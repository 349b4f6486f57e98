"""Transformers: BERT (Devlin et al., 2019), GPT-2 (Radford et al., 2019), GPT-3 (Brown et al., 2020), Llama 3 (2024).

One sample is one sequence of s tokens; h hidden size, k width of keys and of values, f inner width, V vocabulary, e
bytes of a number. Operations of a block forward, a token: 2 for each weight, and 4 s h for scores and weighted sum
(nothing is saved by a causal mask). The input gradient costs 2 for each weight and twice the attention, the weight
gradient 2 for each weight. Saved bytes of a block, a token, with an attention that keeps no s × s matrix and without
dropout:

    e (2 h two norms, 2 h inputs of attention and of the inner part, h + 2 k queries, keys, values, h attention's
       output, 2 f or 3 f inner part)

For GPT with f = 4 h and 2-byte numbers this is 32 h: the 34 h of Korthikanti et al. (2022, section 4.1) less the two
dropout masks. Head and embedding may share one matrix (``tied``); it then counts as the embedding's, and ties the two.
"""

from dataclasses import dataclass

from pipeplan.core.model import Layer, Model, Tie, Work
from pipeplan.costs.layers import item_size


@dataclass(frozen=True)
class Shape:
    """Published hyper-parameters.

    ``positions`` is the number of learned positions (0 for rotary ones), ``segments`` that of learned segments;
    ``gated`` inner parts have three matrices; ``biased`` layers have biases and two-parameter norms; ``transform`` is
    a square layer before the head (BERT); ``dtype`` the number format.
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
    gated: bool = False
    biased: bool = True
    tied: bool = True
    transform: bool = False
    dtype: str = "bfloat16"


SHAPES = (
    Shape(
        "bert-large", "Devlin et al., 2019", 24, 1024, 1024, 4096, 30_522, 512,
        positions=512, segments=2, transform=True, dtype="float32",
    ),
    Shape("gpt2-small", "Radford et al., 2019", 12, 768, 768, 3072, 50_257, 1024, positions=1024, dtype="float32"),
    Shape("gpt2-xl", "Radford et al., 2019", 48, 1600, 1600, 6400, 50_257, 1024, positions=1024, dtype="float16"),
    Shape("gpt3-175b", "Brown et al., 2020", 96, 12_288, 12_288, 49_152, 50_257, 2048, positions=2048),
    Shape(
        "llama3-8b", "Llama 3 model card, 2024", 32, 4096, 1024, 14_336, 128_256, 8192,
        gated=True, biased=False, tied=False,
    ),
    Shape(
        "llama3-70b", "Llama 3 model card, 2024", 80, 8192, 1024, 28_672, 128_256, 8192,
        gated=True, biased=False, tied=False,
    ),
)  # fmt: skip


def _norm(shape: Shape) -> int:
    return (2 if shape.biased else 1) * shape.hidden


def _embedding(shape: Shape, e: int) -> Layer:
    rows = shape.vocabulary + shape.positions + shape.segments
    numbers = rows * shape.hidden + (_norm(shape) if shape.transform else 0)
    size = e * shape.tokens * shape.hidden
    return Layer("embedding", e * numbers, (), Work(0, 0, shape.tokens * shape.hidden, size, size), "Embedding")


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
    )
    source = f"block.{i - 1}" if i else "embedding"
    return Layer(f"block.{i}", e * (weights + biases + 2 * _norm(shape)), (source,), work, "Transformer block")


def _head(shape: Shape, e: int) -> Layer:
    """Final norm, projection to the vocabulary, cross-entropy (which keeps a float32 log-softmax)."""
    h, v, s = shape.hidden, shape.vocabulary, shape.tokens
    weights = h * v + (h * h if shape.transform else 0)
    own = (0 if shape.tied else h * v) + (h * h + h + v if shape.transform else 0) + _norm(shape)
    flops = 2 * s * weights
    work = Work(flops, flops, flops, e * s * v, s * (e * (2 * h if shape.transform else h) + e * v + 4 * v))
    return Layer("head", e * own, (f"block.{shape.blocks - 1}",), work, "Norm + Linear + loss")


def transformer(shape: Shape) -> Model:
    """Model of embedding, blocks and head."""
    e = item_size(shape.dtype)
    layers = (_embedding(shape, e), *(_block(shape, e, i) for i in range(shape.blocks)), _head(shape, e))
    notes = (f"hyper-parameters: {shape.source}; one sample is one sequence of {shape.tokens} tokens",)
    ties = (Tie(("embedding", "head"), e * shape.vocabulary * shape.hidden),) if shape.tied else ()
    return Model(shape.name, layers, dtype=shape.dtype, notes=notes, ties=ties)
