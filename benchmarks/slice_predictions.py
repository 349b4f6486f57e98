"""Predicted beside measured steps of sequences in token slices, with and without measured slices (`profile --slices`).

A decoder with one long sequence in two stages on two processes, `terapipe`, whole and in slices, in turn. The partition
is the best one by measured slices; ``derived`` is its step as whole sequences alone predict it.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

from pipeplan import judge
from pipeplan.core.cluster import Cluster
from pipeplan.core.model import Model
from pipeplan.core.plan import Plan
from pipeplan.frontend.profile import profile_workload
from pipeplan.solve import solve
from pipeplan_executor import describe_machine, run
from pipeplan_executor.train.report import predicted_peak
from pipeplan_executor.zoo import decoder

PROCESSES, TOKENS, SLICES = 2, 2048, (1, 2, 4, 8, 16)
BLOCKS, ROUNDS, STEPS, REPEATS, WARMUP = 4, 2, 4, 3, 1

build = partial(decoder, blocks=BLOCKS, width=256, heads=4, vocabulary=512, length=TOKENS, hidden=1024)
"""The workload."""


@dataclass
class Row:
    """A plan, what whole sequences predict of it, and what was measured."""

    plan: Plan
    derived: int
    times: list[int] = field(default_factory=list)
    peaks: list[tuple[int, ...]] = field(default_factory=list)


def main() -> None:
    """Print a table."""
    rows = planned(profiled(), describe_machine(PROCESSES))
    measure(rows)
    show(rows)


def profiled() -> Model:
    """The model with measured slices, beside as many workers as will run."""
    slices = tuple(count for count in SLICES if count > 1)
    return profile_workload(
        build,
        micro_batches=(1,),
        slices=slices,
        repeats=REPEATS,
        warmup=WARMUP,
        optimizer="adam",
        crowd=PROCESSES,
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
        rows[count] = Row(plan, written.plan.step_time)
    return rows


def measure(rows: dict[int, Row]) -> None:
    """Run all plans in turn."""
    for _ in range(ROUNDS):
        for row in rows.values():
            report = run(row.plan, build, steps=STEPS, device="cpu")
            row.times += report.step_times
            row.peaks.append(report.peaks)


def show(rows: dict[int, Row]) -> None:
    """Print a row for each number of slices."""
    whole = median(rows[1].times)
    print("slices |   step  gain | measured slices       | whole sequences    | peaks, measured over predicted")
    for count, row in rows.items():
        step = median(row.times)
        peaks = [
            median(seen[rank] for seen in row.peaks) / predicted_peak(row.plan, rank) - 1 for rank in range(PROCESSES)
        ]
        print(
            f"{count:6} | {step / 1e6:6.0f} {whole / step:5.2f} | {row.plan.step_time / 1e6:6.0f} ms "
            f"{step / row.plan.step_time - 1:+8.1%}    | {row.derived / 1e6:6.0f} ms {step / row.derived - 1:+8.1%} | "
            + " ".join(f"{peak:+.1%}" for peak in peaks),
            flush=True,
        )
