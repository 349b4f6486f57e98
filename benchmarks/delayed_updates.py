"""One step of delay on a slow link: predicted and measured time from batch to batch, beside plans with a flush.

Two replicas of one stage, whose sums are hidden behind the next batch, and two stages, which need no flush. All plans
run in the same processes, in turn, on a loopback device that is slowed down as in `benchmarks.overlapped_reduction`.
Plans of several stages are also predicted from the times that their own forwards and backwards took meanwhile.
"""

from collections import defaultdict
from dataclasses import replace
from functools import partial
from statistics import median, quantiles
from typing import Any

import torch
import torch.distributed as dist
from benchmarks.overlapped_reduction import RANKS, SAMPLES, Engine, in_turn, perceptron, slow_cluster, slowed

from pipeplan.core.model import Model
from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Kind
from pipeplan.frontend.profile import profile_workload
from pipeplan.simulate import period, rolling_period
from pipeplan.solve import solve
from pipeplan_executor import Pipeline, launch

STEPS, ROUNDS = 2, 5
Passes = dict[tuple[int, Kind], int]
"""Nanoseconds by stage and kind."""
SHAPES: dict[str, dict[str, Any]] = {
    "2 replicas": {"depths": (1,), "replicas": (2,), "batch": 4 * SAMPLES},
    "2 replicas, level 1": {"depths": (1,), "replicas": (2,), "batch": 4 * SAMPLES, "zero": (1,)},
    "2 stages": {"depths": (2,), "replicas": (1,), "batch": 4 * SAMPLES},
}


def main() -> None:
    """Print the table, in a namespace with a slow loopback device."""
    slowed("delayed_updates", table)


def table() -> None:
    """Print predicted and measured times from batch to batch."""
    model = profile_workload(
        "benchmarks.overlapped_reduction:perceptron", micro_batches=(SAMPLES,), name="perceptron", crowd=RANKS
    )
    plans = planned(model)
    times: dict[str, list[float]]
    passes: dict[str, Passes]
    times, passes = launch(measured, RANKS, plans, timeout=300, device="cpu")
    print(f"{'':28} {'predicted':>10} {'own passes':>10} {'median':>9} {'quartiles':>17} {'off':>7} {'over flush':>10}")
    for name, row in times.items():
        low, middle, high = quantiles(row, n=4)
        told, own = plans[name].value / 1e6, from_passes(plans[name], passes[name])
        ratio = middle / median(times[name.replace("delayed", "flush")])
        spread = f"{low:7.1f} … {high:<7.1f}"
        print(f"{name:28} {told:7.1f} ms {own:>10} {middle:6.1f} ms {spread} {middle / told - 1:+7.1%} {ratio:10.3f}")


def from_passes(plan: Plan, passes: Passes) -> str:
    """Return what a plan of several stages takes by its own passes' times; with replicas these contain their sums."""
    if len(plan.stages) == 1:
        return ""
    stages = tuple(
        replace(stage, forward=passes[number, Kind.FORWARD], backward=passes[number, Kind.BACKWARD])
        for number, stage in enumerate(plan.pipeline.stages)
    )
    simulated = (rolling_period if plan.staleness else period)(plan.schedule, replace(plan.pipeline, stages=stages))
    return f"{simulated / 1e6:.1f} ms"


def planned(model: Model) -> dict[str, Plan]:
    """Return every shape with a flush and with one step of delay."""
    cluster = slow_cluster()
    return {
        f"{name}, {'delayed' if staleness else 'flush'}": solve(
            model, cluster, recompute="none", objective="period", staleness=staleness, **shape
        ).plan
        for name, shape in SHAPES.items()
        for staleness in (0, 1)
    }


def measured(plans: dict[str, Plan]) -> tuple[dict[str, list[float]], dict[str, Passes]]:
    """Milliseconds of the steps of each plan, of the slower rank; median nanoseconds of the passes of each stage."""
    torch.set_num_threads(1)
    rows: dict[str, Engine] = {}
    taken: dict[str, dict[tuple[int, Kind], list[int]]] = {}
    for name, plan in plans.items():
        pipeline = Pipeline(plan, perceptron)
        taken[name] = defaultdict(list)
        batch = pipeline.workload.draw(plan.batch, torch.Generator().manual_seed(0))
        rows[name] = partial(step, pipeline, batch, taken[name]), partial(ended, pipeline)
    times = in_turn(rows, STEPS, ROUNDS)
    of_ranks: list[Any] = [None] * RANKS
    dist.all_gather_object(
        of_ranks, {name: {key: round(median(t)) for key, t in own.items()} for name, own in taken.items()}
    )
    return times, {name: of_ranks[0][name] | of_ranks[1][name] for name in plans}


def step(pipeline: Pipeline, batch: Any, taken: dict[tuple[int, Kind], list[int]]) -> None:
    """Run a batch, and note what its passes took."""
    pipeline.compute(*batch)
    for action, start, end in pipeline.recorder.spans:
        if action.kind.per_micro_batch:
            taken[action.stage, action.kind].append(end - start)


def ended(pipeline: Pipeline) -> None:
    """End the last batch."""
    pipeline.drain()
    pipeline.wait()


if __name__ == "__main__":
    main()
