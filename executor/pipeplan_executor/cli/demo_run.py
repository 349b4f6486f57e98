"""Steps of the demonstration: describe the machine, profile, solve, compare, run, compare with the prediction."""

from dataclasses import replace
from pathlib import Path

from pipeplan.analysis.compare import Comparison, compare
from pipeplan.cli.compare import show
from pipeplan.cli.progress import solving
from pipeplan.core.cluster import Cluster
from pipeplan.core.figures import whole
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.plan import Plan
from pipeplan.core.tabular import Table
from pipeplan.core.units import format_bytes, format_time
from pipeplan.frontend.profile import profile_workload
from pipeplan.io.cluster_file import write_cluster
from pipeplan.io.model_file import write_model
from pipeplan.search.build_plan import build_plan
from pipeplan.search.heuristics import ranked
from pipeplan_executor.calibrate import calibrated, observed, predict, repriced
from pipeplan_executor.calibrate.engine import NOTABLE, engine_work
from pipeplan_executor.calibrate.machine import as_text, describe_machine
from pipeplan_executor.train.report import RunReport, layers_by_stage, predicted_peak, write_pictures
from pipeplan_executor.train.runner import run
from pipeplan_executor.train.verdict import check_verdict

PROCESSES = 2
SIZES = (1, 2, 4)
"""Micro-batch sizes that are profiled."""
SOLVE_SECONDS = 30.0


def demonstrate(folder: Path, names: tuple[str, ...], batch: int, steps: int) -> None:
    """Run the demonstration for each named model of `pipeplan_executor.zoo`; write files into ``folder``."""
    Job(batch=batch)  # refuses an invalid batch before anything is measured
    whole(steps, "steps", 1)
    folder.mkdir(parents=True, exist_ok=True)
    _title(f"This machine as {PROCESSES} worker processes")
    cluster = describe_machine(PROCESSES)
    write_cluster(cluster, folder / "cluster.yaml")
    print(as_text(cluster))
    for name in names:
        _one(name, cluster, folder, batch, steps)
    print(f"\nModels, cluster, plans, pictures and traces lie in {folder}/; open a trace at ui.perfetto.dev.")


def _one(name: str, cluster: Cluster, folder: Path, batch: int, steps: int) -> None:
    _title(f"{name}: profile, layer by layer")
    model = _profiled(name, batch)
    write_model(model, folder / f"{name}.yaml")
    _title(f"{name}: every partitioner, every schedule family, the solver")
    with solving(f"{name} on {cluster.name}") as on_progress:
        comparison = compare(model, cluster, Job(batch=batch), time_limit=SOLVE_SECONDS, on_progress=on_progress)
    show(comparison)
    print(str(comparison.best).partition("heuristics,")[0].rstrip())
    _title(f"{name}: the plan and the best partitioner's plan, run with {PROCESSES} processes")
    spec = f"pipeplan_executor.zoo:{name}"
    ran: list[tuple[str, Plan, RunReport]] = []
    for label, plan in _contestants(model, cluster, comparison):
        path = folder / f"{name}-{label}.json"
        plan.save(path)
        report = run(plan, spec, steps=steps, verify=True, device="cpu")
        check_verdict(report.verdict)
        ran.append((label, plan, report))
        beside = folder / f"{name}-{label}"
        plots = [f"{beside}.svg", f"{beside}.png"]
        write_pictures(plan, report, trace=f"{beside}.trace.json", plots=plots)
    for label, plan, report in ran:
        engine = engine_work(plan, report)
        if engine is not None and engine.share >= NOTABLE:
            print(f"{label}: {engine}")
    figures = zip(FIGURES, *(_figures(plan, report, _by_others((label, plan, report), ran, model, cluster))
                             for label, plan, report in ran), strict=True)  # fmt: skip
    print(Table.of_text(("plan of", *(label for label, _, _ in ran)), figures).as_text())
    print(_verdict(ran))


def _profiled(name: str, batch: int) -> Model:
    model = profile_workload(
        f"pipeplan_executor.zoo:{name}",
        micro_batches=[size for size in SIZES if batch % size == 0],
        name=name,
        crowd=PROCESSES,  # the workers will share caches and memory with each other
        on_progress=lambda text: print(f"  {text}"),
    )
    largest = model.profiles[-1]
    for layer, cost in zip(model.layers, largest.costs, strict=True):
        print(
            f"  {layer.name:12} forward {format_time(cost.forward):>9}  backward {format_time(cost.backward):>9}  "
            f"parameters {format_bytes(layer.parameters):>10}  saved {format_bytes(cost.saved):>10}"
        )
    print(f"  (for a micro-batch of {largest.micro_batch})")
    return model


def _contestants(model: Model, cluster: Cluster, comparison: Comparison) -> list[tuple[str, Plan]]:
    """Return the solver's plan, and the best plan of any partitioner."""
    best = comparison.best
    plans = [("pipeplan", best.plan)]
    balanced = ranked(
        row for result in comparison.results.values() for row in result.baselines.values() if not row.outside
    )
    if balanced and balanced[0].evaluated is not None:
        other = build_plan(model, cluster, best.job, balanced[0].evaluated, comparison.bound)
        plans.append((balanced[0].name, replace(other, yardstick=best.plan.yardstick)))
    return plans


def _by_others(
    own: tuple[str, Plan, RunReport], ran: list[tuple[str, Plan, RunReport]], model: Model, cluster: Cluster
) -> int | None:
    """Return the step of a plan as predicted with costs that the run of another plan corrected; None if none can."""
    for label, plan, report in ran:
        if label != own[0] and not plan.sharded and not own[1].sharded:
            seen = observed(report.timelines, report.step_times, report.peaks, plan.pipeline.tied, plan.zero > 0)
            found = calibrated(plan, model, cluster, seen)
            return predict(own[1], repriced(own[1], found.model, found.cluster)).step_time
    return None


def _verdict(ran: list[tuple[str, Plan, RunReport]]) -> str:
    """Return which plan was faster in the measured steps, or that they vary by as much as the plans differ."""
    (best, _, fast), *others = sorted(ran, key=lambda row: row[2].step_time)
    if not others:
        return f"{best} is the only plan that ran"
    other, _, slow = others[0]
    lead = slow.step_time / fast.step_time - 1
    if max(fast.step_times) >= min(slow.step_times):
        return f"the medians differ by {lead:.1%}, which is noise: steps of one plan overlap those of the other"
    return f"{best} is faster than {other} by {lead:.1%}, every step of it"


def _figures(plan: Plan, report: RunReport, by_others: int | None) -> tuple[str, ...]:
    return (
        plan.schedule.family,
        f"{plan.micro_batches} x {plan.micro_batch}",
        layers_by_stage(plan),
        format_time(report.step_time),
        report.spread,
        f"{format_time(plan.step_time)}, {report.off(plan.step_time)}",
        "-" if by_others is None else f"{format_time(by_others)}, {report.off(by_others)}",
        ", ".join(format_bytes(predicted_peak(plan, rank)) for rank in range(len(plan.ranks))),
        ", ".join(format_bytes(peak) for peak in report.peaks),
        "" if report.error is None else f"{report.error:.0e}",
    )


FIGURES = (
    "schedule",
    "micro-batches",
    "layers",
    "step measured",
    "least to most",
    "predicted, off by",
    "by the other's run",
    "peak memory predicted",
    "measured",
    "gradient error",
)
"""Names of what `_figures` returns."""


def _title(text: str) -> None:
    print(f"\n== {text}", flush=True)
