"""``pipeplan judge``: a hand-written plan, priced, simulated, checked against memory, beside the proved one."""

import json
from argparse import ArgumentParser, Namespace

from pipeplan.cli.base import OUTPUT, Command, add_json, add_report, group, show, try_outputs
from pipeplan.cli.questions import add_limits, add_questions, limits, number, question, searched

PLAN = (
    "stages",
    "micro_batches",
    "schedule",
    "replicas",
    "team",
    "way",
    "chunks",
    "recompute",
    "zero",
    "token_slices",
)
"""Options that describe the plan to judge; the proved one is free in them."""


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``judge``: those of ``solve``, of which some describe the plan instead of limiting the search."""
    add_questions(parser)
    add_limits(parser)
    parser.conflict_handler = "resolve"
    plan = group(parser, "the plan to judge")
    plan.add_argument("--stages", required=True, metavar="N,N", help="layers of each stage, like 3,3,4,2")
    plan.add_argument("--micro-batches", required=True, type=number, metavar="N", help="micro-batches of a step")
    plan.add_argument(
        "--schedule",
        default="1f1b",
        metavar="NAME",
        help="a schedule family (1f1b, least in flight); interleaved and the like place several stages on a device; "
        "found: the best order for these stages",
    )
    plan.add_argument(
        "--replicas", default="", metavar="N,N", help="devices (or teams) of each stage, in the cluster's order (1,1,…)"
    )
    plan.add_argument("--team", default="", metavar="N,N", help="devices that share each layer of a stage (1,1,…)")
    plan.add_argument(
        "--way",
        default="best",
        metavar="WORD",
        help="how teams split layers: plain, sequence, context, a mesh like 2x4, or the best of them (best)",
    )
    plan.add_argument("--chunks", type=number, metavar="N", help="stages per device of interleaved and the like (2)")
    plan.add_argument("--recompute", default="none", metavar="{none,choose,full}", help="(none)")
    plan.add_argument("--zero", type=number, default=0, metavar="N", help="level of ZeRO (0)")
    plan.add_argument("--token-slices", type=number, default=1, metavar="N", help="equal slices of a sequence (1)")
    add_json(parser)
    files = group(parser, OUTPUT)
    files.add_argument("-o", "--output", metavar="PLAN", help="save the judged plan here, if it fits; - prints it")
    files.add_argument("--plot", metavar="FILE", help="draw both time lines (.svg or .png)")
    add_report(parser)


def run(options: Namespace) -> int:
    """Judge; print, then save and draw."""
    from pipeplan.analysis.judge import judge
    from pipeplan.cli.progress import solving
    from pipeplan.core.errors import InfeasibleError

    try_outputs(options, files=("output",), pictures=("plot",), pages=("report",), inputs=("model", "cluster"))
    own = {name: getattr(options, name) for name in PLAN}
    asking = {name: value for name, value in question(options).items() if name not in PLAN}
    with solving(*searched(options)) as on_progress:
        judgement = judge(**asking, **own, **limits(options), on_progress=on_progress)
    show(json.dumps(judgement.as_json(), indent=2) if options.json else judgement, options, "output")
    if options.plot:
        from pipeplan.report.plot.gantt import save_gantt

        proved = {} if judgement.result is None else {"proved": judgement.result.timeline}
        save_gantt(options.plot, {"judged": judgement.timeline} | proved, title=judgement.plan.headline)
    if options.report:
        from pipeplan.report.page.pages import judge_page

        judge_page(judgement).save(options.report)
    if options.output:
        if judgement.overflows:
            raise InfeasibleError(f"the plan is not saved, as it does not fit: {judgement.overflows[0]}")
        judgement.plan.save(options.output)
    return 0


command = Command(
    "judge",
    "a hand-written plan: its time, its memory, beside the proved one",
    configure,
    run,
    "vgg-16 4-v100-nvlink --batch 64 --stages 5,5,5,6 --micro-batches 8",
)
