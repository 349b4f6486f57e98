"""VGG-16 (Simonyan and Zisserman, 2015, configuration D) and ResNet-50 (He et al., 2016), 224 × 224 images, float32.

A convolution of C to K channels with a k × k kernel on an output of H × W costs 2 k² C K H W operations forward, the
same for its input gradient (none for the image) and the same for its weight gradient. Saved: every tensor that some
backward reads. Beyond these a backward needs two gradients as large as the output (of a pooling, those of output and
input; of a residual block, three), and the gradient of the largest weight. Element-wise work (normalisation, ReLU,
pooling) counts bytes, not operations.
"""

from pipeplan.core.model import Layer, Model, Work

ITEM = 4


def _convolution(name: str, source: int, target: int, kernel: int, side: int, first: bool) -> Layer:
    """Layer of a convolution with bias and an in-place ReLU: its output is saved once."""
    flops = 2 * kernel**2 * source * target * side**2
    size = ITEM * target * side**2
    weight = ITEM * kernel**2 * source * target
    work = Work(flops, 0 if first else flops, flops, size, size, workspace=2 * size, workspace_fixed=weight)
    return Layer(name, ITEM * (kernel**2 * source * target + target), work=work, kind="Conv2d + ReLU")


def _pooling(name: str, channels: int, side: int) -> Layer:
    """Layer of max pooling, which saves its output and, in 8 bytes each, the position of every maximum."""
    count = channels * side**2
    work = Work(0, 0, 0, ITEM * count, (ITEM + 8) * count, workspace=5 * ITEM * count)
    return Layer(name, 0, work=work, kind="MaxPool2d")


def _linear(name: str, source: int, target: int, kind: str) -> Layer:
    flops, size = 2 * source * target, ITEM * target
    weight = ITEM * source * target
    work = Work(flops, flops, flops, size, size, workspace=2 * size + ITEM * source, workspace_fixed=weight)
    return Layer(name, weight + ITEM * target, work=work, kind=kind)


def chained(layers: list[Layer]) -> tuple[Layer, ...]:
    """The layers as a chain: each reads the one before it."""
    return tuple(
        Layer(layer.name, layer.parameters, (layers[i - 1].name,) if i else (), layer.work, layer.kind)
        for i, layer in enumerate(layers)
    )


def vgg_16() -> Model:
    """VGG-16: 13 convolutions, 5 poolings, 3 linear layers, 138.36 million parameters."""
    layers, source, side = [], 3, 224
    for block, (count, channels) in enumerate([(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)], start=1):
        for i in range(1, count + 1):
            layers.append(_convolution(f"conv{block}_{i}", source, channels, 3, side, first=not layers))
            source = channels
        side //= 2
        layers.append(_pooling(f"pool{block}", channels, side))
    for name, width, target, kind in (
        ("fc6", 512 * 7 * 7, 4096, "Linear + ReLU"),
        ("fc7", 4096, 4096, "Linear + ReLU"),
        ("fc8", 4096, 1000, "Linear"),
    ):
        layers.append(_linear(name, width, target, kind))
    return Model("vgg-16", chained(layers), notes=("one sample is one 224 x 224 image; dropout is left out",))


def _normalised(convolutions: list[tuple[int, int, int, int]], image: bool = False) -> tuple[int, int, int, int]:
    """Operations forward and of the input gradient, saved bytes and parameters of convolutions with normalisation.

    Each (source, target, kernel, output side); normalisation saves its input, the layer behind it saves its output.
    """
    flops = [2 * k**2 * c * t * side**2 for c, t, k, side in convolutions]
    saved = sum(2 * ITEM * t * side**2 for _, t, _, side in convolutions)
    parameters = sum(k**2 * c * t + 2 * t for c, t, k, _ in convolutions)
    return sum(flops), sum(flops[1:] if image else flops), saved, ITEM * parameters


def resnet_50() -> Model:
    """ResNet-50: a stem, 16 bottleneck blocks, a head, 25.56 million parameters."""
    forward, back, saved, parameters = _normalised([(3, 64, 7, 112)], image=True)
    size = ITEM * 64 * 56**2
    pooled = size + 8 * 64 * 56**2
    convolved = ITEM * 64 * 112**2
    work = Work(forward, back, forward, size, saved + pooled, workspace=2 * convolved, workspace_fixed=parameters)
    layers = [Layer("stem", parameters, work=work, kind="Conv + pool")]
    source, side = 64, 56
    for stage, (count, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)], start=1):
        for block in range(count):
            inner = side  # the 3 × 3 convolution has the stride, as in torchvision
            side = side // 2 if block == 0 and stage > 1 else side
            parts = [(source, width, 1, inner), (width, width, 3, side), (width, 4 * width, 1, side)]
            if block == 0:
                parts.append((source, 4 * width, 1, side))
            forward, back, saved, parameters = _normalised(parts)
            source, size = 4 * width, ITEM * 4 * width * side**2
            largest = ITEM * max(k**2 * c * t for c, t, k, _ in parts)
            work = Work(forward, back, forward, size, saved, workspace=3 * size, workspace_fixed=largest)
            layers.append(Layer(f"layer{stage}.{block}", parameters, work=work, kind="Bottleneck"))
    layers.append(_linear("head", 2048, 1000, "AvgPool + Linear"))
    return Model("resnet-50", chained(layers), notes=("one sample is one 224 x 224 image; a layer is a whole block",))
