"""Predicted and measured step times on two local processes: pipeplan's plan, every baseline's, and a recomputing one.

Three real models. Every plan runs in each of several rounds in turn, so that other load on the machine affects all
alike. A row shows medians over all rounds. It also shows by how much all actions of each kind (forward, backward,
reduction, update) took longer than predicted; the rest of the difference is waiting. Nothing else should run meanwhile;
the CPU time of other programs is given under each table.
"""

import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic

from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Action, Kind
from pipeplan.core.timeline import Timeline
from pipeplan.frontend.profile import profile_workload
from pipeplan.search.build_plan import build_plan
from pipeplan.search.heuristics import ranked
from pipeplan.simulate import memory_of_ranks, simulate
from pipeplan.solve import solve
from pipeplan_executor import describe_machine, run
from pipeplan_executor.train.report import layers_by_stage

MODELS = ("decoder", "vgg16", "resnet50")
PROCESSES, BATCH, SIZES = 2, 16, (1, 2, 4)
ROUNDS, STEPS, SOLVE_SECONDS = 3, 5, 30.0
CLOSE = 0.1
"""Largest accepted relative error of a prediction."""


@dataclass
class Contestant:
    """A plan, the methods that made it, and its measurements."""

    methods: list[str]
    plan: Plan
    times: list[int] = field(default_factory=list)
    peaks: list[tuple[int, ...]] = field(default_factory=list)
    busy: list[dict[Kind, int]] = field(default_factory=list)

    @property
    def time(self) -> float:
        """Measured step time in nanoseconds."""
        return median(self.times)

    @property
    def off(self) -> float:
        """Relative excess of the measured step time over the predicted one."""
        return self.time / self.plan.step_time - 1

    @property
    def off_by_kind(self) -> dict[Kind, float]:
        """Relative excess of the measured time of the actions of each kind."""
        predicted = busy(simulate(self.plan.schedule, self.plan.pipeline))
        return {kind: median(row[kind] for row in self.busy) / time - 1 for kind, time in predicted.items() if time}

    def memory(self, rank: int) -> tuple[int, float]:
        """Predicted and measured peak of a rank, bytes."""
        return memory_of_ranks(self.plan)[rank], median(peaks[rank] for peaks in self.peaks)


def main() -> None:
    """Print a table for each model, and a summary."""
    cluster = describe_machine(PROCESSES)
    print(f"{cluster.notes[0]}; runtime {cluster.devices[0].kind.runtime / 2**20:.0f} MiB a worker")
    for name in MODELS:
        rows = contestants(profiled(name), cluster)
        others, began = all_cpu() - own_cpu(), monotonic()
        for _ in range(ROUNDS):
            for row in rows:
                report = run(row.plan, f"pipeplan_executor.zoo:{name}", steps=STEPS, device="cpu")
                row.times += report.step_times
                row.peaks.append(report.peaks)
                row.busy.append(busy(report.timeline))
        others = all_cpu() - own_cpu() - others
        show(name, rows)
        print(f"  other programs took {others / (monotonic() - began):.0%} of a core meanwhile", flush=True)


def busy(timeline: Timeline) -> dict[Kind, int]:
    """Nanoseconds of all ranks on each kind of action; in a collective those of the last rank to join."""
    times: dict[Action, list[int]] = defaultdict(list)
    for span in timeline.spans:
        times[span.action].append(span.end - span.start)
    total: dict[Kind, int] = defaultdict(int)
    for action, row in times.items():
        total[action.kind] += min(row) * len(row) if action.kind is Kind.REDUCE else sum(row)
    return dict(total)


def all_cpu() -> float:
    """Busy seconds of all cores so far, by any process, other guests of the host included."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split(maxsplit=9)[1:9]]
    user, nice, system, _idle, _wait, interrupts, soft, steal = fields
    return (user + nice + system + interrupts + soft + steal) / os.sysconf("SC_CLK_TCK")


def own_cpu() -> float:
    """Seconds of this process and of the workers that have ended."""
    return sum(os.times()[:4])


def profiled(name: str) -> Model:
    """Profile of the model, measured beside as many workers as in the run, in a process like a worker."""
    return profile_workload(f"pipeplan_executor.zoo:{name}", micro_batches=SIZES, name=name, crowd=PROCESSES)


def contestants(model: Model, cluster: Cluster) -> list[Contestant]:
    """Distinct plans of all methods, the solver's first."""
    result = solve(model, cluster, batch=BATCH, time_limit=SOLVE_SECONDS)
    plans = [("pipeplan", result.plan)]
    for row in ranked(result.baselines.values()):
        if row.evaluated is not None and not row.outside:
            plans.append((row.name, build_plan(model, cluster, result.job, row.evaluated, result.bound)))
    for label, constraints in (
        ("two stages", {"depths": (PROCESSES,), "replicas": (1,)}),
        ("two stages, all layers recomputed", {"depths": (PROCESSES,), "replicas": (1,), "recompute": "full"}),
    ):
        job = Job(batch=BATCH, **constraints)
        plans.append((label, solve(model, cluster, job=job, time_limit=SOLVE_SECONDS).plan))
    found: dict[object, Contestant] = {}
    for label, plan in plans:
        key = (plan.boundaries, plan.schedule, tuple(stage.recompute for stage in plan.stages))
        found.setdefault(key, Contestant([], plan)).methods.append(label)
    return list(found.values())


def show(name: str, rows: list[Contestant]) -> None:
    """Print the table of one model."""
    print(f"{name}, batch {BATCH}, medians of {ROUNDS} rounds of {STEPS} steps")
    print(
        "  layers            micro-batches  schedule     predicted   measured    off  by kind of action"
        "                peaks, MiB: predicted, measured"
    )
    for row in rows:
        memory = [row.memory(rank) for rank in range(len(row.plan.ranks))]
        peaks = ", ".join(f"{told / 2**20:.0f} {seen / 2**20:.0f} ({seen / told - 1:+.0%})" for told, seen in memory)
        kinds = ", ".join(f"{kind.value} {off:+.0%}" for kind, off in row.off_by_kind.items())
        print(
            f"  {layers_by_stage(row.plan):17} {row.plan.micro_batches:4} x {row.plan.micro_batch:<8}"
            f"{row.plan.schedule.family:10} {row.plan.step_time / 1e6:8.1f} ms {row.time / 1e6:7.1f} ms "
            f"{row.off:+6.1%}  {kinds:32}  {peaks}  {', '.join(row.methods)}",
            flush=True,
        )
    chosen, others = rows[0], rows[1:]
    fastest = min(others, key=lambda row: row.time)
    print(f"  pipeplan's plan takes {chosen.time / fastest.time:.3f} of the fastest other one ({fastest.methods[0]})")
    times = sum(abs(row.off) <= CLOSE for row in rows)
    pairs = [row.memory(rank) for row in rows for rank in range(len(row.plan.ranks))]
    close = sum(abs(measured / predicted - 1) <= CLOSE for predicted, measured in pairs)
    print(f"  within {CLOSE:.0%}: {times} of {len(rows)} times, {close} of {len(pairs)} peaks", flush=True)


if __name__ == "__main__":
    main()
