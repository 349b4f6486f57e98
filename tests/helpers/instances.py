"""Small models and clusters with known properties."""

from collections.abc import Sequence

from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.model import Layer, LayerCost, Model, Profile, Provenance

BY_HAND = Provenance("measured", "made up for a test")


def model_of(
    forward: Sequence[int],
    backward: Sequence[int] | None = None,
    *,
    saved: Sequence[int] | None = None,
    output: Sequence[int] | None = None,
    parameters: Sequence[int] | None = None,
    update: Sequence[int] | None = None,
    sizes: Sequence[int] = (1,),
    kinds: Sequence[str] = ("unit",),
    name: str = "chain",
) -> Model:
    """Chain of layers whose costs at micro-batch size b are b times the given ones, the same on every kind."""
    n = len(forward)
    backward = [2 * f for f in forward] if backward is None else backward
    zeros = [0] * n
    saved, output = saved or zeros, output or zeros
    parameters, update = parameters or zeros, update or zeros

    def cost(i: int, b: int) -> LayerCost:
        return LayerCost(
            forward=b * forward[i],
            backward=b * backward[i],
            input_gradient=b * backward[i] // 2,
            weight_gradient=b * backward[i] - b * backward[i] // 2,
            saved=b * saved[i],
            output=b * output[i],
            update=update[i],
        )

    layers = tuple(Layer(f"l{i}", parameters[i], (f"l{i - 1}",) if i else ()) for i in range(n))
    profiles = tuple(Profile(kind, b, tuple(cost(i, b) for i in range(n)), BY_HAND) for kind in kinds for b in sizes)
    return Model(name, layers, profiles)


def equal_devices(count: int, memory: int | None = None, link: Link | None = None, overlap: str = "copy") -> Cluster:
    """Cluster of ``count`` equal devices in one node."""
    return Cluster.uniform(count, DeviceKind("unit", memory=memory), link, Overlap(overlap))


def tiny_chain() -> Model:
    """Four layers of which the second is the largest: every method must cut around it."""
    return model_of([2, 7, 3, 4], saved=[5, 5, 5, 5], output=[4, 1, 2, 1], sizes=(1, 2, 4))


def fat_head() -> Model:
    """Eight equal blocks and a head worth four of them: counting layers is wrong here."""
    return model_of([10] * 8 + [40], saved=[8] * 9, output=[2] * 9, sizes=(1, 2, 4, 8))


def two_kinds_of_device() -> Cluster:
    """Two fast devices and two of half the speed."""
    fast, slow = DeviceKind("unit"), DeviceKind("slow", timed_as="unit", speed=0.5)
    node = Node(("unit", "unit", "slow", "slow"))
    return Cluster("2 fast and 2 slow", {"unit": fast, "slow": slow}, (node,), overlap=Overlap.COPY)
