"""Several stages per process beside one: predicted and measured steps of interleaved 1F1B on two local processes.

Twelve blocks of a transformer in two, four and six stages; all plans of a row run in the same processes, in turn.
Nothing else should run meanwhile.
"""

from collections.abc import Mapping
from functools import partial
from itertools import product
from statistics import median, quantiles

import torch
from benchmarks.overlapped_reduction import RANKS, Engine, in_turn
from torch import Tensor, nn

from pipeplan.core.plan import Plan
from pipeplan.frontend.profile import profile_workload
from pipeplan.frontend.workload import Workload
from pipeplan.solve import solve
from pipeplan_executor import Pipeline, describe_machine, launch
from pipeplan_executor.zoo.decoder import Block

BLOCKS, WIDTH, TOKENS, SAMPLES = 12, 256, 64, 4
MICRO_BATCHES, CHUNKS = (2, 4), (1, 2, 3)
STEPS, ROUNDS = 3, 7
Row = tuple[int, int]
"""Micro-batches of a step, stages of a process."""


def blocks() -> Workload:
    """Workload of equal blocks."""

    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs, targets = (torch.randn(samples, TOKENS, WIDTH, generator=generator) for _ in range(2))
        return inputs, targets

    return Workload(nn.Sequential(*(Block(WIDTH, 4, 4 * WIDTH) for _ in range(BLOCKS))), draw, nn.functional.mse_loss)


def main() -> None:
    """Print the table."""
    model = profile_workload("benchmarks.several_stages:blocks", micro_batches=(SAMPLES,), name="blocks", crowd=RANKS)
    cluster = describe_machine(RANKS)
    plans = {
        (count, chunks): solve(
            model, cluster, count * SAMPLES, depths=(RANKS * chunks,), replicas=(1,), chunks=(chunks,), recompute="none"
        ).plan
        for count, chunks in product(MICRO_BATCHES, CHUNKS)
    }
    times: dict[Row, list[float]] = launch(measured, RANKS, plans, timeout=300, device="cpu")
    print("| micro-batches | stages of a process | predicted | measured | off | to one stage, predicted | measured |")
    print("|---|---|---|---|---|---|---|")
    for (count, chunks), row in times.items():
        low, middle, high = quantiles(row, n=4)
        told, told_once = (plans[count, number].predicted / 1e6 for number in (chunks, 1))
        ratios = f"{told / told_once:.3f} | {middle / median(times[count, 1]):.3f}"
        shown = f"{told:.1f} ms | {middle:.1f} ({low:.1f} to {high:.1f})"
        print(f"| {count} | {chunks} | {shown} | {middle / told - 1:+.1%} | {ratios} |")


def measured(plans: Mapping[Row, Plan]) -> dict[Row, list[float]]:
    """Milliseconds of the steps of each plan, of the slower rank."""
    torch.set_num_threads(1)
    engines: dict[str, Engine] = {}
    for (count, chunks), plan in plans.items():
        pipeline = Pipeline(plan, blocks)
        batch = pipeline.workload.draw(plan.batch, torch.Generator().manual_seed(0))
        engines[f"{count} {chunks}"] = partial(pipeline.step, *batch), pipeline.wait
    times = in_turn(engines, STEPS, ROUNDS)
    return {row: times[name] for row, name in zip(plans, engines, strict=True)}


if __name__ == "__main__":
    main()
