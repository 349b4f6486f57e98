"""Hand-written plans beside the answer of default options: an expert's teams, stages and levels of ZeRO.

Twelve plans of each question: teams of T devices that share layers, P stages of equally many layers, the other devices
as replicas, a level of ZeRO. Each is priced by `judge` with micro-batches of 1, 2, 4 and 8 samples, the fastest that
fits counts. Plans for which a cluster has no room are left out. ``-- [MODEL@CLUSTER[@BATCH] ...] [time=SECONDS]``
selects rows.
"""

import sys
import time
from collections.abc import Iterator

from pipeplan import load_cluster, load_model
from pipeplan.analysis.judge import judge
from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import PipeplanError
from pipeplan.core.job import Recompute
from pipeplan.core.model import Model
from pipeplan.core.units import format_time
from pipeplan.core.wording import team_suffix, zero_suffix
from pipeplan.solve import solve

PLANS = (
    *((1, 1, 1), (1, 1, 3), (1, 4, 1), (1, 16, 0)),
    *((2, 1, 1), (2, 1, 2), (2, 2, 1), (2, 8, 1)),
    *((4, 1, 1), (4, 4, 1), (8, 1, 3), (8, 8, 1)),
)
"""Devices of a team, stages, level of ZeRO."""
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
HEADS = ("model, cluster, batch", "best hand plan", "its step", "step", "gap", "hand / ours", "plan", "processor s")
PRICING = 0.05
"""Seconds of the search that `judge` makes beside the price."""


def main() -> None:
    """Print the table."""
    words = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    options = dict(word.split("=") for word in words if "=" in word)
    chosen = [word for word in words if "=" not in word]
    chosen = chosen or [*LARGE, *(f"{model}@{cluster}" for model in MODELS for cluster in CLUSTERS)]
    print(f"| {' | '.join(HEADS)} |\n" + "|---" * len(HEADS) + "|")
    for row in chosen:
        model, cluster, *batch = row.split("@")
        _print(load_model(model), load_cluster(cluster), int(batch[0]) if batch else 0, float(options.get("time", 60)))


def _print(model: Model, cluster: Cluster, batch: int, seconds: float) -> None:
    batch = batch or 8 * len(cluster.devices)
    by_hand = min(_by_hand(model, cluster, batch), default=None)
    began = time.process_time()
    hand = "-" if by_hand is None else by_hand[1]
    begins = f"| {model.name}, {cluster.name}, {batch} | {hand} | {'-' if by_hand is None else format_time(by_hand[0])}"
    try:
        found = solve(model, cluster, batch, optimizer="adam", time_limit=seconds)
    except PipeplanError as error:
        print(f"{begins} | - | - | - | {type(error).__name__} | - |", flush=True)
        return
    spent, plan = time.process_time() - began, found.plan
    ratio = "-" if by_hand is None else f"{by_hand[0] / found.value:.3f}"
    label = f"{plan.shape}, {plan.micro_batches} of {plan.micro_batch}"
    label += zero_suffix(plan.zero) + team_suffix(plan.teams, plan.parallelism, mesh=plan.mesh)
    print(f"{begins} | {format_time(found.value)} | {found.gap:.1%} | {ratio} | {label} | {spent:.0f} |", flush=True)


def _by_hand(model: Model, cluster: Cluster, batch: int) -> Iterator[tuple[int, str]]:
    """Yield the step times in nanoseconds, and labels, of the hand-written plans that fit."""
    devices, layers = len(cluster.devices), len(model.layers)
    for team, depth, zero in PLANS:
        replicas = devices // (team * depth)
        if not replicas or devices % (team * depth) or layers < depth or (zero and replicas == 1):
            continue
        stages = [layers * (s + 1) // depth - layers * s // depth for s in range(depth)]
        for size in SIZES:
            if batch % size or batch // size % replicas:
                continue
            try:
                own = judge(
                    model,
                    cluster,
                    batch,
                    stages=stages,
                    micro_batches=batch // size,
                    replicas=replicas,
                    team=team,
                    zero=zero,
                    recompute=Recompute.CHOOSE,
                    optimizer="adam",
                    time_limit=PRICING,
                )
            except PipeplanError:
                continue
            if not own.overflows:
                label = f"teams of {team}, {depth} stages, {replicas} replicas, ZeRO-{zero}, micro-batches of {size}"
                yield own.value, label
