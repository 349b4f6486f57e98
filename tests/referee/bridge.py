"""Between plain documents and the planner: asks it a question and writes its answer down as plain data.

This file, `beside`, `collectives`, `placed` and `__main__` are the only ones here that import the project.
"""

import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest.mock import patch

from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InfeasibleError, InputError, UndecidedError
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.splits import Split
from pipeplan.core.strategies import LayerStrategies
from pipeplan.costs.collectives import COLLECTIVES
from pipeplan.costs.sharding.question import MixedQuestion, TeamQuestion, team_questions
from pipeplan.io.cluster_file import cluster_from_data
from pipeplan.io.model_file import model_from_data
from pipeplan.search.result import Result
from pipeplan.search.space import spaces, unopened
from pipeplan.simulate import makespan
from pipeplan.solve import solve
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits

from .beside import AT_ONCE
from .collectives import Halving, Tree
from .documents import Document

HANDED = ExitStack()
"""Algorithms that are plugged in for as long as this process runs."""
for _each in (Halving, Tree):
    HANDED.enter_context(COLLECTIVES.handing(_each, _each.name))


def objects(document: Document) -> tuple[Model, Cluster, Job]:
    """The planner's model, cluster and job."""
    cluster = dict(document["cluster"])
    if cluster.get("network") is None:
        cluster.pop("network", None)
    job = {name: _tuples(value) for name, value in document["job"].items()}
    return model_from_data(document["model"], "model"), cluster_from_data(cluster, "cluster"), Job(**job)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, list | tuple) else value


def ask(document: Document) -> Document:
    """The planner's answer as plain data; ``outcome`` says of which sort it is."""
    recorded: list[tuple[int, Split]] = []
    mixed: set[Split] = set()
    with patch.object(unopened, "team_questions", partial(_recorded, recorded, mixed)):
        answer = _asked(document)
        if answer["outcome"] == "infeasible":
            recorded.clear()  # among them are those of other jobs, of which the answer says that they fit
        if answer["outcome"] == "infeasible" or (answer["outcome"] == "plan" and not answer["late"]):
            recorded = _with_the_rest(document, recorded)
    ways = [as_way(each) | {"mixed": each in mixed, "slices": slices} for slices, each in recorded]
    return answer | {"ways": ways}


def as_way(split: Split) -> Document:
    """A way of teams as plain data."""
    known: dict[int, Document] = {}
    for own in split.strategies.values():
        for strategies in own:
            known.setdefault(id(strategies), as_strategies(strategies) if strategies.operators else {})
    return {
        "team": split.team,
        "sizes": split.sizes,
        "placements": split.placements,
        "passes": split.passes,
        "strategies": {place: [known[id(strategies)] for strategies in own] for place, own in split.strategies.items()},
    }


def as_strategies(own: LayerStrategies) -> Document:
    operators = {
        name: {
            "loops": tuple(entry.loop for entry in strategy),
            "gathers": tuple(entry.gathers for entry in strategy),
            "methods": tuple(entry.by for entry in strategy),
            "held": held,
        }
        for name, (strategy, held) in own.operators.items()
    }
    copies = {name: copy._asdict() for name, copy in own.copies.items()}
    return {"operators": operators, "sums": dict(own.sums), "copies": copies}


def _recorded(
    recorded: list[tuple[int, Split]], mixed: set[Split], *question: Any
) -> Iterator[TeamQuestion | MixedQuestion]:
    """The questions of teams; what they split is written down as they are searched for the first time."""
    slices = question[0].slices
    for each in team_questions(*question):
        if isinstance(each, MixedQuestion):
            mixed |= set(each.splits)
        for split in each.splits if isinstance(each, MixedQuestion) else (each.split,):
            assert isinstance(split, Split)
            if (slices, split) not in recorded:
                recorded.append((slices, split))
        yield each


def _with_the_rest(document: Document, recorded: list[tuple[int, Split]]) -> list[tuple[int, Split]]:
    """Add the ways of teams that the search ruled out before it knew them, or knew at some micro-batch sizes only."""
    own = spaces.Spaces(*objects(document), opening=Clock(Limits()))
    every = sum(len(each.sizes) for each in own.openings)  # of each number of slices
    if not own.usual and len({(slices, split.team) for slices, split in recorded}) >= every:
        return recorded
    recorded[:], before = [], [*recorded]
    for opening in own.openings:
        for _ in opening.open():
            pass
    return [*recorded, *(each for each in before if not any(_covers(other, each) for other in recorded))]


def _covers(whole: tuple[int, Split], some: tuple[int, Split]) -> bool:
    """Whether a way is another one at some of its micro-batch sizes."""
    every, own = (as_way(each) for _, each in (whole, some))
    strategies = every["strategies"]
    same = all(strategies.get(place) == row for place, row in own["strategies"].items())
    return same and whole[0] == some[0] and all(every[name] == own[name] for name in ("sizes", "placements", "passes"))


def _asked(document: Document) -> Document:
    try:
        model, cluster, job = objects(document)
        with ExitStack() as changes:
            for owner, name, value in AT_ONCE:
                changes.enter_context(patch.object(owner, name, value))
            return as_document(solve(model, cluster, job=job, **document["solve"]))
    except InputError as error:
        return {"outcome": "refused", "text": str(error)}
    except InfeasibleError as error:
        return {"outcome": "infeasible", "text": str(error)}
    except UndecidedError as error:
        return {"outcome": "undecided" if error.stop == "exhausted" else "stopped", "text": str(error)}
    except Exception:  # any other exception is a finding, not an end of the hunt
        return {"outcome": "crashed", "text": traceback.format_exc(limit=-4)}


def as_document(result: Result) -> Document:
    """What the referee looks at."""
    plan = result.plan
    return {
        "outcome": "plan",
        "value": result.value,
        "bound": result.bound,
        "status": result.status.value,
        "stop": result.stop.value,
        "late": result.late,
        "wall": result.wall,
        "partitions": result.searched.partitions,
        "not_searched": list(result.searched.not_searched),
        "zero": plan.zero,
        "teams": list(plan.teams),
        "kinds": list(plan.device_kinds),
        "meshes": [stage.mesh for stage in plan.stages],
        "strategies": {name: as_strategies(own) if own.operators else {} for name, own in plan.strategies},
        "micro_batch": plan.micro_batch,
        "micro_batches": plan.micro_batches,
        "family": plan.schedule.family,
        "two_lanes": plan.schedule.two_lanes,
        "ranks": list(plan.ranks),
        "slices": list(plan.slices),
        "lists": [
            [(str(a.kind), a.stage, a.micro_batch * (len(plan.slices) or 1) + a.slice) for a in order]
            for order in plan.schedule.orders
        ],
        "peaks": list(result.timeline.peaks),
        "makespan": makespan(plan.schedule, plan.pipeline),
        "stages": [
            {
                "layers": list(stage.layers),
                "devices": list(stage.devices),
                "recompute": list(stage.recompute),
                "in_flight": stage.in_flight,
                "memory": stage.memory.total,
                "forward": stage.forward,
                "backward": stage.backward,
                "shares": dict(stage.shares),
            }
            for stage in plan.stages
        ],
    }
