"""Arguments and steps shared by the commands that run a plan."""

import os
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from pipeplan.cli.base import group

if TYPE_CHECKING:
    from pipeplan.core.plan import Plan
    from pipeplan_executor.train.report import RunReport


def add_run(parser: ArgumentParser) -> None:
    """Add arguments for the plan, the model, and the number of steps."""
    what, steps = group(parser, "plan and model"), group(parser, "steps")
    what.add_argument("plan", metavar="PLAN", help="a file that solve -o wrote")
    what.add_argument(
        "workload", metavar="MODULE:FUNCTION", help="builds and returns the model; or hf:gpt2, of transformers"
    )
    what.add_argument("--input", metavar="SPEC", help="one sample of a plain module, like float32:3x224x224")
    steps.add_argument("--steps", type=int, default=5, metavar="N", help="steps that are timed (5)")
    steps.add_argument("--warmup", type=int, default=2, metavar="N", help="steps before them (2)")
    steps.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="for a rank that is lost (60)")
    steps.add_argument("--precision", choices=("bf16", "fp16"), help="forward under autocast")


def run_plan(options: Namespace, plan: "Plan", **more: Any) -> "RunReport":
    """Run a plan with the options of `add_run` and ``--seed``; ``more`` goes to `pipeplan_executor.run`."""
    from pipeplan_executor.cli.spec import Spec
    from pipeplan_executor.train.runner import run

    return run(
        plan,
        Spec(options.workload, options.input),
        steps=options.steps,
        warmup=options.warmup,
        seed=options.seed,
        timeout=options.timeout,
        precision=options.precision,
        progress=True,
        **more,
    )


def is_first() -> bool:
    """Return whether this process prints the report: the only one, or rank 0 of another launcher's."""
    from pipeplan_executor.processes.launcher import joined_world

    return joined_world() is None or os.environ["RANK"] == "0"


def finished() -> int:
    """Return the exit code of a successful run; a rank of another launcher ends here."""
    from pipeplan_executor.processes.launcher import joined_world
    from pipeplan_executor.processes.rank import leave

    if joined_world() is not None:
        leave()
    return 0
