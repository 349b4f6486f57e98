"""Layers on meshes of several axes: a block of GPT-3, VGG-16, and what forms of tensor parallelism send.

``-- blocks``: ends of the frontier of forward and backward against bytes that stay and are kept, of a block of GPT-3
175B with one sample in teams of H100, on meshes of up to three axes; in a node, and across nodes of eight. ``-- vgg``:
least time and strategies of VGG-16, 32 images a device. ``-- forms``: numbers that each device receives for a
transformer layer and a sample. Times of the search are processor seconds.
"""

import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from math import prod

from pipeplan.core.cluster import DeviceKind, Link
from pipeplan.core.model import LayerCost
from pipeplan.core.operators import INPUT, Operator, OperatorGraph, Weight
from pipeplan.core.strategies import AxisStrategy
from pipeplan.costs.sharding.coordinates import combined
from pipeplan.costs.sharding.named import (
    Form,
    columns,
    rows,
    three_dimensional,
    two_and_a_half_dimensional,
    two_dimensional,
)
from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan.costs.sharding.rooflines import Rooflines
from pipeplan.costs.sharding.shapes import factorisations, mesh_on
from pipeplan.costs.sharding.teams import Teams
from pipeplan.costs.sharding.volumes import IN, OUT, ROW, Algorithm, LinearMap
from pipeplan.io.load import load_cluster, load_model
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.sharding import Frontier, frontier

MOST_AXES, NODE = 3, 8
TIME_MEMORY = combined(("forward", "backward"), ("parameters", "saved"))
STEP = combined(("forward", "backward", "summed"))
IMAGES, ITEM, LATENCY = 32, 4, 15_000
"""Images of a device and bytes of a number of VGG; nanoseconds of a round."""
CONVOLUTIONS = 14_714_688, 30_690_000_000
"""Parameters of VGG-16's convolutions, and operations of their forward for an image of 224 x 224."""
CONNECTED = {"fc6": (25_088, 4_096), "fc7": (4_096, 4_096), "fc8": (4_096, 1_000)}
DEVICES = {"6 TFLOP/s, 9 GB/s": (6e12, 9e9), "60 TFLOP/s, 9 GB/s": (60e12, 9e9), "60 TFLOP/s, 3 GB/s": (60e12, 3e9)}
"""Operations and bytes per second of a device; ours, not those of a paper."""


def main() -> None:
    """Print the tables."""
    asked = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    for name, show in {"forms": _forms, "blocks": _blocks, "vgg": _vgg}.items():
        if not asked or name in asked:
            show()


def _blocks() -> None:
    """Print the ends of a block's frontier on each mesh, in a node and across nodes."""
    cluster = load_cluster("64-h100")
    teams = Teams(load_model("gpt3-175b"), cluster, NODE, (1,), "adam", False)
    (kind,) = teams.cluster.kinds.values()
    own = teams.rooflines(1, kind, 1)
    assert cluster.network is not None
    for team in (NODE, 2 * NODE, 4 * NODE):
        for sizes in factorisations(team):
            if len(sizes) <= MOST_AXES:
                mesh = mesh_on(sizes, NODE, teams.places[kind.name].link, cluster.network)
                _print_block(MeshProblem(own, mesh), sizes)


def _print_block(problem: MeshProblem, sizes: tuple[int, ...]) -> None:
    began = time.process_time()
    found = _frontier(problem, True)
    (fastest, most), (leanest, least) = found.points[[0, -1]].tolist()
    print(f"blocks {' x '.join(map(str, sizes)):10} fastest {fastest / 1e6:6.2f} ms {most / 2**20:6.0f} MiB, leanest "
          f"{leanest / 1e6:6.2f} ms {least / 2**20:6.0f} MiB, {len(found.points):3} points, "
          f"{time.process_time() - began:5.2f} s; {_named(problem, found, ('query', 'up', 'down'))}",
          flush=True)  # fmt: skip


def _frontier(problem: MeshProblem, memory: bool) -> Frontier:
    return frontier(problem.sharding.project(TIME_MEMORY if memory else STEP), Clock(Limits()))


def _named(problem: MeshProblem, found: Frontier, names: tuple[str, ...]) -> str:
    """The strategies of some operators in the fastest choice; a star for gathered weights."""
    chosen = problem.signatures_of(found.choice(0))
    strategies = {
        name: [(entry.loop or "-") + "*" * entry.gathers for entry in chosen[name].strategy] for name in names
    }
    return ", ".join(f"{name} {' '.join(strategy)}" for name, strategy in strategies.items())


