"""Error of predictions before and after a calibration, measured on two local processes.

Three real models in two stages, four schedules, 4, 8 and 16 micro-batches. Each plan runs once. Three predictions are
compared with its later steps:

- before: from the profile alone;
- own: calibrated from the plan's own first steps;
- other: calibrated from one other plan of the model, 1F1B with 8 micro-batches, as if a new plan is chosen.

A peak is one number per run, so memory has no later steps; there, too, ``other`` is the accuracy for a new plan. The
run takes about ten minutes, and nothing else should run meanwhile.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from benchmarks.found_schedules import on_devices, plan_of
from benchmarks.prediction import PROCESSES

from pipeplan.core.cluster import Cluster
from pipeplan.core.model import Model
from pipeplan.core.plan import Plan
from pipeplan.frontend.profile import profile_workload
from pipeplan.schedules import FAMILIES, PLACED
from pipeplan.schedules.placed import loop
from pipeplan.search.scheduling import find_schedule
from pipeplan.simulate import simulate
from pipeplan_executor import describe_machine, run
from pipeplan_executor.calibrate import Calibration, Prediction, calibrated, observed, predict, repriced
from pipeplan_formulations.common.report import Limits

MODELS = ("decoder", "vgg16", "resnet50")
MICRO_BATCH, COUNTS = 2, (4, 8, 16)
WARMUP, FIRST, LATER = 1, 3, 4
"""Numbers of steps that are ignored, that calibrate, and with which predictions are compared."""
SEARCH_SECONDS = 5.0
TEACHER = ("1F1B", 8)
"""The plan that predicts the others."""


@dataclass(frozen=True)
class Row:
    """A plan, and its steps after the first ones."""

    name: str
    plan: Plan
    time: float
    peaks: tuple[int, ...]
    own: Calibration

    def errors(self, prediction: Prediction) -> tuple[float, tuple[float, ...]]:
        """Relative errors of the predicted step time and of every peak; positive if the prediction is above."""
        peaks = tuple(told / seen - 1 for told, seen in zip(prediction.peaks, self.peaks, strict=True))
        return prediction.step_time / self.time - 1, peaks


def main() -> None:
    """Print a table for each model, then one for all together."""
    cluster = describe_machine(PROCESSES)
    errors: dict[str, list[tuple[float, tuple[float, ...]]]] = {"before": [], "own": [], "other": []}
    for name in MODELS:
        model = profiled(name)
        print(f"{name}, micro-batches of {MICRO_BATCH}; error of the predicted step time, and of each rank's peak")
        rows = [measured(label, plan, name, model, cluster) for label, plan in plans(model, cluster, COUNTS)]
        teacher = next(row for row in rows if (row.name, row.plan.micro_batches) == TEACHER)
        for row in rows:
            told = {"before": row.own.before, "own": row.own.after}
            if row is not teacher:
                told["other"] = taught(row.plan, teacher.own)
            print(f"  {row.name:16}{row.plan.micro_batches:3} micro-batches  {row.time / 1e6:8.1f} ms  ", end="")
            for way, prediction in told.items():
                errors[way].append(row.errors(prediction))
                time, peaks = errors[way][-1]
                print(f"  {way} {time:+6.1%} ({', '.join(f'{peak:+.1%}' for peak in peaks)})", end="")
            print(f"  stretch {row.own.stretch:.3f}", flush=True)
    for way, found in errors.items():
        show(way, found)


def profiled(name: str) -> Model:
    """Profile of the model at the one size that runs here, measured beside as many workers as in the run."""
    return profile_workload(f"pipeplan_executor.zoo:{name}", micro_batches=(MICRO_BATCH,), name=name, crowd=PROCESSES)


def plans(model: Model, cluster: Cluster, counts: tuple[int, ...]) -> Iterator[tuple[str, Plan]]:
    """Plans of the best balanced two stages under GPipe, 1F1B, ZB-H1, and a searched schedule in 1F1B's memory."""
    boundaries, pipeline = on_devices(model, cluster, loop(PROCESSES, 1))
    for count in counts:
        one = FAMILIES["1f1b-sno"].write((1,) * PROCESSES, count)
        memory = max(simulate(one, pipeline).peaks)
        tight = replace(pipeline, limits=(memory,) * PROCESSES)
        found = find_schedule(tight, count, Limits(time=SEARCH_SECONDS), split=True).schedule
        schedules = {
            "GPipe": FAMILIES["gpipe"].write((1,) * PROCESSES, count),
            "1F1B": one,
            "ZB-H1": PLACED["zb-h1"].write(PROCESSES, count),
            "found": found,
        }
        for label, schedule in schedules.items():
            if schedule is not None:
                yield label, replace(plan_of(model, cluster, boundaries, pipeline, schedule), micro_batches=count)


def measured(label: str, plan: Plan, name: str, model: Model, cluster: Cluster) -> Row:
    """Run a plan once; its first steps calibrate, its later ones are kept."""
    report = run(plan, f"pipeplan_executor.zoo:{name}", steps=FIRST + LATER, warmup=WARMUP, device="cpu")
    seen = observed(report.timelines[:FIRST], report.step_times[:FIRST], report.peaks)
    own = calibrated(plan, model, cluster, seen)
    return Row(label, plan, median(report.step_times[FIRST:]), report.peaks, own)


def taught(plan: Plan, by: Calibration) -> Prediction:
    """Prediction of a plan by another plan's calibration."""
    return predict(plan, repriced(plan, by.model, by.cluster))


def show(way: str, found: list[tuple[float, tuple[float, ...]]]) -> None:
    """Print median and worst errors over all plans."""
    times = [abs(time) for time, _ in found]
    peaks = [abs(peak) for _, row in found for peak in row]
    print(
        f"{way:7} step time off by {median(times):.1%} (median), {max(times):.1%} (worst); "
        f"peaks by {median(peaks):.1%}, {max(peaks):.1%}; {len(found)} plans",
        flush=True,
    )


if __name__ == "__main__":
    main()
