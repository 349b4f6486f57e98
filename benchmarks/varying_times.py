"""Predicted and measured steps with varying times: two local processes, one partition under three schedules.

A plan's step differs from the measured one for two reasons: actions take longer than profiled, and they vary, so that
ranks wait for each other. To isolate the second reason, the plan's pipeline gets the actions' measured means. Its
nominal step is then too short by the cost of variation, while the mean of perturbed steps, with the measured spreads,
should match. Nothing else should run meanwhile.
"""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from math import sqrt
from statistics import fmean, pstdev

from pipeplan.core.perturbation import Robust
from pipeplan.core.pipeline import Pipeline
from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Kind
from pipeplan.core.timeline import Timeline
from pipeplan.frontend.profile import profile_workload
from pipeplan.simulate import makespan
from pipeplan.simulate.perturbed.sample import step_times
from pipeplan.solve import solve
from pipeplan_executor import describe_machine, run

MODEL, PROCESSES, BATCH, SIZE = "decoder", 2, 16, 1
SCHEDULES = ("1f1b-sno", "1f1b-so", "gpipe")
ROUNDS, STEPS, SOLVE_SECONDS, SAMPLES = 6, 5, 10.0, 2000

Groups = dict[tuple[int, Kind], list[list[int]]]
"""For each stage and kind, the durations in each time line."""


@dataclass
class Seen:
    """A plan and the typical step of each of its runs."""

    plan: Plan
    timelines: list[Timeline] = field(default_factory=list)

    def groups(self) -> Groups:
        """Durations of equal actions, time line by time line."""
        found: Groups = defaultdict(list)
        for timeline in self.timelines:
            own = defaultdict(list)
            for span in timeline.spans:
                own[span.action.stage, span.action.kind].append(span.end - span.start)
            for key, durations in own.items():
                found[key].append(durations)
        return found


def main() -> None:
    """Print one row per schedule."""
    name = f"pipeplan_executor.zoo:{MODEL}"
    model = profile_workload(name, micro_batches=(SIZE,), name=MODEL, crowd=PROCESSES)
    cluster = describe_machine(PROCESSES)
    constraints = {"depths": (PROCESSES,), "replicas": (1,)}
    rows = []
    for schedule in SCHEDULES:
        asked = {**constraints, "schedules": (schedule,)}
        result = solve(model, cluster, BATCH, time_limit=SOLVE_SECONDS, **asked)  # type: ignore[arg-type]
        rows.append(Seen(result.plan))
    for _ in range(ROUNDS):
        for row in rows:
            row.timelines.append(run(row.plan, name, steps=STEPS, device="cpu").timeline)
    print(f"{MODEL}, batch {BATCH}, micro-batches of {SIZE}, {PROCESSES} stages; typical steps of {ROUNDS} runs")
    print("  schedule   spread  devices'    as planned   with measured means   perturbed   measured")
    for row in rows:
        pipeline, robust = with_means(row), spreads(row.groups())
        still = makespan(row.plan.schedule, pipeline)
        varied = step_times(row.plan.schedule, pipeline, robust, samples=SAMPLES).mean()
        measured = fmean(timeline.makespan for timeline in row.timelines)
        print(
            f"  {row.plan.schedule.family:9}  {robust.spread:6.1%}  {robust.device_spread:8.1%}  "
            f"{row.plan.step_time / 1e6:9.1f} ms  {still / 1e6:12.1f} ms {still / measured - 1:+.1%}  "
            f"{varied / 1e6:8.1f} ms {varied / measured - 1:+.1%}  {measured / 1e6:8.1f} ms",
            flush=True,
        )


def with_means(row: Seen) -> Pipeline:
    """The plan's pipeline with the measured mean times of its actions."""
    means = {key: round(fmean(fmean(steps) for steps in found)) for key, found in row.groups().items()}
    pipeline = row.plan.pipeline
    stages = tuple(
        replace(
            stage,
            forward=means[s, Kind.FORWARD],
            backward=means[s, Kind.BACKWARD],
            update=means[s, Kind.UPDATE],
        )
        for s, stage in enumerate(pipeline.stages)
    )
    return replace(pipeline, stages=stages)


def spreads(groups: Groups) -> Robust:
    """Spread of equal actions within a step, and the additional spread of a device's means between steps."""
    within, between = [], []
    for (_, kind), found in groups.items():
        if kind in (Kind.FORWARD, Kind.BACKWARD):
            means = [fmean(durations) for durations in found]
            own = fmean((pstdev(durations) / mean) ** 2 for durations, mean in zip(found, means, strict=True))
            within.append(own)
            between.append((pstdev(means) / fmean(means)) ** 2 - own / fmean(map(len, found)))
    return Robust(min(1.0, sqrt(fmean(within))), min(1.0, sqrt(max(0.0, fmean(between)))))


if __name__ == "__main__":
    main()
