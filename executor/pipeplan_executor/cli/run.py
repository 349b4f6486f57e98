"""``pipeplan run``: run a plan with torch, and compare it with its prediction."""

import json
import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from pipeplan.cli.base import Command, show, try_outputs
from pipeplan_executor.cli.running import add_run, finished, is_first, run_plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeplan.core.plan import Plan
    from pipeplan_executor.train.report import RunReport
    from pipeplan_executor.train.saving import Saving


def configure(parser: ArgumentParser) -> None:
    """Add the arguments of ``run``."""
    add_run(parser)
    parser.add_argument("--verify", action="store_true", help="compare loss and gradients with the unsplit model")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches")
    parser.add_argument("--weights", metavar="FILE", help="state dict of the unsplit model (else drawn)")
    parser.add_argument(
        "--trace", metavar="FILE", help="write predicted and measured time line for Perfetto; - prints it"
    )
    parser.add_argument("--plot", metavar="FILE", help="draw predicted and measured time line (.svg or .png)")
    parser.add_argument("--restarts", type=int, default=0, metavar="N", help="start again so often after a loss (0)")
    parser.add_argument(
        "--tensor-parallel",
        type=int,
        metavar="N",
        help="processes that share a rank, by the model's shards (the plan's teams, or 1)",
    )
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="what ranks run on (auto)")
    saving = parser.add_argument_group("checkpoints")
    saving.add_argument("--checkpoint", metavar="DIR", help="save the last step there")
    saving.add_argument("--every", type=int, default=0, metavar="N", help="and after every N steps")
    saving.add_argument("--keep", type=int, default=3, metavar="N", help="number of newest ones that stay (3)")
    saving.add_argument("--resume", action="store_true", help="go on from the latest one, if there is one")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def run(options: Namespace) -> int:
    """Run, print, draw; raise if the gradients are wrong."""
    from pipeplan.core.plan import Plan
    from pipeplan_executor.train.report import ranks_in_words, write_pictures
    from pipeplan_executor.train.verify import check_error

    if is_first():
        try_outputs(options, files=("trace",), pictures=("plot",), folders=("checkpoint",), inputs=("plan",))
    plan = Plan.load(options.plan)
    saving = _saving(options)
    if is_first() and not options.json:
        ranks = ranks_in_words(plan, options.tensor_parallel or 1)
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
    )
    if is_first():
        answer = json.dumps(as_json(plan, report), indent=2) if options.json else as_text(plan, report)
        show(answer, options, "trace")
        if options.trace or options.plot:
            write_pictures(plan, report, trace=options.trace, plots=[options.plot] if options.plot else [])
    check_error(report)
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


def as_json(plan: "Plan", report: "RunReport") -> dict[str, object]:
    """Return the report as plain data in seconds and bytes."""
    from pipeplan_executor.train.report import predicted_peak

    return {
        "losses": list(report.losses),
        "step_times_s": [time / 1e9 for time in report.step_times],
        "step_time_s": report.step_time / 1e9,
        "predicted_step_time_s": plan.step_time / 1e9,
        "peak_bytes": list(report.peaks),
        "predicted_peak_bytes": [predicted_peak(plan, rank) for rank in range(len(plan.ranks))],
        "gradient_error": report.error,
        "first_step": report.first,
        "restarts": list(report.restarts),
        "tensor_parallel": report.tensor_parallel,
    }


def as_text(plan: "Plan", report: "RunReport") -> str:
    """Return the report as text."""
    from pipeplan.core.units import format_bytes, format_time
    from pipeplan_executor.train.report import predicted_peak

    lines = []
    compared = report.tensor_parallel == plan.team  # otherwise predictions are for other numbers of processes
    if report.first:
        lines.append(f"went on after step {report.first}")
    if report.error is not None:
        lines.append(f"loss and gradients equal the unsplit model's to {report.error:.1e} (relative, float64)")
    if report.step_times:
        beside = _beside(report.step_time, plan.step_time, format_time, compared)
        lines.append(
            f"step time {format_time(report.step_time)} measured (median of {len(report.step_times)}, least "
            f"{format_time(min(report.step_times))}), {beside}"
        )
        lines.append("loss by step: " + " ".join(f"{loss:.4f}" for loss in report.losses))
        for rank, peak in enumerate(report.peaks):
            beside = _beside(peak, predicted_peak(plan, rank), format_bytes, compared)
            lines.append(f"rank {rank}: peak {format_bytes(peak)} measured, {beside}")
        if not compared:
            lines.append(
                "predictions are for one process per rank, as profiled, and not for tensor-parallel groups of "
                f"{report.tensor_parallel}; peaks are those of each group's largest process"
            )
        elif plan.team > 1:
            sizes = " and ".join(map(str, dict.fromkeys(plan.teams)))
            lines.append(f"each rank is a team of {sizes} processes, and its peak is that of the largest")
    return "\n".join(lines)


def _beside(measured: int, predicted: int, text: "Callable[[int], str]", compared: bool) -> str:
    """Return the prediction, and its relative error if it is for as many processes as ran."""
    if not compared:
        return f"{text(predicted)} predicted without tensor parallelism"
    return f"{text(predicted)} predicted: {measured / predicted - 1 if predicted else 0.0:+.1%}"


command = Command("run", "run a plan with torch, beside its prediction", configure, run)
