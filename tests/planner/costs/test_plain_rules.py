"""Rules of docs/costs.md in plain arithmetic, over random small inputs: estimates, micro-batch sizes, exact sums."""

from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest

from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job
from pipeplan.core.model import Layer, LayerCost, Model, Profile, Provenance, Work
from pipeplan.costs.layers import available_micro_batches, layer_costs
from pipeplan.costs.pricing import price

SAID = Provenance("imported", "drawn")
STATES = {"sgd": 0, "momentum": 1, "adam": 2}
ITEM = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def drawn_model(random: Random) -> Model:
    """Layers one behind the other, some without parameters, frozen weights or operations."""
    layers = []
    for i in range(4):
        work = {name: random.choice((0, 10, 700)) for name in Work.__dataclass_fields__ if name != "uncounted"}
        weights = {"parameters": random.choice((0, 0, 8, 104)), "frozen": random.choice((0, 0, 24))}
        layers.append(Layer(f"l{i}", inputs=(f"l{i - 1}",) * (i > 0), work=Work(**work), **weights))
    return Model("drawn", tuple(layers), dtype=random.choice([*ITEM]))


def estimate(
    model: Model, kind: DeviceKind, size: int, optimizer: str, state: int | None, on_chip: bool
) -> list[LayerCost]:
    """What the page says of layers without a profile."""
    item, share = ITEM[model.dtype], Fraction(str(kind.efficiency))
    peak, bandwidth = share * kind.peak[model.dtype], share * (kind.bandwidth or 0)
    speed, rows = Fraction(str(kind.speed)), []
    trained = frozen = False
    for layer in model.layers:
        trained, frozen = trained or layer.parameters > 0, frozen or layer.frozen > 0
        assert layer.work is not None
        work, saved, output = layer.work, size * layer.work.saved, size * layer.work.output

        def passing(flops: int, moved: int) -> int:
            busy = max(Fraction(size * flops) / peak, Fraction(moved) / bandwidth)
            return kind.overhead + round(10**9 * busy) if flops or moved else 0

        weights, tuned = (0, 0) if on_chip else (layer.parameters + layer.frozen, layer.parameters)
        none = not trained and frozen
        forward = passing(work.forward_flops, weights + saved + output)
        first = 0 if none else passing(work.input_gradient_flops, weights + saved + output)
        second = 0
        if (layer.parameters or work.weight_gradient_flops) and not none:
            second = passing(work.weight_gradient_flops, tuned + saved)
        moved = 3 * item + 2 * state if state is not None else max(4, item) * (3 + 2 * STATES[optimizer])
        update = round(10**9 * (layer.parameters // item * moved) / bandwidth)
        times = (round(time / speed) for time in (forward, first + second, first, second))
        space = size * work.workspace + work.workspace_fixed
        rows.append(LayerCost(*times, saved, output, space, round(update / speed)))
    return rows


@pytest.mark.parametrize("seed", range(60))
def test_estimates_are_those_of_the_page(seed: int) -> None:
    """The longer of arithmetic and traffic, an overhead for each pass that there is, and the update's traffic."""
    random = Random(seed)
    model, size = drawn_model(random), random.choice((1, 2, 6))
    peak = {model.dtype: random.choice((10**9, 10**11))}
    kind = DeviceKind(
        "gpu", peak=peak, bandwidth=random.choice((10**8, 10**10)), efficiency=random.choice((0.5, 1.0)), 
        overhead=random.choice((0, 30)), speed=random.choice((1.0, 1.0, 2.0)), on_chip=random.choice((None, 10**6)),
    )  # fmt: skip
    optimizer, state, on_chip = random.choice([*STATES]), random.choice((None, None, 0, 6)), random.random() < 0.5
    found = layer_costs(model, kind, size, optimizer=optimizer, state_bytes=state, weights_on_chip=on_chip)
    assert [*found] == estimate(model, kind, size, optimizer, state, on_chip and kind.on_chip is not None)


@pytest.mark.parametrize("seed", range(40))
def test_micro_batch_sizes_are_those_of_the_page(seed: int) -> None:
    """Divisors of the batch between the profiles of all kinds that have some; else powers of two and profiled sizes."""
    random = Random(seed)
    names, batch = ("a", "b", "c"), random.choice((1, 6, 48, 60, 720, 5040, 2**14))
    sizes = {name: random.sample((1, 2, 3, 5, 8, 12, 60, 1000), random.choice((0, 1, 2))) for name in names}
    profiles = tuple(
        Profile(name, size, (LayerCost(1, 1, 1, 1, 1, 1),), SAID) for name in names for size in sizes[name]
    )
    model, extrapolate = Model("m", (Layer("l", 0),), profiles), random.random() < 0.4
    measured = [own for own in sizes.values() if own]
    if measured and not extrapolate:
        low, high = max(map(min, measured)), min(map(max, measured))
        wanted = [b for b in range(low, high + 1) if batch % b == 0]
    else:
        known = {*(2**k for k in range(12)), *(b for own in measured for b in own)}
        wanted = sorted(b for b in known if batch % b == 0)[:12]
    kinds = [DeviceKind(name) for name in names]
    if wanted:
        assert available_micro_batches(model, kinds, batch, extrapolate=extrapolate) == tuple(wanted)
    else:
        range_ = f"{low}" if low == high else f"{low} to {high}"
        with pytest.raises(InputError, match=f"of {range_} samples, and none of these divides a batch of {batch}"):
            available_micro_batches(model, kinds, batch, extrapolate=extrapolate)


def asked(
    figure: str,
    value: int,
    link: Link | None = None,
    network: int | None = None,
    devices: int = 2,
    batch: int = 1,
    **job: int,
) -> None:
    """Price two layers with a figure on devices of a node, beside which there is another node; all else is small."""
    figures = dict.fromkeys(LayerCost.__dataclass_fields__, 1)
    figures |= {figure: value} if figure in figures else {}
    cost = LayerCost(**figures)
    weights = {name: value if name == figure else 8 for name in ("parameters", "frozen")}
    layers = Layer("a", **weights), Layer("b", inputs=("a",), **weights)
    link = replace(link or Link(), **{figure: value}) if figure in ("latency", "unit_overhead") else link or Link()
    nodes = Node(("chip",) * devices, link), Node(("chip",))
    cluster = Cluster("c", {"chip": DeviceKind("chip")}, nodes, Link(network))
    model = Model("m", layers, (Profile("chip", 1, (cost, cost), SAID),))
    price(model, cluster, cluster.devices[:2], 1, Job(batch=batch, **job))


SLOW, BYTE = Link(2), 10**9 // 2
"""Two bytes a second: so many nanoseconds for each byte."""
SUMS = {
    "forwards": ("forward", (8 + 2) * 2, {"batch": 8}, "ns of computation"),
    "backwards": ("backward", (8 + 2) * 2, {"batch": 8}, "ns of computation"),
    "input gradients": ("input_gradient", (8 + 2) * 2, {"batch": 8}, "ns of computation"),
    "weight gradients": ("weight_gradient", (8 + 2) * 2, {"batch": 8}, "ns of computation"),
    "saved": ("saved", 8 * 2, {"batch": 8}, "save come to"),
    "workspaces": ("workspace", 8 * 2, {"batch": 8}, "save come to"),
    "transfers": ("output", 2 * (4 + 2) * BYTE, {"batch": 4, "link": SLOW}, "the transfers of"),
    "latencies": ("latency", 2 * (8 + 2), {"batch": 8}, "the transfers of"),
    "overheads": ("unit_overhead", 2 * (8 + 2), {"batch": 8}, "the transfers of"),
    "sums": ("parameters", 4 * 2 * BYTE, {"link": SLOW}, "the reduction of gradients"),
    "sums between nodes": ("parameters", 4 * 2 * BYTE, {"network": 2}, "the reduction of gradients"),
    "gathers": ("frozen", 4 * 2 * BYTE, {"link": SLOW}, "the reduction of gradients"),
    "sums that begin late": ("latency", 4 * (8 + 1), {"devices": 8}, "the reduction of gradients"),
    "weights": ("parameters", 8 * 2, {}, "optimiser state come to"),
    "frozen weights": ("frozen", 3 * 2, {}, "optimiser state come to"),
    "stated state": ("parameters", (8 + 64) * 2, {"state_bytes": 64}, "optimiser state come to"),
    "stated gradients": ("parameters", (8 + 64) * 2, {"gradient_bytes": 64}, "optimiser state come to"),
    "updates": ("update", 2, {}, "the optimiser step come to"),
}
"""A figure, how often it counts in a sum of a step at most, where, and what the sum is called."""


@pytest.mark.parametrize("what", SUMS)
def test_sums_beyond_the_range_of_exact_integers_are_refused(what: str) -> None:
    """One and a half times the range is refused by the name of the sum; a half of it is priced."""
    figure, times, given, text = SUMS[what]
    asked(figure, 2**59 // times, **given)
    with pytest.raises(InputError, match=text):
        asked(figure, 3 * 2**59 // times, **given)
