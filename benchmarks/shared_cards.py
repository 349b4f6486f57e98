"""Orders for stages that share network cards: families, and orders searched without and with waiting for cards.

There are two stages per device, so that both nodes' cards carry several boundaries both ways. Times are simulated, with
8 micro-batches.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pipeplan.core.job import Job
from pipeplan.core.pipeline import Pipeline, Placement
from pipeplan.costs.assembly import assemble
from pipeplan.costs.pricing import price
from pipeplan.io.load import load_cluster, load_model
from pipeplan.schedules.placed import loop, vee
from pipeplan.search.scheduling import as_schedule, find_schedule, relaxed_problem
from pipeplan.search.scheduling.evaluator import Evaluator
from pipeplan.search.scheduling.families import family_schedules
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.schedule import solve

CLUSTER = "2x2-v100-10gbit"
DEVICES = 4
MICRO_BATCHES = 8
ROWS = (("gpt2-small", 4, "loop"), ("gnmt-8", 32, "loop"), ("gnmt-8", 16, "V"), ("vgg-16", 16, "loop"))
"""Model, size of a micro-batch, placement of the stages."""
PLACEMENTS: dict[str, Placement] = {"loop": loop(DEVICES, 2), "V": vee(DEVICES)}
SECONDS = 12.0


def main() -> None:
    """Print the table."""
    print(f"| on {CLUSTER} | families | as if no tensor waited | its bound | found | bound | gap |")
    print("|---|---|---|---|---|---|---|")
    for model, size, where in ROWS:
        pipeline = evenly(model, size, PLACEMENTS[where])
        judge = Evaluator(pipeline)
        split = (True,) * len(pipeline.stages)
        for schedule in family_schedules(pipeline, MICRO_BATCHES, split):
            judge.submit(schedule)
        families = judge.value
        free = solve(relaxed_problem(pipeline, MICRO_BATCHES).unshared, Limits(time=SECONDS))
        orders = free.solution
        blind = None if orders is None else judge.submit(as_schedule(orders, pipeline, MICRO_BATCHES))
        found = find_schedule(pipeline, MICRO_BATCHES, Limits(time=SECONDS))
        cells = [*map(_milliseconds, (families, blind, free.bound, found.value, found.bound)), f"{found.gap or 0:.1%}"]
        print(f"| {model}, {size} a micro-batch, {where} | {' | '.join(cells)} |", flush=True)


def evenly(name: str, size: int, placement: Placement) -> Pipeline:
    """The model's layers on the stages of a placement, each with about as much work."""
    cluster, count = load_cluster(CLUSTER), len(placement)
    homes = [cluster.devices[device] for (device,) in placement]
    chain = price(load_model(name), cluster, homes, size, Job(batch=size * MICRO_BATCHES))
    done = np.cumsum(chain.forward[0] + chain.backward[0])
    apart = assemble(chain, cluster, tuple(_cuts(done, count)))
    return replace(apart, placement=placement, runtime=apart.runtime[:DEVICES], limits=apart.limits[:DEVICES])


def _cuts(done: np.ndarray, count: int) -> Iterator[int]:
    """Boundaries at equal parts of the work, at least one layer apart."""
    layers, last = len(done), 0
    yield 0
    for part in range(1, count):
        last = min(layers - count + part, max(last + 1, int(np.searchsorted(done, done[-1] * part / count))))
        yield last
    yield layers


def _milliseconds(time: int | None) -> str:
    return "" if time is None else f"{time / 1e6:,.1f} ms"
