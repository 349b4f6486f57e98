"""Small models whose sequences can be cut into slices."""

from random import Random

from pipeplan.core.cluster import Cluster, DeviceKind, Link
from pipeplan.core.layers import Layer, LayerCost
from pipeplan.core.model import Model, Profile, Provenance
from pipeplan.core.operators import INPUT, TOKEN, Attention, Operator, OperatorGraph, Weight

TOKENS = 12


def token_operators(
    linear: int, attention: int = 0, keys: int = 0, weights: int = 0, looks_back: bool = True
) -> OperatorGraph:
    """An operator on each token, and behind it attention if that has operations."""
    axes = (TOKEN, "feature")
    own = (Weight("up.weight", ("feature",), weights),) if weights else ()
    product = Operator("up", "elementwise", {TOKEN: TOKENS}, {INPUT: axes}, axes, 48, True, own, linear, linear, linear)
    mixed = Operator(
        "mix", "attention", {TOKEN: TOKENS}, {"up": axes}, axes, 48, attention=Attention(48, keys, causal=looks_back),
        forward_flops=attention, input_gradient_flops=2 * attention,
    )  # fmt: skip
    return OperatorGraph((product, mixed) if attention else (product,), {INPUT: 48})


def sliced_chain(random: Random, layers: int) -> Model:
    """Layers in a row, attention in some of them, profiled for one and two samples."""
    graphs, rows = {}, []
    profiles: dict[int, list[LayerCost]] = {1: [], 2: []}
    for i in range(layers):
        attention, keys = random.choice((0, random.randint(1, 9))), random.choice((0, 48, 96))
        weights = random.choice((0, 40, 200))
        graphs[f"g{i}"] = token_operators(random.randint(1, 9), attention, keys, weights)
        rows.append(Layer(f"l{i}", weights, (f"l{i - 1}",) if i else (), operators=f"g{i}"))
        forward, inputs, parts, saved, output, workspace = (random.randint(0, 400) for _ in range(6))
        for size, row in profiles.items():
            more = [
                value * size + random.randint(0, 50) for value in (forward, inputs, parts, saved, output, workspace)
            ]
            row.append(LayerCost(more[0], more[1] + more[2], *more[1:], update=7))
    said = Provenance("analytic", "drawn")
    measured = tuple(Profile("unit", size, tuple(row), said) for size, row in profiles.items())
    return Model("drawn", tuple(rows), measured, operators=graphs)


def unit_cluster(devices: int, memory: int | None = None, bandwidth: int | None = 10**9) -> Cluster:
    """Equal devices in one node."""
    return Cluster.uniform(devices, DeviceKind("unit", memory=memory), Link(bandwidth, 3))
