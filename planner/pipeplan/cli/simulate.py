"""``pipeplan simulate``: a plan's time line, as text, picture or trace."""

import json
from argparse import ArgumentParser, Namespace

from pipeplan.cli.base import Command, show, try_outputs


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``simulate``."""
    parser.add_argument("plan", metavar="PLAN", help="a file that solve -o wrote")
    parser.add_argument("--trace", metavar="FILE", help="write a trace for Perfetto (ui.perfetto.dev); - prints it")
    parser.add_argument("--plot", metavar="FILE", help="draw the time line (.svg or .png)")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def run(options: Namespace) -> int:
    """Simulate the plan; print, write and draw the time line."""
    from pipeplan.core.plan import Plan
    from pipeplan.core.units import format_bytes, format_time
    from pipeplan.core.wording import some
    from pipeplan.report.plot.labels import device_labels
    from pipeplan.simulate import SHOWN, makespan, period, rolling_period, timeline_of

    try_outputs(options, files=("trace",), pictures=("plot",), inputs=("plan",))
    plan = Plan.load(options.plan)
    timeline, step = timeline_of(plan), makespan(plan.schedule, plan.pipeline)
    long_run = (rolling_period if plan.staleness else period)(plan.schedule, plan.pipeline)
    labels = device_labels(plan)
    rows = [
        {"device": plan.ranks[rank], "busy_s": timeline.busy(rank) / 1e9, "peak_bytes": timeline.peaks[rank]}
        for rank in range(len(plan.ranks))
    ]
    if options.json:
        times = {"step_time_s": step / 1e9, "period_s": long_run / 1e9}
        lines = [json.dumps({**times, "devices": rows}, indent=2)]
    else:
        late = f"; {SHOWN} batches whose gradients are one step late" if plan.staleness else ""
        lines = [
            f"{plan.model} on {plan.cluster}: one step takes {format_time(step)} on paper, in a long run "
            f"{format_time(long_run)} from step to step{late}"
        ]
        alike: dict[tuple[str, str], list[str]] = {}
        for rank, device in enumerate(plan.ranks):
            share = timeline.busy(rank) / timeline.makespan if timeline.makespan else 0.0
            own = plan.pipeline.stages_on[rank]
            kind, stages = plan.kind_of(plan.stages[own[0]]), ", ".join(map(str, own))
            figures = f"{kind}: busy {share:.1%}, peak {format_bytes(timeline.peaks[rank])}"
            alike.setdefault((stages, figures), []).append(f"{plan.letter}{device}")
        lines += [f"  stage {stages}: {some(names, 8)}, {figures}" for (stages, figures), names in alike.items()]
    show("\n".join(lines), options, "trace")
    if options.trace:
        from pipeplan.report.trace import write_trace

        write_trace(options.trace, {"predicted": timeline}, labels)
    if options.plot:
        from pipeplan.report.plot.gantt import save_gantt

        drawn = {plan.schedule.family: timeline}
        save_gantt(options.plot, drawn, limits=plan.pipeline.limits, devices=labels, title=plan.headline)
    return 0


command = Command(
    "simulate", "time a plan on paper; draw it, or write a trace", configure, run, "plan.json --plot plan.svg"
)
