"""``pipeplan calibrate``: run a plan, correct model and cluster by its measurements, and solve again."""

import json
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from pipeplan.cli.base import OUTPUT, Command, add_json, group, show, try_outputs
from pipeplan.cli.questions import (
    LIMITS,
    add_limits,
    add_questions,
    limits,
    question,
    refuse_given,
)
from pipeplan_executor.cli.running import add_run, finished, is_first, run_plan

if TYPE_CHECKING:
    from pipeplan.core.plan import Plan


def configure(parser: ArgumentParser) -> None:
    """Add the arguments of ``calibrate``."""
    add_run(parser)
    add_questions(parser)
    add_limits(parser)
    files = group(parser, OUTPUT)
    files.add_argument("-o", "--output", metavar="MODEL", help="write the calibrated model here")
    files.add_argument("--save-cluster", metavar="CLUSTER", help="write the calibrated cluster here")
    files.add_argument("--save-plan", metavar="PLAN", help="write the best plan after calibration here")
    group(parser, "limits of the search").add_argument("--no-solve", action="store_true", help="calibrate only")
    add_json(parser)


def run(options: Namespace) -> int:
    """Run, calibrate, write, solve, print."""
    from dataclasses import replace
    from pathlib import Path

    from pipeplan.core.errors import InputError
    from pipeplan.core.plan import Plan
    from pipeplan.io.cluster_file import write_cluster
    from pipeplan.io.model_file import write_model
    from pipeplan.solve.question import asked
    from pipeplan_executor.calibrate import calibrated, check_belongs, observed
    from pipeplan_executor.calibrate.report import as_json, as_text

    if is_first():
        try_outputs(options, files=("output", "save_cluster", "save_plan"))
    plan = replace(Plan.load(options.plan), staleness=0)  # steps that end by themselves
    if plan.priority:
        raise InputError(
            "the plan's sums go on beside the next step, so its R measures none of them; calibrate a plan for the same "
            "question without --front-first, and solve with what that gives"
        )
    _as_planned(options, plan)
    asking = asked(**question(options), asker="calibrate")
    model, cluster = asking.model, asking.cluster
    check_belongs(plan, model, cluster)
    # on a GPU the recorder measures launches of actions, not their runs
    report = run_plan(options, plan, device="cpu")
    if not is_first():
        return finished()
    seen = observed(report.timelines, report.step_times, report.peaks, plan.pipeline.tied, gathers=plan.zero > 0)
    found = calibrated(plan, model, cluster, seen)
    if options.output:
        write_model(found.model, Path(options.output))
    if options.save_cluster:
        write_cluster(found.cluster, Path(options.save_cluster))
    best = None
    if not options.no_solve:
        from pipeplan.cli.progress import solving
        from pipeplan.solve import solve

        with solving(f"{model.name} on {cluster.name}, calibrated", asking.job.objective.figure) as on_progress:
            best = solve(found.model, found.cluster, job=asking.job, **limits(options), on_progress=on_progress)
    answer = json.dumps(as_json(plan, found, best), indent=2) if options.json else as_text(plan, found, best)
    show(answer, options, "output", "save_cluster", "save_plan")
    if options.save_plan and best is not None:
        best.plan.save(options.save_plan)
    return finished()


def _as_planned(options: Namespace, plan: "Plan") -> None:
    """Take options that are not given from the plan, and refuse contradictions."""
    from pipeplan.core.errors import InputError

    if options.save_plan and options.no_solve:
        raise InputError(
            "--save-plan saves the plan of a new search, and --no-solve does none; leave out one of the two"
        )
    if options.no_solve:
        refuse_given(options, LIMITS, "--no-solve searches for no plan")
    if options.batch is None:
        options.batch = plan.batch
    if options.batch != plan.batch:
        raise InputError(f"the plan has steps of {plan.batch} samples, and --batch says {options.batch}; leave it out")
    options.optimizer = options.optimizer or plan.optimizer
    for name in ("state_bytes", "gradient_bytes"):
        if getattr(options, name) is None:
            setattr(options, name, getattr(plan, name))
    options.zero = options.zero or str(plan.zero)


command = Command(
    "calibrate",
    "correct a model and a cluster by a run of a plan, and solve again",
    configure,
    run,
    "plan.json my_project:build_model model.yaml machine.yaml -o calibrated.yaml",
)
