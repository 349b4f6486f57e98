"""``pipeplan explain``: bottlenecks, critical path and effect of changes; remedies if nothing fits."""

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pipeplan.cli.base import Command, add_json, group, show
from pipeplan.cli.questions import (
    add_limits,
    add_questions,
    limits,
    number,
    question,
    refuse_given,
    searched,
)
from pipeplan_formulations.common.signals import listening

if TYPE_CHECKING:
    from pipeplan.analysis.explain import Explanation, Remedies


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``explain``."""
    add_questions(parser)
    add_limits(parser)
    parser.epilog = (
        "A plan that solve -o wrote may stand in the place of MODEL, alone: it is explained as it is. With a question, "
        "changes of it are solved afresh too, and where nothing fits the smallest change that does is looked for."
    )
    group(parser, "limits of the search").add_argument(
        "--each", type=number, default=20.0, metavar="SECONDS", help="time for each change that is tried (20)"
    )
    add_json(parser)


@listening()
def run(options: Namespace) -> int:
    """Explain a plan or a solution; if nothing fits, print remedies and return 1."""
    from pipeplan.analysis.explain import Remedies

    found = _plan(options) if _is_plan(options.model) else _question(options)
    show(json.dumps(found.as_json(), indent=2) if options.json else found, options)
    return 1 if isinstance(found, Remedies) else 0


def _plan(options: Namespace) -> "Explanation":
    from pipeplan.analysis.explain import explain_plan
    from pipeplan.core.errors import InputError
    from pipeplan.core.plan import Plan

    if options.cluster is not None or options.batch is not None:
        raise InputError(
            f"{options.model} is a plan and is explained by itself; to see what changes would bring, give MODEL and "
            "CLUSTER and --batch instead"
        )
    rest = [name for name in options.defaults if name not in ("help", "model", "json")]
    refuse_given(options, rest, f"{options.model} is a plan and is explained by itself, without a question")
    return explain_plan(Plan.load(options.model))


def _question(options: Namespace) -> "Explanation | Remedies":
    from pipeplan.analysis.explain import explain, remedies, require_step
    from pipeplan.cli.progress import solving
    from pipeplan.core.errors import InfeasibleError
    from pipeplan.core.options import asked_limits
    from pipeplan.solve import solve
    from pipeplan.solve.question import LINKS, READING

    require_step(options.objective)
    each = {name: value for name, value in limits(options).items() if name not in ("time_limit", "gap")}
    asked_limits(options.each)
    asking = question(options)

    def tell(what: str) -> None:
        print(f"trying {what}", file=sys.stderr)

    try:
        with solving(*searched(options)) as on_progress:
            result = solve(**asking, **limits(options), on_progress=on_progress, price_regular=False)
    except InfeasibleError:
        found = remedies(**asking, time_limit=options.each, **each, on_progress=tell)
        if found is None:
            raise
        return found
    where = {name: value for name, value in asking.items() if name in ("model", "cluster", *LINKS, *READING)}
    return explain(**where, result=result, each=options.each, gap=options.gap, **each, on_progress=tell)


def _is_plan(name: str) -> bool:
    """True if the file declares the plan format."""
    path = Path(name)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return b'"pipeplan-plan/' in file.read(4096)


command = Command(
    "explain",
    "what binds, what changes would bring, why nothing fits",
    configure,
    run,
    "gnmt-8 4-v100-nvlink --batch 64",
)
