"""What a slice of a sequence costs beyond its share, so that slices can be too short.

A decoder with one long sequence in two stages on two ranks, all forwards first, whole and in slices, in turn. Times are
medians over rounds and slices of the processor time of actions, of the slower rank. ``path`` is the longest path
through lists and messages of such actions; ``beyond`` is what all slices take longer than the whole sequence, per
slice. What the engine takes between actions is left out; `overhead` measures it.
"""

import time
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from statistics import median

import torch
import torch.distributed as dist
from benchmarks.overhead import WORLD, two_stages

from pipeplan.core.schedule import Action, Schedule, find_readers
from pipeplan.frontend.workload import Workload
from pipeplan.schedules import FAMILIES
from pipeplan.schedules.slices import sliced_families
from pipeplan_executor import Pipeline, launch
from pipeplan_executor.runtime import recorder
from pipeplan_executor.zoo import decoder

TOKENS, SLICES = 2048, (1, 2, 4, 8, 16)
BLOCKS, WIDTHS = 4, (64, 256)
ROUNDS, WARMUP = 3, 1

Row = tuple[float, float, float]
"""Milliseconds of a slice's forward, of its backward, and of the longest path."""


def main() -> None:
    """Print a table."""
    print("width slices tokens |   F ms   B ms | beyond ms |  path ms  whole / path")
    for width in WIDTHS:
        rows: dict[int, Row] = launch(measured, WORLD, width, timeout=600, device="cpu")
        whole, longest_path = sum(rows[1][:2]), rows[1][2]
        for count, (forward, backward, path) in rows.items():
            beyond = (count * (forward + backward) - whole) / max(count - 1, 1)
            print(
                f"{width:5} {count:6} {TOKENS // count:6} | {forward:6.1f} {backward:6.1f} | {beyond:9.1f} | "
                f"{path:8.1f} {longest_path / path:13.2f}",
                flush=True,
            )


def measured(width: int) -> dict[int, Row]:
    """Run all numbers of slices in turn, on every rank."""
    torch.set_num_threads(1)
    recorder.now = time.thread_time_ns
    build = partial(decoder, blocks=BLOCKS, width=width, vocabulary=256, length=TOKENS, hidden=4 * width)
    schedules = {count: written(count) for count in SLICES}
    pipelines = {
        count: Pipeline(two_stages(build(), each, 1, (TOKENS // count,) * count if count > 1 else ()), build)
        for count, each in schedules.items()
    }
    every = recorded(pipelines, build())
    return {count: summary(schedules[count], [each[count] for each in every]) for count in SLICES}


def recorded(pipelines: Mapping[int, Pipeline], workload: Workload) -> list[dict[int, dict[Action, float]]]:
    """Run pipelines in turn, on every rank; return each rank's medians of the milliseconds of its actions."""
    inputs, targets = workload.draw(1, torch.Generator().manual_seed(0))
    spans: dict[int, dict[Action, list[float]]] = {count: defaultdict(list) for count in pipelines}
    for number in range(WARMUP + ROUNDS):
        for count, pipeline in pipelines.items():
            pipeline.recorder.clear()
            pipeline.compute(inputs, targets, update=False)
            for action, begin, end in pipeline.recorder.spans if number >= WARMUP else ():
                spans[count][action].append((end - begin) / 1e6)
    own = {count: {action: median(took) for action, took in rows.items()} for count, rows in spans.items()}
    everyone = [own] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    return everyone


def written(count: int) -> Schedule:
    """The schedule of one sequence in so many slices."""
    families = {each.name: each for each in sliced_families(count)}
    return (families["terapipe"] if count > 1 else FAMILIES["gpipe"]).write((1,) * WORLD, 1)


def summary(schedule: Schedule, ranks: list[Mapping[Action, float]]) -> Row:
    """The median forward and backward of the slower rank, and the longest path."""
    forward, backward = (
        max(median(took for action, took in times.items() if action.kind.value == kind) for times in ranks)
        for kind in "FB"
    )
    return forward, backward, longest(schedule, {a: took for times in ranks for a, took in times.items()})


def longest(schedule: Schedule, times: Mapping[Action, float]) -> float:
    """The longest path through lists and messages."""
    makers = {reader: maker for maker, reader in find_readers(schedule.actions()).items()}
    ends: dict[Action, float] = {}
    left = [list(order) for order in schedule.orders]
    free = [0.0] * len(left)
    while any(left):
        for rank, order in enumerate(left):
            while order and (order[0] not in makers or makers[order[0]] in ends):
                action = order.pop(0)
                ready = ends[makers[action]] if action in makers else 0.0
                free[rank] = ends[action] = max(ready, free[rank]) + times.get(action, 0.0)
    return max(free)
