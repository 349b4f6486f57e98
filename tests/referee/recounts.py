"""What a plan states of itself, computed anew: its devices, layers, lists, memory and time."""

from collections.abc import Iterator

from . import best, bottleneck, costs, delayed, divided, rounds, simulate, space
from .costs import Groups
from .documents import Document, Question
from .prices import Prices, Stage
from .schedules import HALVED, SUITED, Family, families, write
from .space import Layers

DOWNSETS = "any layers that read from no later stage"
"""How an answer says that it searched more than consecutive layers."""


def recount(question: Question, prices: Prices, answer: Document) -> Iterator[str]:
    """What is wrong in a plan's devices, layers, lists, memory and time."""
    job = question.job
    size, count = answer["micro_batch"], answer["micro_batches"]
    groups = tuple(tuple(question.devices[d] for d in stage["devices"]) for stage in answer["stages"])
    layers = tuple(tuple(sorted(question.place[name] for name in stage["layers"])) for stage in answer["stages"])
    again = tuple(tuple(sorted(question.place[n] for n in stage["recompute"])) for stage in answer["stages"])
    replicas = tuple(map(len, groups))
    if size * count != question.batch:
        yield f"{count} micro-batches of {size} samples make no batch of {question.batch}"
        return
    why = _outside(question, answer, size, groups, layers)
    if why is not None:
        yield f"outside what was asked: {why}"
    stages = _stages(prices, size, groups, layers, again, answer["family"] in HALVED)
    ways = prices.ways(groups, size, layers)
    tied, homes = prices.tied(groups, layers), space.homes(groups)
    if not _listed(question, answer, groups, tied):
        yield f"its lists are not those of a family asked for ({answer['family']})"
    if answer["ranks"] != [device.number for own in space.distinct(groups) for device in own]:
        yield f"ranks {answer['ranks']} are not the stages' devices in order"
    lanes = 2 if answer["two_lanes"] else 1
    run = answer["lists"], homes, stages, ways, question.overlap, lanes, tied
    how = {"together": question.level > 1, "slices": question.slices}
    step = simulate.simulate(*run, **how)
    value = step.time
    if job["staleness"]:
        family = Family(answer["family"], tuple(stage["in_flight"] for stage in answer["stages"]))
        value = delayed.period(family, replicas, count, homes, stages, ways, question.overlap, tied)
    elif job["objective"] == "period":
        value = simulate.period(*run, **how)
    if step.time != answer["makespan"]:
        yield f"the step takes {step.time}, it says {answer['makespan']}"
    if job["objective"] == "bottleneck":
        value = bottleneck.largest_load(stages, ways, replicas, count, question.batch, question.overlap)
    if value != answer["value"]:
        yield f"the plan's value is {value}, it says {answer['value']}"
    peaks = simulate.peaks(step, homes, stages, len(answer["ranks"]))
    if peaks != answer["peaks"]:
        yield f"peaks are {peaks}, it says {answer['peaks']}"
    for s, (stage, stated) in enumerate(zip(stages, answer["stages"], strict=True)):
        need = stage.need(stated["in_flight"], lanes)
        if need != stated["memory"]:
            yield f"stage {s} needs {need} bytes, it says {stated['memory']}"
        if question.in_rounds:
            need = max(rounds.need(answer["lists"][d], stages) for d in homes[s])
        if stage.limit is not None and max(need, *(peaks[d] for d in homes[s])) > stage.limit:
            yield f"stage {s} needs {need} bytes of {stage.limit}, its devices peak at {[peaks[d] for d in homes[s]]}"
        if job["recompute"] == "none" and again[s]:
            yield f"stage {s} recomputes, which was not wanted"
        if job["recompute"] == "full" and again[s] != layers[s]:
            yield f"stage {s} does not recompute all that it holds"


