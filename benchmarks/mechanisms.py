"""Gain of each mechanism of the search: the same problems with and without it.

Each run is a process of its own, whose clock is its processor time, so that other work on the machine does not count. A
mechanism is switched off by a patch. Words after the benchmark's name select the problems that contain one of them.
"""

import multiprocessing
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

from benchmarks.joint_scale import one_kind, thousand_layers, two_kinds

from pipeplan.core.units import format_time
from pipeplan.io.load import load_cluster, load_model
from pipeplan.schedules import FAMILIES
from pipeplan.search.nodes.aggregate import TargetSchedule, at_once
from pipeplan.search.nodes.family import InFlightNode
from pipeplan.search.space.in_flight import InFlightBox
from pipeplan.solve import solve
from pipeplan.solve.robust.compared import Choice

SECONDS, GAP = 60.0, 0.005

LARGE: dict[str, Callable[[], dict[str, Any]]] = {
    "gpt3-175b, 64 h100": lambda: large("gpt3-175b", one_kind(64), 1536),
    "gpt3-175b, 512 h100": lambda: large("gpt3-175b", one_kind(512), 1536),
    "gpt3-175b, 512 h100, one width": lambda: large("gpt3-175b", one_kind(512), 1536, equal=True),
    "gpt3-175b, 64 of two kinds": lambda: large("gpt3-175b", two_kinds(64), 1536),
    "gpt3-175b, 512 of two kinds, one width": lambda: large("gpt3-175b", two_kinds(512), 1536, equal=True),
    "llama3-70b, 64 h100": lambda: large("llama3-70b", load_cluster("64-h100"), 512),
    "llama3-70b, 512 h100": lambda: large("llama3-70b", one_kind(512), 2048),
    "1,000 layers, 256 h100": lambda: large(None, one_kind(256), 512),
}
COUNTS: dict[str, Callable[[], dict[str, Any]]] = {
    "gnmt-8, 4-v100-pcie, 4 stages": lambda: counting("gnmt-8", "4-v100-pcie", 64, 4),
    "resnet-50, 4-v100-pcie, 4 stages": lambda: counting("resnet-50", "4-v100-pcie", 128, 4),
    "vgg-16, 4-v100-pcie, 3 stages": lambda: counting("vgg-16", "4-v100-pcie", 128, 3),
    "gnmt-16, 8-v100-nvlink": lambda: counting("gnmt-16", "8-v100-nvlink", 512),
    "gnmt-16, 8-v100-nvlink, 6 stages": lambda: counting("gnmt-16", "8-v100-nvlink", 256, 6),
}
VARYING: dict[str, Callable[[], dict[str, Any]]] = {
    "gpt2-small, 8-v100-nvlink, 5%": lambda: varying("gpt2-small", "8-v100-nvlink", "5%", batch=64),
    "gpt2-small, 8-v100-nvlink, 20%": lambda: varying("gpt2-small", "8-v100-nvlink", "20%", batch=64),
    "gpt2-xl, 4-v100-4-p100, 20%": lambda: varying("gpt2-xl", "4-v100-4-p100", "20%", batch=64),
    "bert-large, 8-v100-nvlink, any order, 20%": lambda: varying(
        "bert-large", "8-v100-nvlink", "20%", batch=16, replicas=(1,), depths=(4,), schedules=("any",)
    ),
}


choice = import_module("pipeplan.solve.robust.choice")
every_count, SO = InFlightBox.of, FAMILIES["1f1b-so"]
OFF: Mapping[str, tuple[Any, str, Callable[..., object]] | None] = {
    "all": None,
    "no targets": (TargetSchedule, "next_below", lambda _, search, __: at_once(search)),
    "no box paths": (InFlightNode, "_takes_paths", lambda *_: False),
    "counts to SO's": (InFlightBox, "of", lambda *shape: replace(every_count(*shape), high=SO.in_flight(*shape))),
    "no related plans": (choice, "related_plans", lambda *_: iter(())),
    "no orders with slack": (choice, "orders_with_slack", lambda *_: iter(())),
}
"""Patches of each variant: owner, name, replacement."""


def large(model: str | None, cluster: Any, batch: int, *, equal: bool = False) -> dict[str, Any]:
    """Problem on a large cluster, with one number of replicas for all stages or any."""
    made = load_model(model) if model else thousand_layers()
    return {"model": made, "cluster": cluster, "batch": batch, "optimizer": "adam", "equal_replicas": equal, "gap": GAP}


def counting(model: str, cluster: str, batch: int, *depths: int) -> dict[str, Any]:
    """Problem whose in-flight counts matter, solved to optimality."""
    made = {"model": load_model(model), "cluster": load_cluster(cluster)}
    return {**made, "batch": batch, "optimizer": "momentum", "depths": depths, "gap": 0.0}


def varying(model: str, cluster: str, spread: str, **job: Any) -> dict[str, Any]:
    """Problem of a step with varying times."""
    return {"model": load_model(model), "cluster": load_cluster(cluster), "robust": spread, "gap": 2 * GAP, **job}


def main() -> None:
    """Print the tables."""
    words = [word for word in sys.argv[2:] if word != "--"]
    variants = (
        (LARGE, ("all", "no targets"), ("step", "bound")),
        (COUNTS, ("all", "no box paths", "counts to SO's"), ("step", "bound")),
        (VARYING, ("all", "no related plans", "no orders with slack"), ("mean", "fastest")),
    )
    for questions, names, columns in variants:
        print(f"{'question':42} {'search':14} {columns[0]:>9} {columns[1]:>9} {'gap':>7} {'processor':>10}")
        for question in questions:
            if not words or any(word in question for word in words):
                for name in names:
                    print(f"{question:42} {name:14} {alone(question, name)}", flush=True)


def alone(question: str, variant: str) -> str:
    """Run one variant of a problem in a process of its own."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(question, variant, there))
    process.start()
    there.close()
    try:
        return str(here.recv())
    finally:
        process.join()


def _run(question: str, variant: str, pipe: Connection) -> None:
    asked = {**LARGE, **COUNTS, **VARYING}[question]()
    off = OFF[variant]
    with ExitStack() as stack:
        if off is not None:
            stack.enter_context(mock.patch.object(*off))
        stack.enter_context(mock.patch("time.monotonic", time.process_time))
        began = time.process_time()
        result = solve(**asked, time_limit=SECONDS, workers=1)
        seconds = time.process_time() - began
    value, bound = result.value, result.bound
    if isinstance(result.robust, Choice):  # mean of the plan chosen, and of the one that is fastest if nothing varies
        value, bound = (round(row.mean.value) for row in (result.robust.compared[0], result.robust.nominal))
    pipe.send(
        f"{format_time(value):>9} {format_time(bound):>9} {result.gap:7.2%} {seconds:8.1f} s  "
        f"{result.stop}, {len(result.plan.stages)} stages"
    )


if __name__ == "__main__":
    main()
