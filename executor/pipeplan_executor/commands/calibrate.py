"""``pipeplan calibrate``: run a plan, correct model and cluster by what was seen, and solve again."""

import json
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from pipeplan.commands.base import Command
from pipeplan.commands.questions import add_limits, add_questions, limits, read_cluster, read_job, read_model

if TYPE_CHECKING:
    from pipeplan.plan import Plan


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``calibrate``."""
    parser.add_argument("plan", metavar="PLAN", help="a file that solve -o wrote")
    parser.add_argument("workload", metavar="MODULE:FUNCTION", help="builds and returns the model")
    add_questions(parser)
    add_limits(parser)
    parser.set_defaults(optimizer=None)
    parser.add_argument("--input", metavar="SPEC", help="one sample of a plain module, like float32:3x224x224")
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="steps that are timed (5)")
    parser.add_argument("--warmup", type=int, default=2, metavar="N", help="steps before them (2)")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="for a rank that is lost (60)")
    parser.add_argument("--precision", choices=("bf16", "fp16"), help="forward under autocast")
    parser.add_argument("-o", "--output", metavar="MODEL", help="write the calibrated model here")
    parser.add_argument("--save-cluster", metavar="CLUSTER", help="write the calibrated cluster here")
    parser.add_argument("--save-plan", metavar="PLAN", help="write the plan that is best now here")
    parser.add_argument("--no-solve", action="store_true", help="calibrate only")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def run(options: Namespace) -> int:
    """Run, calibrate, write, solve, print."""
    import os
    from pathlib import Path

    from pipeplan.files.cluster_file import write_cluster
    from pipeplan.files.model_file import write_model
    from pipeplan.plan import Plan
    from pipeplan_executor.calibrate import calibrated, check_belongs, observed
    from pipeplan_executor.calibrate.report import as_json, as_text
    from pipeplan_executor.runner import run as run_plan
    from pipeplan_executor.spec import Spec

    plan = Plan.load(options.plan)
    _as_planned(options, plan)
    model = read_model(options)
    cluster = read_cluster(options, model)
    job = read_job(options, model)
    check_belongs(plan, model, cluster)
    report = run_plan(
        plan,
        Spec(options.workload, options.input),
        steps=options.steps,
        warmup=options.warmup,
        seed=options.seed,
        timeout=options.timeout,
        device="cpu",  # on a GPU the recorder sees when actions are handed over, not when they run
        precision=options.precision,
        progress=not options.json,
    )
    if int(os.environ.get("RANK", "0")) > 0:
        return 0
    seen = observed(report.timelines, report.step_times, report.peaks, plan.pipeline.tied)
    found = calibrated(plan, model, cluster, seen)
    if options.output:
        write_model(found.model, Path(options.output))
    if options.save_cluster:
        write_cluster(found.cluster, Path(options.save_cluster))
    best = None
    if not options.no_solve:
        from pipeplan.commands.progress import solving
        from pipeplan.solve import solve

        with solving(quiet=options.json) as watch:
            best = solve(found.model, found.cluster, job=job, **limits(options), watch=watch)
        if options.save_plan:
            best.plan.save(options.save_plan)
    print(json.dumps(as_json(plan, found, best), indent=2) if options.json else as_text(plan, found, best))
    return 0


def _as_planned(options: Namespace, plan: "Plan") -> None:
    """What the plan knows of its own question need not be said again."""
    from pipeplan.errors import InputError

    if options.save_plan and options.no_solve:
        raise InputError(
            "--save-plan saves what is best now, and --no-solve looks for nothing; leave out one of the two"
        )
    if options.batch is None:
        options.batch = plan.batch
    if options.batch != plan.batch:
        raise InputError(f"the plan has steps of {plan.batch} samples, and --batch says {options.batch}; leave it out")
    options.optimizer = options.optimizer or plan.optimizer
    options.zero1 = options.zero1 or plan.zero1


command = Command("calibrate", "correct a model and a cluster by a run of a plan, and solve again", configure, run)
