"""Steps of the demonstration: a model with memory to spare, and the same model where memory is short.

::

    measure machine and model ─▶ all its memory     ─▶ the answer, its proof ─▶ run it ─╮
                              ╰▶ a limit below that ─▶ a pipeline, beside    ─▶ run it ─┴▶ one table, one picture
                                 data parallelism      the heuristics
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from textwrap import indent

from pipeplan.core.cluster import Cluster
from pipeplan.core.figures import whole
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.plan import Plan
from pipeplan.core.tabular import Table
from pipeplan.core.timeline import Timeline
from pipeplan.core.units import format_bytes, format_time
from pipeplan.core.wording import counted, zero_suffix
from pipeplan.frontend.profile import profile_workload
from pipeplan.io.cluster_file import write_cluster
from pipeplan.io.model_file import write_model
from pipeplan.report.page.pages import solve_page
from pipeplan.report.page.sections.time_line import time_lines
from pipeplan.report.plot.gantt import save_gantt
from pipeplan.report.trace import write_trace
from pipeplan.search.heuristics import ranked
from pipeplan.search.result import Result
from pipeplan.simulate import memory_of_ranks
from pipeplan.solve import solve
from pipeplan_executor.calibrate.machine import describe_machine
from pipeplan_executor.processes.devices import cores
from pipeplan_executor.train.report import RunReport
from pipeplan_executor.train.runner import run
from pipeplan_executor.train.verdict import check_verdict

PROCESSES = 2
SIZES = (1, 2, 4)
"""Micro-batch sizes that are profiled."""
OPTIMIZER = "adam"
SOLVE_SECONDS = 30.0
SHORT = 0.64
"""What plans may use where memory is short, as a share of what the first one takes beside its processes' runtime."""
RESERVE = 0.07
"""Share of the short memory that plans leave free, as processes take up to 5 % more than predicted."""
BUSY = 0.75
"""Programs that are running beside as many as there are cores, by which steps take visibly longer."""
PAGE = "demo.html"
MIB = 2**20
COLUMNS = 100
"""Columns of the text."""


@dataclass(frozen=True)
class Ran:
    """An answer, and what the run of its plan measured."""

    name: str
    result: Result
    report: RunReport

    @property
    def timelines(self) -> dict[str, Timeline]:
        """Predicted and measured time line, by the labels of a picture."""
        return {
            f"{self.name}, predicted": self.result.timeline,
            f"{self.name}, measured": self.report.timeline,
        }


def demonstrate(folder: Path, name: str, batch: int, steps: int) -> None:
    """Run the demonstration for a model of `pipeplan_executor.zoo`; write files into ``folder``."""
    Job(batch=batch)  # refuses an invalid batch before anything is measured
    whole(steps, "steps", 1)
    folder.mkdir(parents=True, exist_ok=True)
    cluster, model = _measured(name, batch)
    write_cluster(cluster, folder / "cluster.yaml")
    write_model(model, folder / f"{name}.yaml")
    plenty = cluster.devices[0].kind.memory or 0
    print(f"\n1. Memory to spare: {format_bytes(plenty)} per device. Steps of {batch} samples, {OPTIMIZER}.")
    spare = _answered(model, cluster, Job(batch=batch, optimizer=OPTIMIZER))
    print(_pipelines(spare))
    ran = [_run("memory to spare", spare, folder / "spare.json", name, steps)]
    # the same model under a limit that this plan does not meet
    needed, runtime = max(spare.timeline.peaks), cluster.devices[0].kind.runtime
    limit = round((runtime + SHORT * (needed - runtime)) / MIB) * MIB
    per_device = round(limit / (1 - RESERVE) / MIB) * MIB
    print(
        f"\n2. Memory short: {format_bytes(per_device)} per device, of which {RESERVE:.0%} stay free. The plan above "
        f"needs {format_bytes(needed)}."
    )
    short = _answered(model, cluster, Job(batch=batch, optimizer=OPTIMIZER, memory=limit))
    print(_heuristics(short))
    ran.append(_run("memory short", short, folder / "short.json", name, steps))
    print(f"\n3. Predicted beside measured: {PROCESSES} processes, median of {counted(steps, 'step')}.")
    print(_measurements(ran))
    if (load := os.getloadavg()[0]) > cores() + BUSY:
        print(f"   Other programs ran too (load {load:.1f} on {counted(cores(), 'core')}), so steps took longer.")
    _write_pictures(folder, ran, limit)
    _write_page(folder, ran)
    print(
        f"\nOpen {folder}/{PAGE}: both plans, predicted and measured. Beside it: demo.svg, the model, the\n"
        "cluster, the plans, and traces for ui.perfetto.dev."
    )


def _measured(name: str, batch: int) -> tuple[Cluster, Model]:
    """Return this machine and the model, as measured now."""
    began = time.monotonic()
    print(f"This machine as {PROCESSES} workers: ", end="", flush=True)
    cluster = describe_machine(PROCESSES)
    link = cluster.nodes[0].link
    print(f"link {(link.bandwidth or 0) / 1e9:.3g} GB/s, latency {format_time(link.latency)} ({_since(began)})")
    began = time.monotonic()
    print(f"Model {name}, profiled layer by layer: ", end="", flush=True)
    model = profile_workload(
        f"pipeplan_executor.zoo:{name}",
        micro_batches=[size for size in SIZES if batch % size == 0],
        name=name,
        optimizer=OPTIMIZER,
        crowd=PROCESSES,  # the workers will share caches and memory with each other
    )
    size = format_bytes(sum(layer.parameters for layer in model.layers))
    print(f"{counted(len(model.layers), 'layer')}, {size} of parameters ({_since(began)})")
    return cluster, model


