"""Search on chains of unlike layers and two kinds of devices, under memory that makes some recomputation necessary.

Every layer has its own time, parameters and saved bytes (±35 %), so no two spans are alike. Half the devices are 2.1
times as slow and have less memory. Numbers and limits are processor seconds of one worker; ``-- LAYERSxDEVICES ...
[seeds=N] [time=SECONDS] [equal=yes] [memory=GIB] [optimizer=NAME]`` selects rows; ``equal=yes`` searches equal layouts
alone, ``memory`` is that of each device, at levels 0 and 1 of ZeRO. The last columns divide the gap: ``equal`` and
``unequal`` are the gaps of these layouts, each by itself; ``formulas`` is the part by which the formulas lie below the
simulated time for the plan's own stages, so the rest of the gap is due to other stages that the bound believes in.

``-- goals=FILE [seeds=10] [time=SECONDS]`` searches every row of `GOALS` for each seed, and ends with the median and
the worst gap of each. What ends is written to the file, and not searched again by the next call with this file.
"""

import json
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.errors import UndecidedError
from pipeplan.core.job import Job
from pipeplan.core.model import Layer, LayerCost, Model, Profile, Provenance
from pipeplan.core.units import format_time
from pipeplan.search.result import Result
from pipeplan.search.space.in_flight import free_family
from pipeplan.search.space.space import Space
from pipeplan.solve import solve

ROWS = ((50, 8), (50, 32), (100, 32), (200, 128), (400, 8), (400, 512))
"""Layers and devices."""
GOALS = (
    (100, 32, None, "sgd", 0.02),
    (200, 128, None, "sgd", 0.02),
    (400, 8, None, "sgd", 0.005),
    (400, 512, None, "sgd", 0.1),
    (1_000, 2_048, None, "sgd", 0.25),
    (100, 32, 3.0, "sgd", 0.03),
    (200, 128, 4.0, "sgd", 0.07),
    (200, 128, 4.0, "adam", 0.07),
)
"""Layers, devices, GiB of each device (None: all it has), optimiser, and the largest gap that is asked for."""
SLOWER = {"fast": 1.0, "slow": 2.1}
"""Times of each kind of device relative to the fast one."""
MADE_UP = Provenance("imported", "made up for a benchmark")


def chain(layers: int, seed: int) -> Model:
    """Model of unlike layers between an embedding and a head."""
    rng = np.random.default_rng(seed)
    mib = 2**20
    vary = rng.uniform(0.65, 1.35, (3, layers))
    forward, parameters = 3e6 * vary[0], (60 * mib * vary[1]).astype(int)
    saved, output = (120 * mib * vary[2]).astype(int), np.full(layers, 8 * mib)
    forward[0], forward[-1] = 1e5, 5e6
    parameters[[0, -1]] = 240 * mib
    saved[0], output[-1] = 8 * mib, 64
    profiles = []
    for kind, slower in SLOWER.items():
        for size in (1, 2, 4):
            time_of = (forward * slower * (size + 0.4) / 1.4).astype(int)
            costs = [
                LayerCost(
                    forward=f,
                    backward=2 * f,
                    input_gradient=f,
                    weight_gradient=f,
                    saved=s * size,
                    output=o * size,
                )
                for f, s, o in zip(time_of.tolist(), saved.tolist(), output.tolist(), strict=True)
            ]
            profiles.append(Profile(kind, size, tuple(costs), MADE_UP))
    names = [Layer(f"b{i}", int(p), (f"b{i - 1}",) if i else ()) for i, p in enumerate(parameters)]
    return Model(f"chain of {layers}", tuple(names), tuple(profiles), "float16")


