"""Graph partition of networks of unlike nodes, under memory that makes some recomputation necessary.

Every node has its own times, parameters and saved bytes (±35 %). ``cnn``: blocks of two to four branches, some with a
skip over the block. ``encoder``: an encoder and a decoder of several levels, with a skip from each level to its
counterpart. Rules: ``apart``: forward and backward nodes, whose tensors go directly between devices, as in
dnn-partitioning's files; ``relay``: `solve` with the objective ``bottleneck``. Numbers are processor seconds;
``-- KIND.RULE.NODESxDEVICES[r] ... [seeds=N] [time=SECONDS]`` selects rows, with ``r`` for replicas.
"""

import random
import sys
import time
from dataclasses import dataclass, field

import numpy as np

from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.errors import UndecidedError
from pipeplan.core.job import Job, Objective
from pipeplan.core.model import Layer, LayerCost, Model, Profile, Provenance
from pipeplan.solve import solve
from pipeplan_formulations import graph
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.graph import GraphMode, GraphPartition, Line, Star

MIB = 2**20
BANDWIDTH = 25 * 10**9
"""Bytes per second of the link between devices."""
MICRO_BATCHES = 64
"""Micro-batches per step that replicas share."""
MADE_UP = Provenance("imported", "made up for a benchmark")


@dataclass
class Network:
    """Nodes in topological order: nanoseconds, bytes, and the nodes that each reads."""

    forward: list[int] = field(default_factory=list)
    backward: list[int] = field(default_factory=list)
    parameters: list[int] = field(default_factory=list)
    saved: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    reads: list[tuple[int, ...]] = field(default_factory=list)

    def add(
        self, draw: random.Random, reads: tuple[int, ...], ms: float, saved: float, output: float, params: float
    ) -> int:
        """Append a node of about this size (milliseconds and MiB); return its index."""
        ms, saved, params = (x * draw.uniform(0.65, 1.35) for x in (ms, saved, params))
        self.forward.append(round(ms * 1e6))
        self.backward.append(round(2e6 * ms * draw.uniform(0.9, 1.1)))
        self.parameters.append(4 * round(params * MIB / 4))
        self.output.append(round(output * MIB))
        self.saved.append(max(round(saved * MIB), self.output[-1]))
        self.reads.append(reads)
        return len(self.reads) - 1


def cnn(nodes: int, seed: int) -> Network:
    """Blocks of two to four branches of one to four nodes, joined by a node that some blocks' inputs skip to."""
    draw, net = random.Random(seed), Network()
    here = net.add(draw, (), 1, 120, 40, 1)
    while len(net.reads) < nodes - 6:
        depth, ends = len(net.reads) / nodes, []
        branches = draw.choice((2, 2, 3, 4))
        for _ in range(branches):
            end = here
            for _ in range(draw.randint(1, 4)):
                end = net.add(draw, (end,), draw.uniform(0.5, 1.5), draw.uniform(40, 120), 20 / branches**0.5,
                              1 + 6 * depth**2)  # fmt: skip
            ends.append(end)
        if draw.random() < 0.3:
            ends.append(here)
        here = net.add(draw, tuple(sorted(ends)), 0.2, 60, 30, 0.1)
    while len(net.reads) < nodes:
        here = net.add(draw, (here,), 0.5, 20, 1, 8)
    return net