def _since(began: float) -> str:
    return f"{time.monotonic() - began:.0f} s"


def _answered(model: Model, cluster: Cluster, job: Job) -> Result:
    """Solve; print the answer and its proof."""
    result = solve(model, cluster, job=job, time_limit=SOLVE_SECONDS)
    plan = result.plan
    print(
        f"   Answer: {_words(plan)}, {counted(plan.micro_batches, 'micro-batch')} of {plan.micro_batch}, schedule "
        f"{plan.schedule.family}.\n   Proved: {format_time(result.value)} a step, and no searched plan takes less than "
        f"{format_time(result.bound)} (gap {result.gap:.2%}, {result.wall:.1f} s)."
    )
    for number, stage in enumerate(plan.stages if len(plan.stages) > 1 else ()):
        again = f", {len(stage.recompute)} of them recomputed" if stage.recompute else ""
        print(
            f"   Stage {number}: {stage.layers[0]} … {stage.layers[-1]}, {counted(len(stage.layers), 'layer')}{again}; "
            f"{format_bytes(stage.memory.total)}"
        )
    return result


def _words(plan: Plan) -> str:
    """Return what kind of plan it is, in the words of the field."""
    if len(plan.stages) > 1:
        again = ", with recomputation" if any(stage.recompute for stage in plan.stages) else ""
        return f"a pipeline of {plan.shape}{again}"
    if plan.stages[0].replicas == 1:
        return "one device"
    return f"overlapped data parallelism{zero_suffix(plan.zero)}, {plan.stages[0].replicas} replicas"


def _pipelines(result: Result) -> str:
    """Return by how much the best pipeline of a heuristic is slower than data parallelism, if that is the answer."""
    rows = ranked(row for row in result.baselines.values() if row.evaluated and len(row.evaluated.boundaries) > 2)
    if not rows or rows[0].value is None or len(result.plan.stages) > 1:
        return "   On this machine sums of gradients are too slow for data parallelism."
    slower = rows[0].value / result.value - 1
    return f"   The best pipeline of a heuristic ({rows[0].name}) takes {format_time(rows[0].value)}: {slower:+.1%}."


def _heuristics(result: Result) -> str:
    """Return the heuristics by their step times, those of one time on one line."""
    rows = ranked(row for row in result.baselines.values() if not row.outside)
    lines: list[tuple[str, str, str]] = []
    for value, alike in groupby(rows, key=lambda row: row.value):
        names = ", ".join(row.name for row in alike)
        over = "" if value is None else f"{value / result.value - 1:+.1%}"
        lines.append(("does not fit" if value is None else format_time(value), over, names))
    headings = (
        "step time",
        "",
        "heuristics, each with what suits it: schedule, micro-batches, recomputation",
    )
    return indent(Table.of_text(headings, lines).as_text(width=COLUMNS), "   ")


def _run(label: str, result: Result, path: Path, name: str, steps: int) -> Ran:
    """Save and run a plan; refuse wrong gradients."""
    result.plan.save(path)
    report = run(result.plan, f"pipeplan_executor.zoo:{name}", steps=steps, verify=True, device="cpu")
    check_verdict(report.verdict)
    return Ran(label, result, report)


def _measurements(ran: Sequence[Ran]) -> str:
    """Return time and memory of all runs beside their predictions."""
    headings = (
        "",
        "step predicted",
        "measured",
        "off by",
        "memory predicted",
        "memory measured",
        "gradients differ by",
    )
    return indent(Table.of_text(headings, map(_figures, ran)).as_text(), "   ")


def _figures(ran: Ran) -> tuple[str, ...]:
    plan, report = ran.result.plan, ran.report
    return (
        ran.name,
        format_time(plan.step_time),
        format_time(report.step_time),
        report.off(plan.step_time),
        format_bytes(max(memory_of_ranks(plan))),
        format_bytes(max(report.peaks)),
        f"{report.error:.0e}",
    )


def _write_pictures(folder: Path, ran: Sequence[Ran], limit: int) -> None:
    """Draw all time lines, with the short limit, on one axis; write a trace of each run."""
    lines = {label: line for each in ran for label, line in each.timelines.items()}
    plan = ran[0].result.plan
    save_gantt(folder / "demo.svg", lines, limits=[limit] * PROCESSES, title=f"{plan.model} on {plan.cluster}")
    for each in ran:
        write_trace(folder / f"{each.name.split()[-1]}.trace.json", each.timelines)


def _write_page(folder: Path, ran: Sequence[Ran]) -> None:
    """Write a page of the last answer, which begins with the time lines of both."""
    lines = [(label, each.result.plan, line) for each in ran for label, line in each.timelines.items()]
    both = replace(time_lines(lines, "both"), title="Both plans, predicted and measured")
    page = solve_page(ran[-1].result)
    replace(page, sections=[both, *page.sections]).save(folder / PAGE)
