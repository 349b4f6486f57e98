"""Every shipped model on every shipped cluster: the answer beside overlapped data parallelism, step and period.

The first ratio is the step of ``data-parallel-overlapped`` over that of the answer: never below 1. The other columns
are about the objectives: the period of the plan with the best step, and the best period. Words behind ``--``: seconds
for each question (10), then names of clusters (all).
"""

import sys
from functools import partial
from itertools import product

from pipeplan.core.errors import PipeplanError
from pipeplan.core.units import format_time
from pipeplan.io.datasets import shipped
from pipeplan.io.load import load_cluster, load_model
from pipeplan.search.turns import Baseline
from pipeplan.simulate import period
from pipeplan.solve import solve

BATCHES = {"vgg-16": 256, "resnet-50": 256, "gnmt-8": 512, "gnmt-16": 512, "gpt3-175b": 256, "llama3-70b": 128}
"""Samples of a step; 64 for other models."""
SGD = ("vgg", "resnet", "gnmt")
"""Models that are trained with SGD here; others with Adam."""
OVERLAPPED = "data-parallel-overlapped"


def main() -> None:
    """Print the table, and below it the extremes of both ratios."""
    words = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    seconds = float(words[0]) if words else 10.0
    print("| model | cluster | step | gap | overlapped | its ratio | period of this plan | best period | gap | gain |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    ratios, gains, none = [], [], 0
    for name, model in product(words[1:] or shipped("clusters"), shipped("models")):
        optimizer = "sgd" if model.startswith(SGD) else "adam"
        batch = BATCHES.get(model, 64)
        ask = partial(solve, load_model(model), load_cluster(name), batch, optimizer=optimizer, time_limit=seconds)
        try:
            step = ask()
        except PipeplanError as error:
            none += 1
            print(f"| {model} | {name} | {str(error).splitlines()[0][:60]} | | | | | | | |", flush=True)
            continue
        row = step.baselines[OVERLAPPED]
        if row.value is not None:
            ratios.append(row.value / step.value)
        long = ask(objective="period")
        plain = period(step.plan.schedule, step.plan.pipeline)
        gains.append(plain / long.value - 1)
        print(
            f"| {model} | {name} | {format_time(step.value)} | {step.gap:.2%} | {_overlapped(row, step.value)} "
            f"| {format_time(plain)} | {format_time(long.value)} | {long.gap:.2%} | {gains[-1]:.2%} |",
            flush=True,
        )
    print(f"\n{len(gains)} answers, {none} questions without; {len(ratios)} overlapped plans fit")
    print(f"ratio to overlapped data parallelism: least {min(ratios):.4f}, most {max(ratios):.2f}")
    print(f"best period over the period of the best step: gain {min(gains):.2%} to {max(gains):.2%}")


def _overlapped(row: Baseline, value: int) -> str:
    if row.value is not None:
        return f"{format_time(row.value)} | {row.value / value:.3f}"
    return f"above {format_time(row.bound)} | {row.bound / value:.3f}+" if row.bound else "does not fit | "
