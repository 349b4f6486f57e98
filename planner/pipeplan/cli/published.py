"""``pipeplan solve FILE --rule published``: a public workload under its authors' own cost rule of a stage."""

import json
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeplan.cli.questions import LIMITS
from pipeplan_formulations.common.signals import listening

if TYPE_CHECKING:
    from pipeplan.io.published import Published
    from pipeplan_formulations.common.report import Report
    from pipeplan_formulations.graph import Stages


_ALWAYS = ("help", "model", "cluster", "rule", "objective", "output", "plot", "json", *LIMITS)
_HEEDED = {
    "pipedream": ("devices", "bandwidth", "replicas"),
    "dnn-partitioning": ("devices", "processors", "corrected"),
    "piper": ("devices", "memory", "bandwidth"),
}
"""The options that each rule supports."""


@listening()
def run_published(options: Namespace) -> int:
    """Solve and print; there is no plan to save, as the costs are not those of a step.

    Raises
    ------
    InputError
        If the file has none of the published formats, or an option has no meaning under its rule.
    InfeasibleError
        If nothing fits.
    """
    from pipeplan.cli.progress import solving
    from pipeplan.cli.questions import limits
    from pipeplan.core.choices import member
    from pipeplan.core.errors import InfeasibleError, InputError, PipeplanError
    from pipeplan.core.job import Objective
    from pipeplan.core.options import asked_limits
    from pipeplan_formulations import graph
    from pipeplan_formulations.common.report import Status

    if member(options.objective, "objective", Objective) is Objective.PERIOD:
        raise InputError("the published rules have loads and no steps; leave out --objective period")
    case, checked = read_published(options), asked_limits(**limits(options))
    backend = "auto" if options.backend == "cpsat" else options.backend
    with solving(f"{case.name} by its authors' rule", "largest load") as on_progress:
        report = graph.solve(
            case.problem,
            checked,
            on_progress=lambda value, bound: on_progress(
                None if value is None else round(value * case.unit * 1e9), round(bound * case.unit * 1e9), 1
            ),
            backend=backend,
        )
    if report.status is Status.INFEASIBLE:
        from pipeplan.io.published.least_memory import why_nothing_fits

        raise InfeasibleError(why_nothing_fits(case, backend))
    if report.solution is None:
        raise PipeplanError(f"nothing was found before the search was stopped ({report.stop}); give it more time")
    answer = as_json(case, report, report.solution)
    print(json.dumps(answer, indent=2) if options.json else as_text(case, answer))
    return 0


def read_published(options: Namespace) -> "Published":
    """The problem that file and options describe."""
    from pipeplan.cli.questions import refuse_given
    from pipeplan.core.choices import numbers
    from pipeplan.core.errors import InputError
    from pipeplan.core.figures import MOST_DEVICES, whole
    from pipeplan.core.units import parse_bandwidth, parse_bytes
    from pipeplan.io.load import foreign_format
    from pipeplan.io.published import dnn_partitioning, pipedream, piper

    path = Path(options.model)
    kind = foreign_format(path) if path.is_file() else None
    if kind not in _HEEDED:
        raise InputError(f"--rule published needs a file of PipeDream, dnn-partitioning or Piper; {path} is none")
    if options.cluster is not None:
        raise InputError("--rule published takes its devices from the file or from --devices, not from a CLUSTER")
    if options.output or options.plot:
        raise InputError("--rule published has stages and loads but no schedule; leave out --output and --plot")
    heeded = (*_ALWAYS, *_HEEDED[kind])
    rest = [name for name in options.defaults if name not in heeded]
    known = ", ".join("--" + name for name in _HEEDED[kind])
    refuse_given(options, rest, f"--rule published takes {known} for a file of {kind} and nothing else")
    for name, least in (("devices", 1), ("processors", 0)):
        if getattr(options, name) is not None:
            whole(getattr(options, name), f"--{name}", least, MOST_DEVICES)
    bandwidth = None if options.bandwidth is None else parse_bandwidth(options.bandwidth)
    if kind == "dnn-partitioning":
        return dnn_partitioning(
            path, corrected=options.corrected, accelerators=options.devices, processors=options.processors
        )
    if kind == "piper":
        memory = None if options.memory is None else parse_bytes(options.memory)
        return piper(path, devices=options.devices, memory=memory, bandwidth=bandwidth)
    if options.devices is None:
        raise InputError("PipeDream's files name no devices; say how many there are: --devices N")
    replicas = numbers(options.replicas or (), "replicas", "replicas asked for", 1, MOST_DEVICES)
    if replicas not in ((), (1,)):
        raise InputError(
            f"--replicas {options.replicas}: PipeDream's rule has any number of replicas, or none with --replicas 1"
        )
    replicate = replicas != (1,)
    return pipedream(path, options.devices, bandwidth=bandwidth or 10**9, replicate=replicate)


