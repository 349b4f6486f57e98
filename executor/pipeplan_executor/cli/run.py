"""``pipeplan run``: run a plan with torch, and compare it with its prediction."""

import json
import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from pipeplan.cli.base import OUTPUT, Command, add_json, add_report, group, show, try_outputs
from pipeplan_executor.cli.running import add_run, finished, is_first, run_plan

if TYPE_CHECKING:
    from pipeplan.core.plan import Plan
    from pipeplan_executor.calibrate.engine import EngineWork
    from pipeplan_executor.train.report import RunReport
    from pipeplan_executor.train.saving import Saving

WITHOUT = " without tensor parallelism"
"""What a prediction is for if other numbers of processes ran."""


def configure(parser: ArgumentParser) -> None:
    """Add the arguments of ``run``."""
    add_run(parser)
    what, steps, files = (group(parser, title) for title in ("plan and model", "steps", OUTPUT))
    steps.add_argument("--verify", action="store_true", help="compare loss and gradients with the unsplit model")
    steps.add_argument(
        "--prefill", action="store_true", help="forwards of the plan's order alone: with token slices, chunked prefill"
    )
    what.add_argument("--seed", type=int, default=0, help="of weights and batches")
    what.add_argument(
        "--weights",
        metavar="FILE",
        help="of the unsplit model: a state dict, safetensors (else drawn)",
    )
    files.add_argument(
        "--trace", metavar="FILE", help="write predicted and measured time line for Perfetto; - prints it"
    )
    files.add_argument("--plot", metavar="FILE", help="draw predicted and measured time line (.svg or .png)")
    add_report(parser)
    steps.add_argument("--restarts", type=int, default=0, metavar="N", help="start again so often after a loss (0)")
    steps.add_argument(
        "--tensor-parallel",
        type=int,
        metavar="N",
        help="processes that share a rank, by the model's shards (the plan's teams, or 1)",
    )
    steps.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="what ranks run on (auto)")
    saving = parser.add_argument_group("checkpoints")
    saving.add_argument("--checkpoint", metavar="DIR", help="save the last step there")
    saving.add_argument("--every", type=int, default=0, metavar="N", help="and after every N steps")
    saving.add_argument("--keep", type=int, default=3, metavar="N", help="number of newest ones that stay (3)")
    saving.add_argument("--resume", action="store_true", help="go on from the latest one, if there is one")
    add_json(parser)


def run(options: Namespace) -> int:
    """Run, print, draw; raise if the gradients are wrong."""
    from pipeplan.cli.questions import given
    from pipeplan.core.errors import InputError
    from pipeplan.core.plan import Plan
    from pipeplan_executor.calibrate.engine import engine_work
    from pipeplan_executor.processes.devices import choose
    from pipeplan_executor.train.report import ranks_text, write_page, write_pictures
    from pipeplan_executor.train.verdict import check_verdict

    if is_first():
        outputs = {"files": ("trace",), "pictures": ("plot",), "pages": ("report",), "folders": ("checkpoint",)}
        try_outputs(options, **outputs, inputs=("plan",))
    if options.prefill and (found := given(options, ("trace", "plot", "report", "json", "verify", "checkpoint"))):
        raise InputError(f"forwards alone (--prefill) print one line: leave out {' and '.join(found)}")
    plan = Plan.load(options.plan)
    saving = _saving(options)
    if is_first():
        ranks = ranks_text(plan, options.tensor_parallel or 1)
        print(f"running {plan.model}: {ranks}, schedule {plan.schedule.family}", file=sys.stderr)
    report = run_plan(
        options,
        plan,
        verify=options.verify,
        weights=options.weights,
        saving=saving,
        restarts=options.restarts,
        device=options.device,
        tensor_parallel=options.tensor_parallel,
        prefill=options.prefill,
    )
    if is_first() and options.prefill:
        show(prefill_text(plan, report), options, "trace")
    elif is_first():
        engine = engine_work(plan, report) if choose(options.device, 1) == "cpu" else None
        text = json.dumps(as_json(plan, report, engine), indent=2) if options.json else as_text(plan, report, engine)
        show("\n".join(filter(None, (untimed(options, report) * (not options.json), text))), options, "trace")
        if options.trace or options.plot:
            write_pictures(plan, report, trace=options.trace, plots=[options.plot] if options.plot else [])
        if options.report:
            write_page(plan, report, options.report, as_text(plan, report, engine).splitlines())
    check_verdict(report.verdict)
    return finished()


def _saving(options: Namespace) -> "Saving | None":
    from pipeplan.cli.questions import given
    from pipeplan.core.errors import InputError
    from pipeplan_executor.train.saving import Saving

    if options.checkpoint is None:
        found = given(options, ("every", "keep", "resume"))
        if found:
            raise InputError(f"{' and '.join(found)} need a folder for the checkpoints: --checkpoint DIR")
        return None
    return Saving(options.checkpoint, options.every, options.keep, options.resume)


