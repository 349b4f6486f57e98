"""Searched schedules against schedule families at equal memory, predicted and measured on two local processes.

Real models, cut for one stage per process and for two in a V. All rows of a table may use the same memory on every
process: that of 1F1B, or some micro-batches of the first stage more or less. On each placement the fastest family that
fits, with and without split backward, is compared with the searched schedules, joined and split. A row that two methods
have in common is shown once. Every row runs in each of several rounds in turn, and shows medians. Nothing else should
run meanwhile; the run takes about ten minutes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from statistics import median

from benchmarks.prediction import PROCESSES, profiled

from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.pipeline import Pipeline, Placement
from pipeplan.core.plan import MemoryParts, Plan, PlanStage
from pipeplan.core.schedule import Kind, Schedule
from pipeplan.core.units import format_bytes
from pipeplan.costs.assembly import assemble
from pipeplan.costs.chain import Boundaries, Chain
from pipeplan.costs.pricing import price
from pipeplan.schedules import FAMILIES
from pipeplan.schedules.placed import loop, vee
from pipeplan.search.scheduling import find_schedule
from pipeplan.search.scheduling.evaluator import Evaluator
from pipeplan.search.scheduling.families import family_schedules
from pipeplan.simulate import simulate
from pipeplan_executor import describe_machine, run
from pipeplan_formulations.common.report import Limits

MODELS = {"decoder": (0.0, -0.5), "vgg16": (2.0,)}
"""Memory limits relative to that of 1F1B, in micro-batches of the first stage, more or less."""
MICRO_BATCH, MICRO_BATCHES = 2, 8
ROUNDS, STEPS, SECONDS = 3, 4, 5.0
PLACEMENTS = {"line": loop(PROCESSES, 1), "V": vee(PROCESSES)}


@dataclass
class Row:
    """A schedule of a plan, and the measured times of its steps."""

    where: str
    plan: Plan
    peaks: tuple[int, ...]
    found: bool
    times: list[int] = field(default_factory=list)


def main() -> None:
    """Print a table for each model and each memory."""
    cluster = describe_machine(PROCESSES)
    for name, more in MODELS.items():
        model = profiled(name)
        base = on_devices(model, cluster, PLACEMENTS["line"])
        schedule = FAMILIES["1f1b-sno"].write((1,) * PROCESSES, MICRO_BATCHES)
        enough = max(simulate(schedule, base[1]).peaks)
        for count in more:
            memory = enough + round(count * base[1].stages[0].held)
            rows = [row for where in PLACEMENTS for row in contestants(model, cluster, where, memory)]
            for _ in range(ROUNDS):
                for row in rows:
                    row.times += run(row.plan, f"pipeplan_executor.zoo:{name}", steps=STEPS, device="cpu").step_times
            show(f"{name}, {format_bytes(memory)} a process ({count:+g} micro-batches beside what 1F1B needs)", rows)


def contestants(model: Model, cluster: Cluster, where: str, memory: int) -> Iterator[Row]:
    """The fastest families with joined and with split backward, and the searched schedules of either kind."""
    boundaries, pipeline = on_devices(model, cluster, PLACEMENTS[where])
    pipeline = replace(pipeline, limits=(memory,) * PROCESSES)
    judges = {split: Evaluator(pipeline) for split in (False, True)}
    for each in family_schedules(pipeline, MICRO_BATCHES, (True,) * len(pipeline.stages)):
        if not each.two_lanes:
            judges[splits(each)].submit(each)
    seen: set[tuple[object, ...]] = set()
    for split, judge in judges.items():
        answer = find_schedule(pipeline, MICRO_BATCHES, Limits(time=SECONDS), split=split).schedule
        for schedule, found in ((judge.best, False), (answer, True)):
            if schedule is not None and schedule.orders not in seen:
                seen.add(tuple(schedule.orders))
                plan = plan_of(model, cluster, boundaries, pipeline, schedule)
                yield Row(where, plan, simulate(schedule, pipeline).peaks, found)


def splits(schedule: Schedule) -> bool:
    """True if some backward is split."""
    return any(action.kind is Kind.INPUT_GRADIENT for action in schedule.actions())


def on_devices(model: Model, cluster: Cluster, placement: Placement) -> tuple[Boundaries, Pipeline]:
    """The cut with the least largest load of a device, then of a stage, and its pipeline on these devices."""
    job = Job(batch=MICRO_BATCH * MICRO_BATCHES)
    homes = [device for (device,) in placement]
    chain = price(model, cluster, [cluster.devices[device] for device in homes], MICRO_BATCH, job)
    layers = len(chain.names)
    cuts = ((0, *inner, layers) for inner in combinations(range(1, layers), len(homes) - 1))
    best = min(cuts, key=lambda boundaries: loads(chain, boundaries, homes))
    apart = assemble(chain, cluster, best)
    runtime = tuple(cluster.devices[device].kind.runtime for device in range(PROCESSES))
    return best, replace(apart, placement=placement, runtime=runtime, limits=apart.limits[:PROCESSES])


def loads(chain: Chain, boundaries: Boundaries, homes: list[int]) -> tuple[int, int]:
    """Largest loads of a device and of a stage, in nanoseconds."""
    stages = [
        int(chain.forward[s, a:b].sum() + chain.backward[s, a:b].sum()) for s, (a, b) in enumerate(pairwise(boundaries))
    ]
    devices = [sum(load for load, home in zip(stages, homes, strict=True) if home == d) for d in set(homes)]
    return max(devices), max(stages)


def plan_of(model: Model, cluster: Cluster, boundaries: Boundaries, pipeline: Pipeline, schedule: Schedule) -> Plan:
    """Plan for the executor."""
    step = simulate(schedule, pipeline)
    return Plan(
        model=model.name,
        fingerprint=model.fingerprint,
        cluster=cluster.name,
        device_kinds=tuple(device.kind.name for device in cluster.devices),
        micro_batch=MICRO_BATCH,
        micro_batches=MICRO_BATCHES,
        optimizer="sgd",
        stages=tuple(
            PlanStage(
                model.names[a:b],
                homes,
                stage.total(Kind.FORWARD),
                stage.total(Kind.BACKWARD),
                MICRO_BATCHES,
                MemoryParts(),
            )
            for (a, b), homes, stage in zip(pairwise(boundaries), pipeline.placement, pipeline.stages, strict=True)
        ),
        schedule=schedule,
        ranks=tuple(range(PROCESSES)),
        step_time=step.makespan,
        bound=0,
        pipeline=pipeline,
    )


def show(title: str, rows: list[Row]) -> None:
    """Print one table."""
    print(f"{title}; {MICRO_BATCHES} micro-batches of {MICRO_BATCH}, medians of {ROUNDS} rounds of {STEPS} steps")
    print(
        f"  {'stages':8}{'schedule':16}{'backwards':10} {'predicted':>11} {'measured':>11} {'off':>7}  peaks, simulated"
    )
    for row in rows:
        time = median(row.times)
        print(
            f"  {row.where:8}{'found' if row.found else row.plan.schedule.family:16}"
            f"{'split' if splits(row.plan.schedule) else 'joined':10} {row.plan.step_time / 1e6:8.1f} ms "
            f"{time / 1e6:8.1f} ms {time / row.plan.step_time - 1:+7.1%}  {', '.join(map(format_bytes, row.peaks))}",
            flush=True,
        )
    families = [row for row in rows if not row.found]
    if families:
        best = min(rows, key=lambda row: row.plan.step_time)
        promised = best.plan.step_time / min(row.plan.step_time for row in families)
        seen = median(best.times) / min(median(row.times) for row in families)
        print(f"  predicted best of all / predicted best of families: {promised:.3f}")
        print(f"  the same one as measured / measured best of families: {seen:.3f}", flush=True)


if __name__ == "__main__":
    main()