def as_json(case: "Published", report: "Report[Stages]", stages: "Stages") -> dict[str, Any]:
    """The object that ``--json`` prints. Times are seconds."""
    problem = case.problem
    loads, memory = problem.loads(stages), problem.memory(stages)
    assert report.objective is not None
    return {
        "status": report.status.value,
        "stop": report.stop.value,
        "step_time_s": report.objective * case.unit,
        "bound_s": report.bound * case.unit,
        "gap": report.gap,
        "wall_s": report.wall,
        "backend": report.backend,
        "rule": case.rule,
        "costs": case.costs,
        "searched": case.searched,
        "not_searched": list(case.not_searched),
        "stages": [
            {
                "layers": [case.names[g] for g in stage.groups],
                "nodes": [node for g in stage.groups for node in case.members[g]],
                "mode": problem.modes[stage.mode].name,
                "replicas": case.replicas[stage.mode],
                "degree": case.devices[stage.mode],
                "variants": {case.names[g]: case.variants[v] for g, v in _chosen(case, stage)},
                "load_s": loads[s] * case.unit,
                "memory_bytes": memory[s],
            }
            for s, stage in enumerate(stages)
        ],
    }


def _chosen(case: "Published", stage: Any) -> list[tuple[int, int]]:
    """Groups and variants of a stage, if there is more than one of these."""
    return list(zip(stage.groups, stage.variants, strict=True)) if len(case.variants) > 1 else []


def as_text(case: "Published", answer: dict[str, Any]) -> str:
    """The answer as text."""
    from pipeplan.core.units import format_bytes, format_time
    from pipeplan.core.wording import counted, ranges, wrapped
    from pipeplan.search.result import REASONS
    from pipeplan_formulations.common.report import Stop

    def seconds(value: float) -> str:
        return format_time(round(value * 1e9))

    why = REASONS[Stop(answer["stop"])].format(costs="costs")
    lines = [
        f"{case.name}: {counted(len(answer['stages']), 'stage')}; {answer['rule']}",
        f"largest load {seconds(answer['step_time_s'])}, proven bound {seconds(answer['bound_s'])}, gap "
        f"{answer['gap']:.2%} ({answer['status']}: {why}, {answer['wall_s']:.1f} s with {answer['backend']})",
        f"costs: {case.costs}",
    ]
    for number, stage in enumerate(answer["stages"]):
        layers = stage["layers"]
        span = layers[0] if len(layers) == 1 else f"{layers[0]} … {layers[-1]} ({len(layers)} layers)"
        lines.append(
            f"  stage {number}: {stage['mode']}: {span}; load {seconds(stage['load_s'])}, memory "
            f"{format_bytes(stage['memory_bytes'])}"
        )
        nodes = ranges(stage["nodes"])
        lines += (f"    {line}" for line in wrapped(f"{counted(len(stage['nodes']), 'node')}: {', '.join(nodes)}"))
    lines += wrapped(f"searched (the bound holds for these): {case.searched}")
    return "\n".join([*lines, *wrapped(f"not searched: {'; '.join(case.not_searched)}")])
