"""The plan after 1, 2, 5, 10 and 30 processor seconds beside Alpa's programme and beside smaller searched spaces.

Chains of unlike layers (`unlike_layers`), on one kind of device (that of Alpa's paper) and on two. ``tight``: the
devices' memory is cut to this share, so that much has to be recomputed. Alpa's plan is simulated like all others; its
time is that of the programme for all micro-batch sizes, and of the simulations. Each number is a step time relative to
Alpa's. ``-- LAYERSxDEVICES ... [seeds=N] [time=PROCESSOR SECONDS]`` selects rows.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.against_peers import rows_of, without_heuristics
from benchmarks.unlike_layers import chain, two_kinds

from pipeplan.core.cluster import Cluster, Link, Node
from pipeplan.core.errors import InfeasibleError, UndecidedError
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.units import format_time
from pipeplan.search.space.spaces import Spaces
from pipeplan.solve import solve

ROWS = ((50, 16), (50, 8), (50, 32), (100, 32), (200, 64), (400, 8))
"""Layers and devices."""
AT = (1, 2, 5, 10, 30)
"""Processor seconds at which the incumbent is looked at."""
NAME = "alpa"
SHARES = {"one kind": (1.0, 0.35), "two kinds": (1.0,)}
"""Shares of the devices' memory, by cluster."""


@dataclass(frozen=True)
class Question:
    """A model, a cluster and a job, with a name for the table."""

    name: str
    model: Model
    cluster: Cluster
    job: Job


def one_kind(devices: int) -> Cluster:
    """Cluster of fast devices, at most eight per node."""
    cluster = two_kinds(2 * devices)
    fast = tuple(node for node in cluster.nodes if node.kinds[0] == "fast")
    network = cluster.network if len(fast) > 1 else None
    nodes = tuple(Node(node.kinds, Link(100 * 10**9, 3_000)) for node in fast)
    return replace(cluster, name=f"{devices} of one kind", kinds={"fast": cluster.kinds["fast"]}, nodes=nodes,
                   network=network)  # fmt: skip


def questions(layers: int, devices: int, seed: int) -> list[Question]:
    """The questions of one row and seed."""
    found = []
    for name, make in (("one kind", one_kind), ("two kinds", two_kinds)):
        for share in SHARES[name]:
            cluster = _with_memory(make(devices), share)
            tight = "" if share == 1 else f", {share:.0%} memory"
            job = Job(batch=(4 if devices < 128 else 2) * devices, optimizer="sgd")
            found.append(Question(f"{layers} x {devices}, {name}{tight}", chain(layers, seed), cluster, job))
    return found


def _with_memory(cluster: Cluster, share: float) -> Cluster:
    kinds = {
        name: replace(kind, memory=None if kind.memory is None else int(share * kind.memory))
        for name, kind in cluster.kinds.items()
    }
    return replace(cluster, kinds=kinds)


def alpas(question: Question) -> tuple[int | None, float]:
    """Step time of Alpa's plan in nanoseconds, None without one, and processor seconds."""
    spaces = Spaces(question.model, question.cluster, question.job)
    began = time.process_time()
    row = rows_of(spaces, (NAME,))[NAME]
    return row.value, time.process_time() - began


def incumbents(question: Question, seconds: float, **options: object) -> Callable[[float], int | None]:
    """Search for so many processor seconds; returns the incumbent's value at a number of processor seconds.

    Heuristics do not take part: Alpa's plan would be pipeplan's own start.
    """
    plans: list[tuple[float, int]] = []
    began = time.process_time()

    def on_progress(value: int | None, *_: object) -> None:
        spent = time.process_time() - began
        if value is not None and (not plans or value < plans[-1][1]):
            plans.append((spent, value))
        if spent > seconds:
            raise KeyboardInterrupt

    with without_heuristics():
        try:
            result = solve(question.model, question.cluster, job=replace(question.job, **options),  # type: ignore[arg-type]
                           time_limit=3 * seconds, on_progress=on_progress)  # fmt: skip
            plans.append((time.process_time() - began, result.value))
        except (UndecidedError, InfeasibleError):
            pass
    return lambda at: min((value for spent, value in plans if spent <= at), default=None)


def main() -> None:
    """Print the table."""
    words = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    options = dict(word.split("=") for word in words if "=" in word)
    rows = [tuple(map(int, word.split("x"))) for word in words if "=" not in word] or ROWS
    seeds, seconds = int(options.get("seeds", 1)), float(options.get("time", AT[-1]))
    at = [each for each in AT if each <= seconds]
    heads = "".join(f"{f'{each} s':>8}" for each in at)
    print(f"{'layers x devices':34} {'seed':>4} {'Alpa':>9} {'after':>7}{heads}{'full':>8}{'none':>8}  (at {at[-1]} s)")
    for layers, devices in rows:
        for seed in range(seeds):
            for question in questions(layers, devices, seed):
                print(_row(question, seed, seconds, at), flush=True)


def _row(question: Question, seed: int, seconds: float, at: list[int]) -> str:
    value, spent = alpas(question)
    found = incumbents(question, seconds)
    narrow = [incumbents(question, seconds, recompute=recompute)(at[-1]) for recompute in ("full", "none")]
    scale = value or found(at[-1]) or 1
    told = [f"{'-' if each is None else f'{each / scale:.3f}':>8}" for each in (*map(found, at), *narrow)]
    alpa = "no plan" if value is None else format_time(value)
    return f"{question.name:34} {seed:4} {alpa:>9} {spent:5.2f} s{''.join(told)}"


if __name__ == "__main__":
    main()
