"""Workers for the tests of ``--verify``: models with state and random numbers, and losses that are no mean."""

from collections.abc import Callable
from contextlib import nullcontext
from unittest.mock import patch

import torch.distributed as dist

from helpers import stateful_models
from helpers.distributed.models import blank_model
from helpers.plans import plan_for
from pipeplan.core.plan import Plan
from pipeplan.frontend.workload import Workload
from pipeplan.schedules import FAMILIES
from pipeplan_executor.train.verdict import Verdict
from pipeplan_executor.train.verify import verify


def plan_of(build: Callable[[], Workload], replicas: tuple[int, ...]) -> Plan:
    """A plan with four micro-batches that recomputes every other layer."""
    module, names, held = blank_model(build)
    schedule = FAMILIES["1f1b-so"].write(replicas, 4)
    cuts = (0, len(names) // 2, len(names)) if len(replicas) > 1 else (0, len(names))
    return plan_for(module, names, cuts, schedule, recompute=names[::2], held=held)


def stateful() -> dict[str, Verdict]:
    """Verdicts for models whose state changes, in stages and in replicas, and for losses that are no mean."""
    found = {}
    for build in (*stateful_models.RIGHT, *stateful_models.CHANGED, stateful_models.lowered):
        found[build.__name__] = verify(plan_of(build, (1, 1)), build, 3)
    for build in stateful_models.RIGHT:
        found[f"{build.__name__} in replicas"] = verify(plan_of(build, (dist.get_world_size(),)), build, 3)
    return found


def reversed_gradient() -> Verdict:
    """The verdict for a captured graph that has lost a reversed gradient, with dropout, as if nothing had seen it."""
    with patch("pipeplan.frontend.capture.graph.export.nothing_on_gradients", lambda *_: nullcontext()):
        return verify(plan_of(stateful_models.adversarial, (1, 1)), stateful_models.adversarial, 3)