def _vgg() -> None:
    """Print the least time of a step of VGG-16, and of one whose every operator is data-parallel."""
    for name, (operations, bandwidth) in DEVICES.items():
        for sizes in ((16,), (4, 4), (64,), (8, 8)):
            graph = vgg(prod(sizes))
            link, end = Link(round(bandwidth), LATENCY), (0,) * len(sizes)
            mesh = mesh_on(sizes, 1, link, link)
            problem = MeshProblem(_on(graph, operations), mesh, end, end, keeps=False)
            found = _frontier(problem, False)
            best, most = int(found.points[0, 0]), _data_parallel(problem)
            print(f"vgg {name:18} on {' x '.join(map(str, sizes)):6} {best / 1e6:7.1f} ms, data-parallel "
                  f"{most / 1e6:7.1f} ms, {1 - best / most:5.1%} less; {_named(problem, found, tuple(CONNECTED))}",
                  flush=True)  # fmt: skip


def vgg(devices: int) -> OperatorGraph:
    """Return VGG-16 as four operators, whose sample are all images of a step."""
    images = IMAGES * devices
    weights, each = CONVOLUTIONS
    width = CONNECTED["fc6"][0]
    operators = [
        Operator(
            "convolutions",
            "convolution",
            {ROW: images},
            {INPUT: (ROW, "pixel")},
            (ROW, "feature"),
            images * width * ITEM,
            weights=(Weight("filters", ("filter",), weights * ITEM),),
            forward_flops=images * each,
            weight_gradient_flops=2 * images * each,
        )
    ]
    for name, (inputs, outputs) in CONNECTED.items():
        flops = 2 * images * inputs * outputs
        operators.append(
            Operator(
                name,
                "linear",
                {ROW: images, IN: inputs, OUT: outputs},
                {operators[-1].name: (ROW, IN)},
                (ROW, OUT),
                images * outputs * ITEM,
                weights=(Weight(name, (OUT, IN), inputs * outputs * ITEM),),
                forward_flops=flops,
                input_gradient_flops=flops,
                weight_gradient_flops=flops,
            )
        )
    return OperatorGraph(tuple(operators), {INPUT: images * 3 * 224**2 * ITEM})


def _data_parallel(problem: MeshProblem) -> int:
    """Nanoseconds of a step in which every operator splits rows."""
    plain = (AxisStrategy(ROW),) * len(problem.mesh.sizes)
    choice = [[each.strategy for each in own].index(plain) for own in problem.signatures]
    costs = problem.sharding.project(STEP).evaluate(choice)
    assert costs is not None
    return costs[0]


def _on(graph: OperatorGraph, operations: float) -> Rooflines:
    """A graph on a device of so many operations per second."""
    passes = {
        name: round(sum(getattr(each, f"{name}_flops") for each in graph.operators) / operations * 1e9)
        for name in ("forward", "input_gradient", "weight_gradient")
    }
    backward = passes["input_gradient"] + passes["weight_gradient"]
    cost = LayerCost(**passes, backward=backward, saved=0, output=0)
    return Rooflines(graph, cost, graph.parameters, DeviceKind("device"), None, 1)


def _forms() -> None:
    """Print what each form receives for a transformer layer with recomputation, for a sample of 512 tokens."""
    for side, width, samples in ((4, 4096, 192), (8, 8192, 384)):
        plain: dict[str, float] = {}
        for name, layer in _layers(side, width, 512 * samples):
            volumes = [form.volume(linear, keep, algorithm) for form, linear, keep, algorithm in layer]
            total = sum((each.recomputed for each in volumes), Fraction(0))
            forward, least = float(sum(each.forward for each in volumes)), sum(each.least for each in volumes)
            plain[name] = float(total) / samples
            bound = f"{forward / least:5.2f} of the lower bound" if least else "no lower bound"
            print(f"forms {side**2:3} devices, width {width}: {name:18} {plain[name] / 1e6:7.2f} million numbers, "
                  f"1-D has {plain['1-D'] / plain[name]:5.2f} times as many; forward {bound}", flush=True)  # fmt: skip


def _layers(side: int, width: int, tokens: int) -> Iterator[tuple[str, list[tuple[Form, LinearMap, bool, Algorithm]]]]:
    """Yield forms of the four linear maps of a layer, whether they keep what is gathered, and by which algorithm."""
    maps = [LinearMap(tokens, inputs * width, outputs * width) for inputs, outputs in ((1, 3), (1, 1), (1, 4), (4, 1))]
    devices, ring, tree = side**2, Algorithm.RING, Algorithm.TREE
    pair = columns(devices), rows(devices)
    yield "1-D", [(pair[number % 2], each, True, ring) for number, each in enumerate(maps)]
    yield "2-D, trees", [(two_dimensional(side), each, False, tree) for each in maps]
    yield "2-D, rings", [(two_dimensional(side), each, False, ring) for each in maps]
    yield "2.5-D, rings", [(two_and_a_half_dimensional(4, side // 2), each, False, ring) for each in maps]
    if side == 8:
        cubes = [three_dimensional((4, 4, 4), number % 2 == 1) for number in range(4)]
        for keep in (True, False):
            name = "3-D, kept" if keep else "3-D, gathered again"
            yield name, [(cube, each, keep, ring) for cube, each in zip(cubes, maps, strict=True)]


if __name__ == "__main__":
    main()
