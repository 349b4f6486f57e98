"""Hand-written plans beside the answer of default options: an expert's teams, stages and levels of ZeRO.

Twelve plans of each question: teams of T devices that share layers, P stages of equally many layers, the other devices
as replicas, a level of ZeRO. Each is priced by `judge` with micro-batches of 1, 2, 4 and 8 samples, the fastest that
fits counts. Plans for which a cluster has no room are left out. ``-- [MODEL@CLUSTER[@BATCH[@NETWORK]] ...]
[time=SECONDS]`` selects rows; the time is processor time, of one worker. With a network, as ``400Gbit/s``, the plans
are those of recipes for large clusters: T of 4 and 8, P of 2 to 16, interleaved with V of 1 to 5 stages per device, and
``-- networks`` runs two models over three networks with batches of 8 to 1,024.
"""

import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pipeplan import load_cluster, load_model
from pipeplan.analysis.judge import judge
from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import PipeplanError
from pipeplan.core.job import Recompute
from pipeplan.core.model import Model
from pipeplan.core.units import format_time, parse_bandwidth
from pipeplan.core.wording import team_suffix, zero_suffix
from pipeplan.solve import solve

PLANS = (
    *((1, 1, 1), (1, 1, 3), (1, 4, 1), (1, 16, 0)),
    *((2, 1, 1), (2, 1, 2), (2, 2, 1), (2, 8, 1)),
    *((4, 1, 1), (4, 4, 1), (8, 1, 3), (8, 8, 1)),
)
"""Devices of a team, devices or teams of a pipeline, level of ZeRO."""
RECIPES = tuple(itertools.product((4, 8), (2, 4, 8, 16), (1,), (1, 2, 3, 4, 5)))
"""The same of a large cluster, with stages per device; level 0 without replicas."""
SIZES = (1, 2, 4, 8)
"""Samples of a micro-batch."""
MODELS = ("llama3-8b", "gpt2-small", "gpt2-xl", "bert-large")
CLUSTERS = (
    "4-v100-nvlink",
    "4-v100-pcie",
    "2x2-v100-10gbit",
    "2x4-v100-10gbit",
    "8-v100-nvlink",
    "8-v100-pcie",
    "64-h100",
)
LARGE = ("llama3-70b@64-h100@1024", "gpt3-175b@64-h100@1024")
NETWORKS = tuple(
    f"{model}@64-h100@{batch}@{network}Gbit/s"
    for network in (3200, 400, 100)
    for model in ("llama3-70b", "gpt3-175b")
    for batch in (8, 16, 64, 256, 1024)
)
HEADS = ("model, cluster, batch", "best hand plan", "its step", "step", "gap", "hand / ours", "plan", "processor s")
PRICING = 0.05
"""Seconds of the search that `judge` makes beside the price, of one stage without teams."""


def main() -> None:
    """Print the table."""
    beginning = time.monotonic()
    time.monotonic = lambda: beginning + time.process_time()  # limits are processor seconds
    words = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    options = dict(word.split("=") for word in words if "=" in word)
    chosen = [word for word in words if "=" not in word]
    chosen = (
        list(NETWORKS)
        if chosen == ["networks"]
        else chosen or [*LARGE, *(f"{model}@{cluster}" for model in MODELS for cluster in CLUSTERS)]
    )
    print(f"| {' | '.join(HEADS)} |\n" + "|---" * len(HEADS) + "|")
    for row in chosen:
        model, name, batch, network = [*row.split("@"), "", ""][:4]
        cluster = load_cluster(name)
        if network and cluster.network is not None:
            speed = replace(cluster.network, bandwidth=parse_bandwidth(network))
            cluster = replace(cluster, name=f"{name} over {network}", network=speed)
        plans = RECIPES if network else tuple((*plan, 1) for plan in PLANS)
        samples = int(batch) if batch else 8 * len(cluster.devices)
        _print(load_model(model), cluster, samples, plans, float(options.get("time", 60)))


def _print(model: Model, cluster: Cluster, batch: int, plans: Sequence[tuple[int, ...]], seconds: float) -> None:
    by_hand = min(_by_hand(model, cluster, batch, plans), default=None)
    began = time.process_time()
    hand = "-" if by_hand is None else by_hand[1]
    begins = f"| {model.name}, {cluster.name}, {batch} | {hand} | {'-' if by_hand is None else format_time(by_hand[0])}"
    try:
        found = solve(model, cluster, batch, optimizer="adam", time_limit=seconds, workers=1)
    except PipeplanError as error:
        print(f"{begins} | - | - | - | {type(error).__name__} | - |", flush=True)
        return
    spent, plan = time.process_time() - began, found.plan
    ratio = "-" if by_hand is None else f"{by_hand[0] / found.value:.3f}"
    label = f"{plan.shape}, {plan.micro_batches} of {plan.micro_batch}"
    label += zero_suffix(plan.zero) + team_suffix(plan.teams, plan.parallelism, mesh=plan.mesh)
    print(f"{begins} | {format_time(found.value)} | {found.gap:.1%} | {ratio} | {label} | {spent:.0f} |", flush=True)


def _by_hand(model: Model, cluster: Cluster, batch: int, plans: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, str]]:
    """Yield the step times in nanoseconds, and labels, of the best micro-batches of the hand-written plans."""
    devices, layers = len(cluster.devices), len(model.layers)
    for team, depth, zero, chunks in plans:
        replicas, count = devices // (team * depth), depth * chunks
        if not replicas or devices % (team * depth) or layers < count:
            continue
        stages = [layers * (s + 1) // count - layers * s // count for s in range(count)]
        level = zero if replicas > 1 else 0
        options = {"stages": stages, "replicas": replicas, "team": team, "zero": level}
        shape = f"teams of {team}, {depth} stages, {replicas} replicas, ZeRO-{level}"
        if chunks > 1:
            options |= {"schedule": "interleaved", "chunks": chunks}
            shape = f"teams of {team}, {chunks} stages on each of {depth}, {replicas} replicas, ZeRO-{level}"
        best: tuple[int, str] | None = None
        for size in SIZES:
            if batch % size or batch // size < replicas:
                continue
            for recompute in (Recompute.NONE, Recompute.FULL) if chunks > 1 else (Recompute.CHOOSE,):
                value = _priced(model, cluster, batch, micro_batches=batch // size, recompute=recompute, **options)
                if value is not None:
                    break
            else:
                continue
            if best is not None and value >= best[0]:
                break
            best = value, f"{shape}, micro-batches of {size}, {recompute.value} recomputed"
        if best is not None:
            yield best


def _priced(model: Model, cluster: Cluster, batch: int, **written: Any) -> int | None:
    """The step in nanoseconds of a hand-written plan, None if it does not fit or is none."""
    quickly: dict[str, Any] = {"time_limit": PRICING, "teams": (1,), "depths": (1,)}  # the search is not asked for
    try:
        own = judge(model, cluster, batch, optimizer="adam", **written, **quickly)
    except PipeplanError:
        return None
    return None if own.overflows else own.value
