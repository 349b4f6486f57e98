"""One step of delay on a slow link: predicted and measured time from batch to batch, beside plans with a flush.

Two replicas of one stage, whose sums are hidden behind the next batch, and two stages, which need no flush. All plans
run in the same processes, in turn, on a loopback device that is slowed down as in `benchmarks.overlapped_reduction`.
"""

from functools import partial
from statistics import median, quantiles
from typing import Any

import torch
from benchmarks.overlapped_reduction import RANKS, SAMPLES, Engine, in_turn, perceptron, slow_cluster, slowed

from pipeplan.core.model import Model
from pipeplan.core.plan import Plan
from pipeplan.frontend.profile import profile_workload
from pipeplan.solve import solve
from pipeplan_executor import Pipeline, launch

STEPS, ROUNDS = 5, 4
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
    times: dict[str, list[float]] = launch(measured, RANKS, plans, timeout=300, device="cpu")
    print(f"{'':28} {'predicted':>10} {'median':>9} {'quartiles':>17} {'off':>7} {'over flush':>10}")
    for name, row in times.items():
        low, middle, high = quantiles(row, n=4)
        told = plans[name].value / 1e6
        ratio = middle / median(times[name.replace("delayed", "flush")])
        spread = f"{low:7.1f} … {high:<7.1f}"
        print(f"{name:28} {told:7.1f} ms {middle:6.1f} ms {spread} {middle / told - 1:+7.1%} {ratio:10.3f}")


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


def measured(plans: dict[str, Plan]) -> dict[str, list[float]]:
    """Milliseconds of the steps of each plan, of the slower rank."""
    torch.set_num_threads(1)
    rows: dict[str, Engine] = {}
    for name, plan in plans.items():
        pipeline = Pipeline(plan, perceptron)
        batch = pipeline.workload.draw(plan.batch, torch.Generator().manual_seed(0))
        rows[name] = partial(pipeline.compute, *batch), partial(ended, pipeline)
    return in_turn(rows, STEPS, ROUNDS)


def ended(pipeline: Pipeline) -> None:
    """End the last batch."""
    pipeline.drain()
    pipeline.wait()


if __name__ == "__main__":
    main()