def two_kinds(devices: int) -> Cluster:
    """Cluster of half fast devices of 40 GiB, half slow ones of 24 GiB, at most eight per node."""
    half = devices // 2
    kinds = {name: DeviceKind(name, memory=gib * 2**30, source="made up") for name, gib in (("fast", 40), ("slow", 24))}
    links = {"fast": Link(100 * 10**9, 3_000), "slow": Link(25 * 10**9, 5_000)}
    nodes = [Node((name,) * min(8, half), links[name]) for name in ("fast", "slow") for _ in range(max(1, half // 8))]
    return Cluster(f"{devices} of two kinds", kinds, tuple(nodes), Link(12_500_000_000, 10_000), Overlap.COPY)


def main() -> None:
    """Print the table."""
    beginning = time.monotonic()
    time.monotonic = lambda: beginning + time.process_time()  # limits are processor seconds
    words = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    options = dict(word.split("=") for word in words if "=" in word)
    rows = [tuple(map(int, word.split("x"))) for word in words if "=" not in word] or ROWS
    limit = float(options.get("time", 60))
    print(f"{'layers x devices':18} {'seed':>4} {'first plan':>16} {'after 5 s':>9} {'plan':>9} {'bound':>9} {'gap':>7}"
          f" {'processor':>9} {'wall':>7} {'equal':>6} {'unequal':>8} {'formulas':>9}")  # fmt: skip
    if "goals" in options:
        _goals(Path(options["goals"]), range(int(options.get("seeds", 10))), limit)
        return
    memory = float(options["memory"]) if "memory" in options else None
    asked = replace(_job(memory, options.get("optimizer", "sgd")), equal_replicas="equal" in options)
    seeds = int(options.get("seeds", 1))
    for layers, devices in rows:
        gaps = [_row(layers, devices, seed, limit, asked) for seed in range(seeds)]
        if seeds > 1:
            print(f"{layers:4} x {devices:<11} median {statistics.median(gaps):.1%}, worst {max(gaps):.1%}", flush=True)


def _job(memory: float | None, optimizer: str) -> Job:
    """The question without its batch; ``memory`` in GiB."""
    job = Job(1, optimizer=optimizer)
    return job if memory is None else replace(job, memory=int(memory * 2**30), zero=(0, 1))


def _goals(file: Path, seeds: Iterable[int], limit: float) -> None:
    """Search what the file lacks, one seed of every row after the other; print each row's median and worst gap."""
    lines = file.read_text().splitlines() if file.exists() else []
    gaps = {tuple(key): gap for key, gap in map(json.loads, lines)}
    for seed in seeds:
        for layers, devices, memory, optimizer, _ in GOALS:
            key = layers, devices, memory, optimizer, seed, limit
            if key not in gaps:
                gaps[key] = _row(layers, devices, seed, limit, _job(memory, optimizer))
                with file.open("a") as out:
                    print(json.dumps([key, gaps[key]]), file=out)
    for layers, devices, memory, optimizer, goal in GOALS:
        row = layers, devices, memory, optimizer
        found = [gap for key, gap in gaps.items() if key[:4] == row and key[-1] == limit]
        words = f"{layers:5} x {devices:<5} {'' if memory is None else f'{memory:g} GiB':6} {optimizer:5}"
        print(f"{words} {len(found):3} seeds: median {statistics.median(found):.2%}, worst {max(found):.2%};"
              f" asked {goal:.1%}")  # fmt: skip


def _row(layers: int, devices: int, seed: int, limit: float, asked: Job) -> float:
    """Print one row; return its gap."""
    model, cluster = chain(layers, seed), two_kinds(devices)
    began, clock = time.process_time(), time.perf_counter()
    plans: list[tuple[float, int]] = []

    def on_progress(value: int | None, *_: object) -> None:
        if value is not None and (not plans or value < plans[-1][1]):
            plans.append((time.process_time() - began, value))

    job = replace(asked, batch=(4 if devices < 128 else 2) * devices)
    try:
        result = solve(model, cluster, job=job, time_limit=limit, workers=1, on_progress=on_progress)
    except UndecidedError as error:
        print(f"{layers:4} x {devices:<11} {seed:4} no plan; {error}", flush=True)
        return 1.0
    first, value = plans[0]
    early = [found for at, found in plans if at <= 5]
    print(
        f"{layers:4} x {devices:<11} {seed:4} {format_time(value):>8} {first:5.1f} s "
        f"{format_time(early[-1]) if early else '':>9} {format_time(result.value):>9} {format_time(result.bound):>9} "
        f"{result.gap:7.1%} {time.process_time() - began:7.1f} s {time.perf_counter() - clock:5.1f} s {_apart(result)}"
        f" {_formulas(model, cluster, job, result):9.1%}",
        flush=True,
    )
    return result.gap


def _apart(result: Result) -> str:
    """The gaps of the equal layouts and of the unequal ones."""
    words = []
    for unequal in (False, True):
        bounds = [bound for name, bound in result.layouts if ("unequal" in name) is unequal]
        words.append(f"{1 - min(bounds) / result.value:6.1%}" if bounds else f"{'':6}")
    return "  ".join(words)


def _formulas(model: Model, cluster: Cluster, job: Job, result: Result) -> float:
    """The part of the plan's time above the lower bound of its own stages."""
    plan = result.plan
    space = Space(model, cluster, replace(job, zero=(plan.zero,)))
    groups = tuple(tuple(cluster.devices[d] for d in stage.devices) for stage in plan.stages)
    family = free_family(tuple(stage.in_flight for stage in plan.stages))
    candidate = replace(space.candidates(groups, plan.micro_batch)[0], family=family)
    return 1 - candidate.problem.evaluate(plan.boundaries) / result.value


if __name__ == "__main__":
    main()
