"""``pipeplan solve``: the best plan, with its proof."""

import json
from argparse import ArgumentParser, Namespace

from pipeplan.commands.base import Command
from pipeplan.commands.questions import add_limits, add_questions, limits, read_cluster, read_job, read_model


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``solve``."""
    add_questions(parser)
    add_limits(parser)
    parser.add_argument(
        "--rule",
        default="own",
        choices=("own", "published"),
        help="what a stage's load is: pipeplan's rule, or for a PipeDream, dnn-partitioning or Piper file its authors'",
    )
    parser.add_argument(
        "--processors", type=int, metavar="N", help="with --rule published, dnn-partitioning: slow processors beside"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("-o", "--output", metavar="PLAN", help="save the plan here")
    parser.add_argument("--plot", metavar="FILE", help="draw the time line (.svg or .png)")


def run(options: Namespace) -> int:
    """Solve, print, save, draw."""
    from pipeplan.commands.progress import solving
    from pipeplan.solve import solve

    if options.rule == "published":
        from pipeplan.commands.published import run_published

        return run_published(options)
    model = read_model(options)
    cluster = read_cluster(options, model)
    job = read_job(options, model)
    with solving(quiet=options.json) as watch:
        result = solve(
            model,
            cluster,
            job=job,
            **limits(options),
            watch=watch,
        )
    if options.output:
        result.plan.save(options.output)
    if options.plot:
        from pipeplan.plot.gantt import save_gantt
        from pipeplan.plot.labels import device_labels

        save_gantt(
            options.plot,
            {result.plan.schedule.family: result.timeline},
            limits=result.plan.pipeline.limits,
            devices=device_labels(result.plan),
        )
    print(json.dumps(result.as_json(), indent=2) if options.json else result)
    return 0


command = Command("solve", "find the best plan, and prove how good it is", configure, run)
