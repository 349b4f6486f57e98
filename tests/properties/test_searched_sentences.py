"""Every answer keeps to its own sentences on what was searched: its plan is one of the plans that they describe."""

from collections.abc import Iterator

import pytest

from helpers.quick import rarely
from pipeplan.core import searched
from pipeplan.core.errors import InfeasibleError, InputError, UndecidedError
from pipeplan.search.result import Result
from pipeplan.solve import solve
from referee.bridge import objects
from referee.questions import question


def numbers(text: str) -> set[int]:
    """The numbers of a list in words, ``'1 to 4'`` or ``'1, 2 or 4'``; all between the ends of one cut short."""
    own = [int(word) for word in text.replace(",", " ").split() if word.isdecimal()]
    return set(range(own[0], own[-1] + 1)) if " to " in text or "…" in text else set(own)


def contradictions(result: Result) -> Iterator[str]:
    """What the sentences say that the plan is not."""
    plan, found = result.plan, result.searched
    text = " ".join(found.as_text().split())
    widths = [stage.replicas for stage in plan.stages]
    if found.answer:
        beside = f"({'1 stage' if len(widths) == 1 else f'{len(widths)} stages'}, "
        if beside not in found.answer or not set(widths) <= numbers(found.answer.partition(", ")[2].split("device")[0]):
            yield f"{found.answer} of a plan with {widths}"
    else:
        if len(widths) not in numbers(found.depths):
            yield f"{len(widths)} stages, not {found.depths}"
        allowed = {1} if found.replicas == searched.ALONE else numbers(found.widths)
        if not set(widths) <= allowed:
            yield f"{widths} replicas, not {found.replicas}"
    ranks = [device for stage in plan.stages for device in stage.devices]
    if found.replicas == searched.LISTED and not found.answer and ranks != list(range(len(ranks))):
        yield f"devices {ranks} in a given order"
    if plan.micro_batch not in found.micro_batch_sizes:
        yield f"micro-batches of {plan.micro_batch}, not {found.micro_batch_sizes}"
    yield from _orders(result)
    again = [len(stage.recompute) for stage in plan.stages]
    if found.recompute == "none" and any(again):
        yield "layers recomputed"
    if found.recompute == "full" and again != [len(stage.layers) for stage in plan.stages]:
        yield "layers not recomputed"
    if plan.zero not in found.zero:
        yield f"level {plan.zero} of ZeRO, not {found.zero}"
    sizes = {team for team in plan.teams if team > 1}
    named = numbers(found.teams.partition(" devices")[0].removeprefix("teams of").replace("and", ","))
    if sizes - named or (len(set(plan.teams)) > 1 and "unlike sizes" not in text):
        yield f"teams of {plan.teams}, not {found.teams}"


def _orders(result: Result) -> Iterator[str]:
    """The family is a named one, or 1F1B with counts of its own, or found among all orders; lines have any."""
    family, named = result.plan.schedule.family, result.searched.schedules
    free = family.startswith("1f1b") and "1f1b" in named
    line = result.job.intra_layer and any(stage.shares for stage in result.plan.stages)
    if family not in named and not free and not (family == "found" and "any" in named) and not line:
        yield f"schedule {family}, not {named}"


def disputes(seeds: range) -> list[str]:
    """Contradictions in the answers to random questions."""
    found = []
    for seed in seeds:
        document = question(seed)
        try:
            model, cluster, job = objects(document)
            limits = document["solve"] | {"time_limit": min(document["solve"]["time_limit"], 10.0)}
            result = solve(model, cluster, job=job, price_regular=False, **limits)
        except (InputError, InfeasibleError, UndecidedError):
            continue
        found += [f"question {seed}: {why}" for why in contradictions(result)]
    return found


@pytest.mark.parametrize("seeds", [range(700_000, 700_040), rarely(range(710_000, 710_400))])
def test_answers_keep_to_what_they_say_was_searched(seeds: range) -> None:
    """Numbers of stages, devices per stage, sizes, schedules, recomputation, levels of ZeRO, teams."""
    assert disputes(seeds) == []
