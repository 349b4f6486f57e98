"""``pipeplan solve``: the best plan, with a proven bound."""

import json
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from pipeplan.cli.base import OUTPUT, Command, add_json, add_report, group, show, try_outputs
from pipeplan.cli.questions import add_limits, add_questions, limits, number, question, searched

if TYPE_CHECKING:
    from pipeplan.core.perturbation import Robust


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``solve``."""
    add_questions(parser)
    add_limits(parser)
    published = group(parser, "published workloads")
    published.add_argument(
        "--rule",
        default="own",
        choices=("own", "published"),
        help="what a stage's load is: pipeplan's rule, or for a PipeDream, dnn-partitioning or Piper file its authors'",
    )
    published.add_argument(
        "--processors", type=number, metavar="N", help="with --rule published, dnn-partitioning: slow processors beside"
    )
    parser.add_argument(
        "--unequal-slices",
        action="store_true",
        help="with --slices: cut the answer's sequences again, into slices of unlike lengths, where that is faster",
    )
    sums = group(parser, "gradients on slow links")
    sums.add_argument(
        "--front-first",
        action="store_true",
        help="with --objective period: sums of front layers first, while the next step begins; saved where faster",
    )
    sums.add_argument(
        "--loss-budget",
        type=number,
        default=0.0,
        metavar="SHARE",
        help="the same, and this share of gradients, like 0.02, need not arrive where they are added (0)",
    )
    varying = group(parser, "times that vary")
    varying.add_argument(
        "--robust", metavar="SPREAD", help="times vary by so much, like 5%%: choose by the mean of perturbed steps"
    )
    varying.add_argument(
        "--quantile", type=number, metavar="Q", help="with --robust: choose by this quantile, like 0.95"
    )
    varying.add_argument(
        "--slow-devices", metavar="SPREAD", help="with --robust: each device's speed varies from step to step, like 3%%"
    )
    varying.add_argument(
        "--samples", type=number, metavar="N", help="with --robust: perturbed steps of each plan (1000)"
    )
    add_json(parser)
    files = group(parser, OUTPUT)
    files.add_argument("-o", "--output", metavar="PLAN", help="save the plan here; - prints it")
    files.add_argument("--plot", metavar="FILE", help="draw the time line (.svg or .png)")
    add_report(parser)


def run(options: Namespace) -> int:
    """Solve; print, then save and draw."""
    from pipeplan.cli.progress import solving
    from pipeplan.core.errors import InputError
    from pipeplan.solve import solve

    robust = read_robust(options)
    if options.rule != "published" and options.processors is not None:
        raise InputError(f"--processors {options.processors} belongs to --rule published; leave it out")
    try_outputs(options, files=("output",), pictures=("plot",), pages=("report",), inputs=("model", "cluster"))
    if options.rule == "published":
        from pipeplan.cli.published import run_published

        return run_published(options)
    with solving(*searched(options)) as on_progress:
        result = solve(
            **question(options),
            **limits(options),
            robust=robust,
            unequal_slices=options.unequal_slices,
            front_first=options.front_first,
            loss_budget=options.loss_budget,
            on_progress=on_progress,
        )
    show(json.dumps(result.as_json(), indent=2) if options.json else result, options, "output")
    if options.output:
        result.fastest.save(options.output)
    if options.plot:
        from pipeplan.report.plot.gantt import save_gantt
        from pipeplan.report.plot.labels import device_labels

        save_gantt(
            options.plot,
            {result.plan.schedule.family: result.timeline},
            limits=result.plan.pipeline.limits,
            devices=device_labels(result.plan),
            title=result.plan.headline,
        )
    if options.report:
        from pipeplan.report.page.pages import solve_page

        solve_page(result).save(options.report)
    return 0


def read_robust(options: Namespace) -> "Robust | None":
    """Variation of times to plan for, if ``--robust`` is given."""
    from pipeplan.core.errors import InputError
    from pipeplan.core.perturbation import Robust, parse_share

    beside = {"--quantile": options.quantile, "--slow-devices": options.slow_devices, "--samples": options.samples}
    given = [f"{name} {value}" for name, value in beside.items() if value is not None]
    if options.robust is None:
        if given:
            raise InputError(f"{given[0]} belongs to --robust; say how much times vary, like --robust 5%")
        return None
    if options.rule == "published":
        raise InputError("--robust compares steps, and the published rules have none; leave out one of the two")
    return Robust(
        spread=parse_share(options.robust, "--robust"),
        device_spread=parse_share(options.slow_devices or "0", "--slow-devices"),
        quantile=options.quantile,
        samples=options.samples,
    )


command = Command(
    "solve",
    "find the best plan, and prove how good it is",
    configure,
    run,
    "gpt2-small 8-v100-nvlink --batch 64 --memory 8GiB -o plan.json --plot plan.svg",
)
