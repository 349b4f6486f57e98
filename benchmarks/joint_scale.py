"""Run time of the joint search on large problems: depth, widths, micro-batches, recomputation and placement at once.

The reference in each row is one dynamic programme over the same layers by numpy, O(n² S) for S = 64 equal devices, in
the same run: wall times on a shared machine mean little, their ratio more.
"""

import time
from dataclasses import replace

import numpy as np

from pipeplan.core.cluster import Cluster, Link, Node, Overlap
from pipeplan.core.job import Job
from pipeplan.core.model import Layer, LayerCost, Model, Profile, Provenance
from pipeplan.core.units import format_time
from pipeplan.io.device_file import catalogue
from pipeplan.io.load import load_cluster, load_model
from pipeplan.solve import solve

SECONDS = 60.0


def main() -> None:
    """Print the table."""
    print(f"{'question':50} {'step':>9} {'bound':>9} {'gap':>7} {'wall':>7} {'over reference':>15}  plan")
    for devices in (64, 512, 4096):
        name, cluster = f"gpt3-175b, {devices} devices of two kinds", two_kinds(devices)
        _rows(name, load_model("gpt3-175b"), cluster, 1536, 0.01)
    _rows("1,000 layers, 256 devices", thousand_layers(), one_kind(256), 512, 0.02)
    resnet = Job(batch=512, optimizer="momentum")
    _row("resnet-50, 8 devices", load_model("resnet-50"), load_cluster("8-v100-nvlink"), resnet, 0.0)


def two_kinds(devices: int) -> Cluster:
    """Cluster of half H100, half A100, eight per node."""
    kinds = catalogue()
    halves = [
        Node(("h100-80gb",) * 8, Link(450 * 10**9, 3_000)),
        Node(("a100-80gb",) * 8, Link(300 * 10**9, 3_000)),
    ]
    nodes = tuple(node for node in halves for _ in range(devices // 16))
    network = Link(200 * 10**9, 5_000)
    chosen = {name: kinds[name] for name in ("h100-80gb", "a100-80gb")}
    return Cluster(f"{devices} of two kinds", chosen, nodes, network, Overlap.COPY)


def one_kind(devices: int) -> Cluster:
    """Cluster of H100s, eight per node."""
    cluster = load_cluster("64-h100")
    return replace(cluster, name=f"{devices} h100", nodes=cluster.nodes[:1] * (devices // 8))


def thousand_layers() -> Model:
    """Model of unequal layers with a made-up profile, like a very deep network."""
    rng = np.random.default_rng(0)
    forward = rng.integers(200_000, 2_000_000, 1000)
    layers = tuple(Layer(f"l{i}", 40 * 2**20, (f"l{i - 1}",) if i else (), kind="layer") for i in range(1000))
    profiles = []
    for size in (1, 2, 4):
        costs = tuple(
            LayerCost(
                forward=int(f) * size,
                backward=2 * int(f) * size,
                input_gradient=int(f) * size,
                weight_gradient=int(f) * size,
                saved=24 * 2**20 * size,
                output=8 * 2**20 * size,
                workspace=2**20 * size,
                update=200_000,
            )
            for f in forward
        )
        profiles.append(Profile("h100-80gb", size, costs, Provenance("analytic", "made up for a benchmark")))
    return Model("thousand layers", layers, tuple(profiles), "bfloat16")


def _rows(name: str, model: Model, cluster: Cluster, batch: int, gap: float) -> None:
    """Print the rows with one number of replicas for all stages, and with any."""
    for label, equal in ((", one width", True), (", any widths", False)):
        _row(name + label, model, cluster, Job(batch=batch, optimizer="adam", equal_replicas=equal), gap)


def _row(name: str, model: Model, cluster: Cluster, job: Job, gap: float) -> None:
    began = time.perf_counter()
    result = solve(model, cluster, job=job, time_limit=SECONDS, gap=gap)
    wall = time.perf_counter() - began
    reference = _reference(len(model.layers))
    plan = result.plan
    again = sum(len(stage.recompute) for stage in plan.stages)
    widths = sorted({stage.replicas for stage in plan.stages})
    print(
        f"{name:50} {format_time(result.value):>9} {format_time(result.bound):>9} {result.gap:7.2%} {wall:5.1f} s "
        f"{wall / reference:15.0f}  {len(plan.stages)} stages, replicas {widths}, {plan.micro_batches} x "
        f"{plan.micro_batch}, {again} layers recomputed, {plan.schedule.family}",
        flush=True,
    )


def _reference(layers: int, stages: int = 64) -> float:
    """Seconds of the textbook dynamic programme: the least largest stage of a chain."""
    work = np.concatenate([[0], np.cumsum(np.arange(1, layers + 1))])
    began = time.perf_counter()
    best = work.copy()
    for _ in range(stages - 1):
        best = np.array([np.maximum(best[: b + 1], work[b] - work[: b + 1]).min() for b in range(layers + 1)])
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
