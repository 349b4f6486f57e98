"""Layers: the smallest units that a plan assigns to stages, their costs and work, and the ties between them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import isqrt

from pipeplan.core.wording import hint


@dataclass(frozen=True, slots=True)
class LayerCost:
    """Costs of one layer on one kind of device, for one micro-batch.

    Attributes
    ----------
    forward, backward : int
        Nanoseconds. ``backward`` is the joined one (input and weight gradients together).
    input_gradient, weight_gradient : int
        Nanoseconds of the split backward. Their sum may be more or less than ``backward``.
    saved : int
        Bytes kept from this layer's forward to its backward. Its output is included. Its input is not (it counts for
        the layer that made it), and neither are its parameters.
    output : int
        Bytes of the output.
    workspace : int
        Peak of the bytes that are allocated only while the layer computes.
    update : int
        Nanoseconds of the optimiser step on this layer's parameters.

    Notes
    -----
    The backward is split into input and weight gradients as in Zero Bubble Pipeline Parallelism (Qi et al., ICLR 2024,
    section 2). A layer that is recomputed keeps its input alone, and its backward takes forward + backward (Chen et
    al., Training Deep Nets with Sublinear Memory Cost, 2016).

    Examples
    --------
    >>> pipeplan.LayerCost(1_000, 2_000, 1_000, 1_000, saved=8, output=4, workspace=0, update=50).saved
    8
    """

    forward: int
    backward: int
    input_gradient: int
    weight_gradient: int
    saved: int
    output: int
    workspace: int = 0
    update: int = 0

    def workspace_for(self, saved: int) -> int:
        """Return the workspace of a device that has a part of the layer, of which it saves ``saved`` bytes."""
        return -(-self.workspace * saved // self.saved) if self.saved else self.workspace


@dataclass(frozen=True, slots=True)
class Work:
    """Operations and bytes of one layer for one sample, independent of the device; input of the analytic estimate.

    Floating-point operations count a multiply-add as two; ``output`` and ``saved`` are bytes (see `LayerCost`), and so
    are ``workspace``, for each sample, and ``workspace_fixed``, for any number of them. ``uncounted`` names operations
    of the layer of which nothing is counted, since their arithmetic is unknown.

    Notes
    -----
    Estimates are the roofline max(operations / peak, bytes / bandwidth), each with the share of it that the kind of
    device reaches (Williams, Waterman, Patterson, CACM 2009).

    Examples
    --------
    >>> layer = pipeplan.load_model("vgg-16").layers[0]
    >>> layer.work.forward_flops  # of one sample
    173408256
    """

    forward_flops: int
    input_gradient_flops: int
    weight_gradient_flops: int
    output: int
    saved: int
    workspace: int = 0
    workspace_fixed: int = 0
    uncounted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: the smallest unit that a plan assigns to a stage.

    Attributes
    ----------
    name : str
        A module path for a torch model, a node id for an imported graph.
    parameters : int
        Bytes of trainable parameters; weights shared with an earlier layer (see `Tie`) count there.
    inputs : tuple of str
        The layers whose outputs this one reads; empty for a layer that reads only the batch.
    work : Work or None
        Present where an analytic estimate is possible.
    kind : str
        Description for reports: a module class, an operator.
    operators : str
        Name of its graph in the model's ``operators``; empty where it is not known.
    frozen : int
        Bytes of weights that are read and not trained; those shared with an earlier layer count there.

    Examples
    --------
    >>> pipeplan.Layer("head", inputs=("block",), parameters=4_000).parameters
    4000
    """

    name: str
    parameters: int
    inputs: tuple[str, ...] = ()
    work: Work | None = None
    kind: str = ""
    operators: str = ""
    frozen: int = 0


@dataclass(frozen=True, slots=True)
class Tie:
    """Layers that share weights, like a language model's embedding and its head.

    Attributes
    ----------
    layers : tuple of str
        At least two, in the model's order. The shared weights count for the first one.
    parameters : int
        Bytes of the trainable weights that they share.
    frozen : int
        Bytes of the frozen weights that they share.

    Examples
    --------
    >>> [tie.layers for tie in pipeplan.load_model("gpt2-small").ties]
    [('embedding', 'head')]
    """

    layers: tuple[str, ...]
    parameters: int = 0
    frozen: int = 0


def blocks_of(kinds: Sequence[str]) -> tuple[int, ...]:
    """Return the first layer of each block, and the layer behind the last block, of layers of these kinds.

    Blocks are layers whose kinds repeat, one block behind the other, over more than half of the layers. They are more
    than the layers of each of them; of several such repetitions the shortest blocks count. Without one, or without
    kinds, every layer is a block.

    ::

        embedding  block block block block  head                        1 2 3 4 5
        embedding  attention mlp attention mlp attention mlp  head      1 3 5 7
    """
    layers = len(kinds)
    for period in range(1, isqrt(layers) + 1) if any(kinds) else ():
        repeats = [kinds[i] != "" and kinds[i] == kinds[i + period] for i in range(layers - period)]
        runs = [list(run) for repeated, run in groupby(range(layers - period), repeats.__getitem__) if repeated]
        longest = max(runs, key=len, default=[])
        blocks = len(longest) // period + 1
        if blocks > period and 2 * blocks * period > layers:
            return tuple(range(longest[0], longest[0] + blocks * period + 1, period))
    return tuple(range(layers + 1))


def tie_faults(layers: tuple[Layer, ...], ties: tuple[Tie, ...]) -> Iterator[str]:
    """Yield a sentence for each fault of the ties between these layers."""
    place = {layer.name: i for i, layer in enumerate(layers)}
    shared: dict[str, tuple[int, int]] = {}
    for tie in ties:
        named = " and ".join(map(repr, tie.layers))
        unknown = next((name for name in tie.layers if name not in place), None)
        if unknown is not None:
            yield f"a tie names layer {unknown!r}, which is not there{hint(unknown, place)}"
        elif len(tie.layers) < 2:
            yield f"a tie names {named or 'no layer'}; it takes two layers or more to share weights"
        elif any(place[a] >= place[b] for a, b in pairwise(tie.layers)):
            yield f"a tie names {named}; list its layers once each and in the model's order"
        elif min(tie.parameters, tie.frozen) < 0 or not tie.parameters + tie.frozen:
            least = min(tie.parameters, tie.frozen)
            yield f"{named} share {least} bytes; drop the tie, or say how many bytes of weights they share"
        else:
            first = tie.layers[0]
            trained, frozen = shared.get(first, (0, 0))
            shared[first] = trained + tie.parameters, frozen + tie.frozen
            layer = layers[place[first]]
            for own, has, what in zip(
                shared[first], (layer.parameters, layer.frozen), ("parameters", "frozen weights"), strict=True
            ):
                if own > has:
                    yield (
                        f"{named} share {own} bytes, but {first!r} has {has} bytes of {what}; what layers share "
                        "counts as the first one's, and as no other's"
                    )