def recount_divided(question: Question, prices: Prices, answer: Document) -> Iterator[str]:
    """The same for a line whose devices hold shares of layers."""
    size, count = answer["micro_batch"], answer["micro_batches"]
    groups = tuple(tuple(question.devices[d] for d in stage["devices"]) for stage in answer["stages"])
    held = [
        {question.place[name]: stage["shares"].get(name, 1.0) for name in stage["layers"]} for stage in answer["stages"]
    ]
    for i, name in enumerate(question.names):
        if abs(sum(own.get(i, 0.0) for own in held) - 1) > 1e-9:
            yield f"the shares of {name} do not make up the whole"
    why = space.unasked(question, costs.sizes(question), size, groups)
    if why is not None or not question.job["intra_layer"]:
        yield f"outside what was asked: {why or 'divided layers'}"
    stages = divided.stages(prices, groups, size, held)
    ways = divided.ways(prices, groups, size, held)
    lanes = 2 if answer["two_lanes"] else 1
    homes = [(s,) for s in range(len(groups))]
    step = simulate.simulate(answer["lists"], homes, stages, ways, question.overlap, lanes)
    bottleneck_asked = question.job["objective"] == "bottleneck"
    value = divided.largest_load(stages, ways, size) if bottleneck_asked else step.time
    if value != answer["value"] or step.time != answer["makespan"]:
        yield f"the divided plan's value is {value} and its step {step.time}, it says {answer['value']}"
    if not _listed(question, answer, groups, []) or size * count != question.batch:
        yield f"its lists are not those of a family asked for ({answer['family']})"
    for s, (stage, stated) in enumerate(zip(stages, answer["stages"], strict=True)):
        need = stage.need(stated["in_flight"], lanes)
        if need != stated["memory"] or (stage.limit is not None and need > stage.limit):
            yield f"stage {s} needs {need} bytes of {stage.limit}, it says {stated['memory']}"


def _outside(question: Question, answer: Document, size: int, groups: Groups, layers: Layers) -> str | None:
    devices = space.distinct(groups)
    why = space.unasked(question, costs.sizes(question), size, devices)
    if why is not None:
        return why
    if question.in_rounds:
        known = set(rounds.plans(question, devices))
        return None if (groups, layers) in known else f"layers {layers} on {groups} are no rounds that are allowed"
    known = best.unordered(question, len(layers)) if DOWNSETS in answer["partitions"] else ()
    if layers not in set(space.partitions(question, groups)) | set(known):
        return f"layers {layers} go against a constraint, or read from later stages"
    return None


def _stages(
    prices: Prices, size: int, groups: Groups, layers: Layers, again: Layers, halved: bool = False
) -> list[Stage]:
    reduce = prices.reductions(groups, size, layers, halved)
    return [prices.stage(groups, size, layers, s, again[s], reduce[s]) for s in range(len(groups))]


def _listed(question: Question, answer: Document, groups: Groups, tied: list[set[int]]) -> bool:
    """Whether the lists are those that a family of the space writes with the counts that are stated."""
    replicas = tuple(map(len, groups))
    if answer["family"] == "found":
        return "any" in question.job["schedules"] and len(set(replicas)) == 1
    count, objective = answer["micro_batches"], question.job["objective"]
    flight = tuple(stage["in_flight"] for stage in answer["stages"])
    names = space.family_names(question)
    if question.in_rounds:
        own = [each for each in rounds.families(question, groups, count) if each.name == answer["family"]]
        lists = rounds.write(answer["family"], groups, count, tied) if own else []
        return bool(own) and own[0].in_flight == flight and lists == answer["lists"]
    if question.job["intra_layer"]:  # lines are looked at under every family that suits the cluster
        names = (*names, *SUITED[question.overlap])
    allowed = families(names, replicas, count, objective, question.slices)
    summed = {s for group in tied for s in group}
    return any(
        each.in_flight == flight
        and (each.name == answer["family"] or (each.name.startswith("1f1b") and answer["family"].startswith("1f1b")))
        and write(each, replicas, count, summed, question.slices) == answer["lists"]
        for each in allowed
    )