def encoder(nodes: int, seed: int) -> Network:
    """Levels down to a bottom and up again: nodes with short skips around them, and a long skip between the levels."""
    draw, net = random.Random(seed), Network()
    levels = max(3, nodes // 25)
    each = nodes / (2 * levels + 1)
    here = net.add(draw, (), 0.5, 60, 24, 1)
    skips: list[int] = []
    for level in range(2 * levels + 1):
        down = level if level <= levels else 2 * levels - level
        size = 24 * 0.8**down
        if level > levels:
            here = net.add(draw, tuple(sorted({here, skips.pop()})), 0.2, 2 * size, size, 0.1)
        while len(net.reads) < min(nodes - 1, each * (level + 1)):
            before = here
            here = net.add(draw, (here,), 1.2, 4 * size, size, 2 * 1.3**down)
            if draw.random() < 0.5 and len(net.reads) < nodes - 2:
                side = net.add(draw, (before,), 0.4, 2 * size, size, 0.5)
                here = net.add(draw, (side, here) if side < here else (here, side), 0.1, size, size, 0.1)
        if level < levels:
            skips.append(here)
    while len(net.reads) < nodes:
        here = net.add(draw, (here,), 0.3, 20, 1, 2)
    return net


KINDS = {"cnn": cnn, "encoder": encoder}


def limit(net: Network, devices: int, replicas: bool) -> int:
    """Bytes of a device: half way between all nodes recomputed and none, with as many in flight as devices."""
    held = (sum(net.saved) + sum(net.output)) / 2
    return round(held * (0.75 if replicas else 1) + 8 * sum(net.parameters) / devices)


def apart(net: Network, devices: int, replicas: bool) -> GraphPartition:
    """Forward and backward nodes, grouped; tensors and gradients go directly between devices; one device or several."""
    n = len(net.reads)
    readers: list[list[int]] = [[] for _ in range(n)]
    for b, sources in enumerate(net.reads):
        for a in sources:
            readers[a].append(b)
    sent = [Star(a, tuple(own)) for a, own in enumerate(readers) if own]
    returned = [Star(b, sources) for b, sources in enumerate(net.reads) if sources]
    stars = (*sent, *returned)
    # A gradient has the bytes of the largest tensor that its node reads.
    sizes = [net.output[star.source] for star in sent]
    sizes += [max(net.output[a] for a in star.readers) for star in returned]
    cost = np.array([MICRO_BATCHES * size * 10**9 // BANDWIDTH for size in sizes])
    received = np.array([*(net.output[star.source] for star in sent), *(0 for _ in returned)])
    forward, backward, parameters, saved, output = (
        np.array(row, np.int64) for row in (net.forward, net.backward, net.parameters, net.saved, net.output)
    )
    modes = []
    for r in range(1, devices + 1) if replicas else (1,):
        reduce = 2 * (r - 1) * parameters * 10**9 // (r * BANDWIDTH)
        work = MICRO_BATCHES * np.stack([forward + backward, 2 * forward + backward]) + r * reduce
        modes.append(
            GraphMode(
                name=f"{r}",
                takes=(r,),
                lines=(Line(work, cost, cost, share=r * MICRO_BATCHES),),
                fixed=np.stack([4 * parameters, 4 * parameters]),
                held=np.stack([saved, output]),
                peak=np.stack([0 * saved, saved]),
                received=received,
                limit=limit(net, devices, replicas),
                flow=r,
                in_flight=-(-(np.arange(devices + 1) + r) // r),
            )
        )
    edges = tuple((a, b) for b, sources in enumerate(net.reads) for a in sources)
    return GraphPartition(n, edges, stars, (devices,), tuple(modes))


def model_of(net: Network) -> Model:
    """The network as a model: a layer for each node."""
    costs = tuple(
        LayerCost(forward=f, backward=b, input_gradient=b // 2, weight_gradient=b - b // 2, saved=s, output=o)
        for f, b, s, o in zip(net.forward, net.backward, net.saved, net.output, strict=True)
    )
    layers = tuple(
        Layer(f"n{i}", net.parameters[i], tuple(f"n{a}" for a in reads)) for i, reads in enumerate(net.reads)
    )
    return Model("network", layers, (Profile("unit", 1, costs, MADE_UP),), "float32")


def cluster_of(net: Network, devices: int, replicas: bool) -> Cluster:
    """One node of equal devices."""
    kind = DeviceKind("unit", memory=limit(net, devices, replicas), source="made up")
    return Cluster("node", {"unit": kind}, (Node(("unit",) * devices, Link(BANDWIDTH, 3_000)),), overlap=Overlap.COPY)


ROWS = (
    *(f"{kind}.apart.{size}{replicas}" for kind in KINDS for size in ("100x4", "200x8", "300x8", "200x16")
      for replicas in ("", "r")),
    *(f"{kind}.relay.{size}{replicas}" for kind in KINDS for size in ("100x4", "200x8") for replicas in ("", "r")),
)  # fmt: skip


def main() -> None:
    """Print the table."""
    words = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    options = dict(word.split("=") for word in words if "=" in word)
    rows = [word for word in words if "=" not in word] or ROWS
    print(f"{'network, rule, nodes x devices':32} {'seed':>4} {'first plan':>20} {'value':>10} {'bound':>10} {'gap':>6}"
          f" {'processor':>9} {'wall':>7}  by")  # fmt: skip
    for row in rows:
        for seed in range(int(options.get("seeds", 1))):
            _row(row, seed, float(options.get("time", 60)))


def _row(row: str, seed: int, seconds: float) -> None:
    """Print one row; values are milliseconds per micro-batch."""
    kind, rule, size = row.split(".")
    replicas = size.endswith("r")
    nodes, devices = map(int, size.rstrip("r").split("x"))
    net = KINDS[kind](nodes, seed)
    began, clock = time.process_time(), time.perf_counter()
    first: list[tuple[float, int]] = []

    def on_progress(value: int | None, *_: object) -> None:
        if value is not None and not first:
            first.append((time.process_time() - began, value))

    if rule == "apart":
        problem = apart(net, devices, replicas)
        report = graph.solve(problem, Limits(seconds), on_progress=on_progress)
        value, bound, by = report.objective, report.bound, report.backend
    else:
        job = Job(MICRO_BATCHES if replicas else 1, objective=Objective.BOTTLENECK, optimizer="sgd",
                  replicas=() if replicas else (1,))  # fmt: skip
        cluster = cluster_of(net, devices, replicas)
        try:
            result = solve(model_of(net), cluster, job=job, time_limit=seconds, on_progress=on_progress)
            value, bound, by = result.value, result.bound, "solve"
        except UndecidedError:
            value, bound, by = None, 0, "solve"
    label = f"{kind}, {rule}, {len(net.reads)} x {devices}{', replicas' * replicas}"
    shown = (
        ["-", "-", "-"] if value is None else [f"{value / 1e6:.3f}", f"{bound / 1e6:.3f}", f"{1 - bound / value:.1%}"]
    )
    start = f"{first[0][1] / 1e6:.3f} {first[0][0]:5.2f} s" if first else "no plan"
    print(f"{label:32} {seed:4} {start:>20} {shown[0]:>10} {shown[1]:>10} {shown[2]:>6} "
          f"{time.process_time() - began:7.1f} s {time.perf_counter() - clock:5.1f} s  {by}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