def untimed(options: Namespace, report: "RunReport") -> str:
    """Return what became of the steps of a resumed run, where none of them was timed."""
    total = options.warmup + options.steps
    if not options.steps or report.step_times:
        return ""
    counted = f"of {total} of the whole training ({options.warmup} of --warmup and {options.steps} of --steps)"
    if report.first >= total:
        return f"no step is left: the checkpoint is of step {report.first} {counted}; raise --steps to train on"
    return f"went on after step {report.first} {counted}; the steps that were left are warm-up, so none is timed"


def as_json(plan: "Plan", report: "RunReport", engine: "EngineWork | None" = None) -> dict[str, object]:
    """Return the report as plain data in seconds and bytes."""
    from pipeplan.simulate import memory_of_ranks

    return {
        "losses": list(report.losses),
        "step_times_s": [time / 1e9 for time in report.step_times],
        "step_time_s": report.step_time / 1e9,
        "predicted_step_time_s": plan.predicted / 1e9,
        "throughput": plan.yardstick.throughput(plan.batch, report.step_time).as_json(),
        "engine_s": None if engine is None else engine.time / 1e9,
        "peak_bytes": list(report.peaks),
        "predicted_peak_bytes": list(memory_of_ranks(plan)),
        "gradient_error": report.error,
        "gradient_tolerance": None if report.verdict is None else report.verdict.tolerance,
        "verified_in": None if report.verdict is None else report.verdict.dtype,
        "first_step": report.first,
        "restarts": list(report.restarts),
        "tensor_parallel": report.tensor_parallel,
        "repeated_layers": list(report.repeated),
    }


def prefill_text(plan: "Plan", report: "RunReport") -> str:
    """Return the time of the forwards of a batch, beside its prediction."""
    from pipeplan.core.units import format_time
    from pipeplan_executor.train.prefill import prefill_time

    predicted = prefill_time(plan)
    return (
        f"forwards {format_time(report.step_time)} measured (median of {len(report.step_times)}, {report.spread}), "
        f"{format_time(predicted)} predicted: {report.off(predicted)}"
    )


def as_text(plan: "Plan", report: "RunReport", engine: "EngineWork | None" = None) -> str:
    """Return the report as text, with the engine's own work if it is known and notable."""
    from pipeplan.core.units import format_bytes, format_time
    from pipeplan.core.wording import some
    from pipeplan.simulate import memory_of_ranks
    from pipeplan_executor.calibrate.engine import NOTABLE

    lines = []
    compared = report.tensor_parallel == plan.team  # otherwise predictions are for other numbers of processes
    if report.first and report.step_times:
        lines.append(f"went on after step {report.first}")
    if report.verdict is not None and report.verdict.holds:  # otherwise the error says it
        lines.append(str(report.verdict))
    if report.step_times:
        beside = f"{format_time(plan.predicted)} predicted"
        beside += f": {report.off(plan.predicted)}" if compared else WITHOUT
        lines.append(
            f"step time {format_time(report.step_time)} measured (median of {len(report.step_times)}, "
            f"{report.spread}), {beside}"
        )
        lines.append(f"throughput {plan.yardstick.throughput(plan.batch, report.step_time)}")
        if engine is not None and engine.share >= NOTABLE:
            lines.append(str(engine))
        lines.append("loss by step: " + " ".join(f"{loss:.4f}" for loss in report.losses))
        needed = memory_of_ranks(plan)
        for rank, peak in enumerate(report.peaks):
            predicted = needed[rank]
            beside = f"{format_bytes(predicted)} predicted"
            beside += f": {peak / predicted - 1 if predicted else 0.0:+.1%}" if compared else WITHOUT
            lines.append(f"rank {rank}: peak {format_bytes(peak)} measured, {beside}")
        if not compared:
            lines.append(
                "predictions are for one process per rank, as profiled, and not for tensor-parallel groups of "
                f"{report.tensor_parallel}; peaks are those of each group's largest process"
            )
        elif plan.team > 1:
            sizes = " and ".join(map(str, dict.fromkeys(plan.teams)))
            lines.append(f"each rank is a team of {sizes} processes, and its peak is that of the largest")
        if report.repeated:
            lines.append(
                f"every process of a rank computed all of {some(report.repeated)}: the operators there cannot be "
                "followed, or none is split as it is asked for"
            )
    return "\n".join(lines)


command = Command(
    "run",
    "run a plan with torch, beside its prediction",
    configure,
    run,
    "plan.json my_project:build_model --steps 20 --verify --plot run.svg",
)
