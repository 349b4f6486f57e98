"""Predicted beside measured paths of sequences in token slices, with and without measured slices (`profile --slices`).

A decoder with one long sequence in two stages on two processes, `terapipe`, whole and in slices, in turn. Partitions
are the best ones by measured slices; ``derived`` is what profiles of whole sequences alone predict of them. Like
profiles, all is processor time: the longest path through lists and messages, from the median of each action.
"""

import time
from dataclasses import dataclass, replace
from functools import partial

import torch
from benchmarks.short_slices import longest, recorded

from pipeplan import judge
from pipeplan.core.cluster import Cluster
from pipeplan.core.model import Model
from pipeplan.core.plan import Plan
from pipeplan.frontend.profile import profile_workload
from pipeplan.solve import solve
from pipeplan_executor import Pipeline, describe_machine, launch
from pipeplan_executor.runtime import recorder
from pipeplan_executor.zoo import decoder

PROCESSES, TOKENS, SLICES = 2, 2048, (1, 2, 4, 8, 16)
BLOCKS, REPEATS, WARMUP = 4, 3, 1

build = partial(decoder, blocks=BLOCKS, width=256, heads=4, vocabulary=512, length=TOKENS, hidden=1024)
"""The workload."""


@dataclass
class Row:
    """A plan, and its longest path as measured slices and as whole sequences predict it."""

    plan: Plan
    predicted: float
    derived: float


def main() -> None:
    """Print a table."""
    rows = planned(profiled(), describe_machine(PROCESSES))
    show(rows, launch(measured, PROCESSES, {count: row.plan for count, row in rows.items()}, device="cpu"))


def profiled() -> Model:
    """The model with measured slices, beside as many workers as will run."""
    slices = tuple(count for count in SLICES if count > 1)
    return profile_workload(
        build,
        micro_batches=(1,),
        slices=slices,
        repeats=REPEATS,
        warmup=WARMUP,
        crowd=PROCESSES,
        optimizer="adam",
        name="decoder",
    )


def planned(model: Model, cluster: Cluster) -> dict[int, Row]:
    """A plan for each number of slices."""
    rows = {}
    for count in SLICES:
        family = "terapipe" if count > 1 else "gpipe"
        plan = solve(
            model,
            cluster,
            batch=1,
            depths=(PROCESSES,),
            schedules=(family,),
            recompute="none",
            slices=(count,),
            optimizer="adam",
            time_limit=30.0,
        ).plan
        written = judge(
            replace(model, slice_profiles=()),
            cluster,
            1,
            stages=[len(stage.layers) for stage in plan.stages],
            schedule=family,
            micro_batches=1,
            token_slices=count,
            optimizer="adam",
            time_limit=1.0,
        )
        rows[count] = Row(plan, path(plan), path(written.plan))
    return rows


def path(plan: Plan) -> float:
    """Milliseconds of the longest path of a plan's forwards and backwards as it predicts them."""
    actions = (each for each in plan.schedule.actions() if each.kind.per_micro_batch)
    stages = plan.pipeline.stages
    times = {each: stages[each.stage].duration(each.kind, each.slice) / 1e6 for each in actions}
    return longest(plan.schedule, times)


def measured(plans: dict[int, Plan]) -> dict[int, float]:
    """Run all plans in turn, on every rank; return milliseconds of the longest path of each."""
    torch.set_num_threads(1)
    recorder.now = time.thread_time_ns
    pipelines = {count: Pipeline(plan, build) for count, plan in plans.items()}
    everyone = recorded(pipelines, build())
    every = {count: {a: took for each in everyone for a, took in each[count].items()} for count in plans}
    kept = {count: {a: took for a, took in row.items() if a.kind.per_micro_batch} for count, row in every.items()}
    return {count: longest(plan.schedule, kept[count]) for count, plan in plans.items()}


def show(rows: dict[int, Row], took: dict[int, float]) -> None:
    """Print a row for each number of slices."""
    print("slices | path ms  gain | measured slices ms   off | whole sequences ms   off")
    for count, row in rows.items():
        step = took[count]
        print(
            f"{count:6} | {step:7.0f} {took[1] / step:5.2f} | {row.predicted:18.0f} {step / row.predicted - 1:+5.0%} | "
            f"{row.derived:18.0f} {step / row.derived - 1:+5.0%}",
            flush=True,
        )
