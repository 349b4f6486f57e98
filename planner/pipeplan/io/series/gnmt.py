"""GNMT (Wu et al., 2016) as in the open implementation that PipeDream profiled: hidden size 1024, vocabulary 32,320.

Encoder: embedding, one bidirectional LSTM layer, then L − 1 layers of which the first reads both directions. Decoder:
embedding, one layer with attention, then L − 1 layers that read the previous layer and the attention context. An LSTM
layer of n inputs and h units costs 2 · 4 h (n + h) operations per token forward, the same for each of its gradients.
While it computes backward there are gradients of its output and of its gates, and of a weight; in the classifier, where
the logits are gone by then, those of the logits and of their log-softmax.
"""

from pipeplan.core.errors import InputError
from pipeplan.core.model import Layer, Model, Work

ITEM = 4
HIDDEN = 1024
VOCABULARY = 32_320
TOKENS = 50
"""Tokens of a source or target sentence; one sample is a pair of sentences."""


def _lstm(name: str, width: int, inputs: tuple[str, ...], directions: int = 1, contexts: int = 0) -> Layer:
    """Return an LSTM layer. It saves gates, cell and output per token and direction, with attention the context too."""
    h = HIDDEN
    flops = directions * TOKENS * 2 * 4 * h * (width + h)
    parameters = ITEM * directions * (4 * h * (width + h) + 8 * h)
    output = ITEM * TOKENS * h * (directions + contexts)
    saved = ITEM * TOKENS * h * (6 * directions + contexts)
    if contexts:  # query and key projections, scores, weighted sum
        flops += TOKENS * (2 * 2 * h * h + 2 * 2 * TOKENS * h)
        parameters += ITEM * (2 * h * h + 2 * h)
    space, weight = ITEM * TOKENS * h * 5 * directions, ITEM * 4 * h * max(width, h)
    work = Work(flops, flops, flops, output, saved, workspace=space, workspace_fixed=weight)
    return Layer(name, parameters, inputs, work, "LSTM")


def _embedding(name: str) -> Layer:
    size = ITEM * TOKENS * HIDDEN
    weight = ITEM * VOCABULARY * HIDDEN
    return Layer(name, weight, (), Work(0, 0, TOKENS * HIDDEN, size, size, workspace_fixed=weight), "Embedding")


def gnmt(depth: int) -> Model:
    """Build GNMT with ``depth`` LSTM layers, half of them in the encoder.

    Raises
    ------
    InputError
        If the depth is odd or below 4: each half needs its special first layer and at least one more.
    """
    half = depth // 2
    if depth < 4 or depth % 2:
        raise InputError(f"gnmt-{depth}: GNMT has an even number of LSTM layers, 4 or more, half in the encoder")
    layers = [_embedding("encoder.embedding"), _lstm("encoder.0", HIDDEN, ("encoder.embedding",), directions=2)]
    for i in range(1, half):
        layers.append(_lstm(f"encoder.{i}", (2 if i == 1 else 1) * HIDDEN, (f"encoder.{i - 1}",)))
    layers.append(_embedding("decoder.embedding"))
    layers.append(_lstm("decoder.0", HIDDEN, (f"encoder.{half - 1}", "decoder.embedding"), contexts=1))
    for i in range(1, half):
        sources = ("decoder.0",) if i == 1 else ("decoder.0", f"decoder.{i - 1}")
        layers.append(_lstm(f"decoder.{i}", 2 * HIDDEN, sources))
    flops = 2 * TOKENS * HIDDEN * VOCABULARY
    logits = ITEM * TOKENS * VOCABULARY
    work = Work(flops, flops, flops, logits, 2 * logits, workspace=logits)
    parameters = ITEM * (HIDDEN + 1) * VOCABULARY
    layers.append(Layer("classifier", parameters, (f"decoder.{half - 1}",), work, "Linear + log-softmax"))
    note = f"one sample is a pair of sentences of {TOKENS} tokens; dropout and residual additions are left out"
    return Model(f"gnmt-{depth}", tuple(layers), notes=(note,))
