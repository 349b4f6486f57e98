"""Read and write plans as JSON: complete and versioned, with each rank's order of actions as one line of text."""

from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import asdict
from itertools import pairwise
from math import lcm
from pathlib import Path
from typing import Any

from pipeplan.core.cluster import Link
from pipeplan.core.errors import InputError, PlanError
from pipeplan.core.grouped_axis import GroupedAxis, ShardAxis
from pipeplan.core.job import SHARDED
from pipeplan.core.pipeline import Bucket, Pipeline, Stage, Transfer
from pipeplan.core.plan import Context, MemoryParts, Plan, PlanStage
from pipeplan.core.priority import Priority, Send
from pipeplan.core.schedule import Action, Schedule
from pipeplan.core.splits import CONTEXT, LOSS, SEQUENCE
from pipeplan.core.strategies import LayerStrategies
from pipeplan.core.throughput import Yardstick
from pipeplan.io.atomic import write_whole
from pipeplan.io.plan_entries import (
    AxisLinkEntry,
    ContextEntry,
    PipelineEntry,
    PlanFile,
    PlanStageEntry,
    PriorityEntry,
    ScheduleEntry,
    StageEntry,
)
from pipeplan.io.schema import Strict, check, listing
from pipeplan.io.strategies_entry import strategies_data, strategies_of
from pipeplan.io.text import json_text, parse_data, read_text
from pipeplan.simulate.claims import validate_claims

FORMAT, SLICED = "pipeplan-plan/4", "pipeplan-plan/5"
"""The format of plans, and that of plans with token slices, which older versions cannot run."""
OLDER = ("pipeplan-plan/3", "pipeplan-plan/2")
"""Formats that are read as well.

In version 3 updates include gathers. Version 2 has no buckets: gradients are summed behind the last backward.
"""


def write_plan(plan: Plan, path: Path) -> None:
    """Write a plan atomically, as `read_plan` reads it."""
    write_whole(path, json_text(plan_data(plan)))


_MADE = ("format", "gap", "stages", "schedule", "pipeline", "zero1", "team", "shards", "strategies", "context",
         "parallelism", "yardstick", "priority")  # fmt: skip
_PLAIN = tuple(name for name in PlanFile.model_fields if name not in _MADE)
"""Fields that are the same in the file and in the plan."""
_OPTIONAL = ("state_bytes", "gradient_bytes", "sequence", "vocabulary", "strategies", "context", "parallelism",
             "yardstick", "slices", "staleness", "priority")  # fmt: skip
"""Fields without which older versions read plans: they are left out where they say nothing."""


def plan_data(plan: Plan) -> dict[str, Any]:
    """Return the plain data of a plan, as in a file."""
    schedule, pipeline = plan.schedule, asdict(plan.pipeline)
    attention = [{"layer": name, "number": number, "by": how} for name, number, how in plan.context.attention]
    sliced = plan.slices or any(stage.slices > 1 for stage in plan.pipeline.stages)
    data: dict[str, Any] = {"format": SLICED if sliced else FORMAT} | {name: getattr(plan, name) for name in _PLAIN}
    data |= {
        "gap": _gap(plan.value, plan.bound),
        "stages": [_stage_data(stage, plan.team > 1) for stage in plan.stages],
        "schedule": {"family": schedule.family, "two_lanes": schedule.two_lanes, "orders": schedule.as_text()},
        "pipeline": {name: pipeline[name] for name in PipelineEntry.model_fields}
        | {"overlap": plan.pipeline.overlap.value},
        "shards": [_shard_data(name, axis) for name, axis in plan.shards],
        "strategies": strategies_data(plan.strategies),
        "context": {"products": plan.context.products, "attention": attention} if plan.context else None,
        "parallelism": plan.parallelism,
        "yardstick": {name: figure for name, figure in asdict(plan.yardstick).items() if figure},
        "staleness": plan.staleness or None,
        "priority": [
            asdict(own)
            | {"lost": [{"layer": name, "share": share} for name, share in own.lost]}
            | {"prices": [{"layer": name, "time": time} for name, time in own.prices]}
            for own in plan.priority
        ],
    }
    return {name: value for name, value in data.items() if name not in _OPTIONAL or value not in (None, (), [], {})}


def _stage_data(stage: PlanStage, teams: bool) -> dict[str, Any]:
    """Return the entry of a stage, without what older versions do not know where it says nothing."""
    data = asdict(stage)
    data["shares"] = [{"layer": name, "share": share} for name, share in stage.shares]
    data["links"] = [{name: link[name] for name in AxisLinkEntry.model_fields} for link in data["links"]]
    if not data["memory"]["frozen"]:
        del data["memory"]["frozen"]
    for name, said in (("team", teams), *((name, data[name]) for name in ("mesh", "sharing", "links"))):
        if not said:
            del data[name]
    return data


def _shard_data(name: str, axis: ShardAxis) -> dict[str, Any]:
    """Return the entry of a shard; older versions read those without groups."""
    if isinstance(axis, GroupedAxis):
        return {"parameter": name, "axis": axis.axis, "groups": list(axis.groups)}
    return {"parameter": name, "axis": axis}


def _gap(value: int, bound: int) -> float:
    return (value - bound) / value if value else 0.0


def read_plan(path: Path) -> Plan:
    """Read a plan from a JSON file.

    Raises
    ------
    InputError
        Naming every fault with its path.
    """
    return plan_from_data(parse_data(read_text(path), str(path)), str(path))


def load_plan(path: Path) -> Plan:
    """Read a plan and check its claims against its own tables.

    Raises
    ------
    InputError
        Naming every invalid field, or every claim that the file's own tables contradict.
    """
    plan = read_plan(path)
    try:
        validate_claims(plan)
    except PlanError as error:
        raise InputError(f"{path} contradicts itself: {error}\nsolve again, or undo what was changed") from error
    return plan


def plan_from_data(data: Any, where: str) -> Plan:
    """Build a plan from plain data; ``where`` names the source in errors."""
    if isinstance(data, dict) and data.get("format") not in (SLICED, FORMAT, *OLDER):
        found = repr(data["format"]) if "format" in data else "no format"
        raise InputError(f"{where} is not a plan that this version reads: it has {found}, not {FORMAT!r}")
    file = check(PlanFile, _today(data), where)
    orders, complaints = _orders(file.schedule)
    complaints += _sizes(file)
    name, value = ("step_time", file.step_time) if file.period is None else ("period", file.period)
    if file.gap not in (None, _gap(value, file.bound)):
        complaints.append(
            f"gap: is {file.gap}, and {name} {value} and bound {file.bound} make it {_gap(value, file.bound)}; undo "
            "what was changed, or solve again"
        )
    if complaints:
        raise InputError(listing(where, complaints))
    return Plan(
        stages=tuple(_stage(entry, file.team) for entry in file.stages),
        schedule=Schedule(file.schedule.family, orders, file.schedule.two_lanes),
        pipeline=_pipeline(file.pipeline, gathers=file.format not in OLDER, coupled=file.zero >= SHARDED),
        zero=file.zero or int(file.zero1),
        shards=tuple((entry.parameter, entry.shard_axis) for entry in file.shards),
        strategies=_in_order(strategies_of(file.strategies), [name for entry in file.stages for name in entry.layers]),
        context=_context(file.context),
        parallelism=file.parallelism or tuple(_former_parallelism(file)),
        priority=tuple(map(_priority, file.priority)),
        yardstick=Yardstick() if file.yardstick is None else Yardstick(**_fields(file.yardstick)),
        **_fields(file, *_MADE, "zero"),
    )


def _today(data: Any) -> Any:
    """Return the data with strategies and placements under the names that they have today."""
    if not isinstance(data, dict) or "words" not in data or "strategies" in data:
        return data
    rest = {name: value for name, value in data.items() if name != "words"}
    return rest | {"strategies": _renamed(data["words"])}


def _renamed(value: Any) -> Any:
    """Return entries of former versions, which call placements a layout, as this one writes them."""
    if isinstance(value, list):
        return [_renamed(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {"placements" if name == "layout" else name: _renamed(each) for name, each in value.items()}


def _context(entry: ContextEntry | None) -> Context:
    if entry is None:
        return Context()
    return Context(entry.products, tuple((each.layer, each.number, each.by) for each in entry.attention))


def _in_order(
    strategies: Sequence[tuple[str, LayerStrategies]], names: Sequence[str]
) -> tuple[tuple[str, LayerStrategies], ...]:
    """The strategies of layers in the order of the stages, and of others behind them."""
    place = {name: number for number, name in enumerate(names)}
    return tuple(sorted(strategies, key=lambda row: place.get(row[0], len(place))))


def _former_parallelism(file: PlanFile) -> Iterator[str]:
    """Yield what teams split beside weights in plans of former versions."""
    for name, said in ((SEQUENCE, file.sequence), (CONTEXT, file.context), (LOSS, file.vocabulary)):
        if said:
            yield name


def _orders(entry: ScheduleEntry) -> tuple[tuple[tuple[Action, ...], ...], list[str]]:
    orders, complaints = [], []
    for rank, line in enumerate(entry.orders):
        order = []
        for text in line.split():
            try:
                order.append(Action.parse(text))
            except InputError as error:
                complaints.append(f"schedule.orders[{rank}]: {error}")
        orders.append(tuple(order))
    return tuple(orders), complaints


def _sizes(file: PlanFile) -> list[str]:
    """Return faults in the lengths of lists and in the indices into them."""
    pipeline, ranks, stages = file.pipeline, len(file.ranks), len(file.stages)
    lengths = {
        "schedule.orders": (len(file.schedule.orders), ranks, "one per rank"),
        "pipeline.runtime": (len(pipeline.runtime), ranks, "one per rank"),
        "pipeline.limits": (len(pipeline.limits), ranks, "one per rank"),
        "pipeline.stages": (len(pipeline.stages), stages, "one per stage"),
        "pipeline.placement": (len(pipeline.placement), stages, "one per stage"),
        "pipeline.transfers": (len(pipeline.transfers), max(stages - 1, 0), "one per boundary between stages"),
        "pipeline.returns": (len(pipeline.returns), max(stages - 1, 0), "one per boundary between stages"),
    }
    complaints = [
        f"{path}: has {found} entries and needs {wanted}, {why}"
        for path, (found, wanted, why) in lengths.items()
        if found != wanted
    ]
    if not complaints:  # otherwise entries cannot be assigned to stages
        transfers = {"transfers": pipeline.transfers, "returns": pipeline.returns}
        complaints += replica_faults([stage.devices for stage in file.stages], pipeline.placement, transfers)
    devices = len(file.device_kinds)
    for path, indices, end in [
        ("ranks", file.ranks, devices),
        *[(f"pipeline.placement[{n}]", homes, ranks) for n, homes in enumerate(pipeline.placement)],
        *[(f"stages[{n}].devices", stage.devices, devices) for n, stage in enumerate(file.stages)],
        *[(f"pipeline.tied[{n}]", group, stages) for n, group in enumerate(pipeline.tied)],
    ]:
        complaints += [f"{path}: there is no number {i}, they end at {end - 1}" for i in indices if i >= end]
    return complaints


def _fields(entry: Strict, *left_out: str) -> dict[str, Any]:
    return {field: getattr(entry, field) for field in type(entry).model_fields if field not in left_out}


def _stage(entry: PlanStageEntry, team: int) -> PlanStage:
    shares = tuple((part.layer, part.share) for part in entry.shares)
    own = _fields(entry, "memory", "shares", "team", "links")
    links = tuple(Link(link.bandwidth, link.latency) for link in entry.links)
    memory = MemoryParts(**_fields(entry.memory))
    return PlanStage(memory=memory, shares=shares, team=max(entry.team, team), links=links, **own)


def _priority(entry: PriorityEntry) -> Priority:
    sends = tuple(Send(**_fields(send)) for send in entry.sends)
    lost, prices = ((row.layer, row.share) for row in entry.lost), ((row.layer, row.time) for row in entry.prices)
    return Priority(entry.chunk, sends, tuple(lost), tuple(prices))


def _pipeline(entry: PipelineEntry, gathers: bool, coupled: bool) -> Pipeline:
    return Pipeline(
        coupled=coupled,
        stages=tuple(_times(stage, gathers) for stage in entry.stages),
        transfers=tuple(tuple(Transfer(**_fields(transfer)) for transfer in row) for row in entry.transfers),
        returns=tuple(tuple(Transfer(**_fields(transfer)) for transfer in row) for row in entry.returns),
        **_fields(entry, "stages", "transfers", "returns"),
    )


def _times(entry: StageEntry, gathers: bool) -> Stage:
    return Stage(
        gather=entry.gather if gathers else 0,
        buckets=tuple(Bucket(**_fields(each)) for each in entry.buckets),
        gather_buckets=tuple(Bucket(**_fields(each)) for each in entry.gather_buckets),
        **_fields(entry, "gather", "buckets", "gather_buckets"),
    )


def replica_faults(
    devices: Sequence[Sequence[int]], placement: Sequence[Sequence[int]], transfers: Mapping[str, Sequence[Sized]]
) -> Iterator[str]:
    """Yield faults in the numbers of replicas and transfers, each with its path in the file.

    Parameters
    ----------
    devices, placement : sequence of sequence of int
        For each stage its devices and its ranks, one per replica.
    transfers : mapping of str to sequence
        ``transfers`` and ``returns``: for each boundary one entry for each pair of replicas that communicates.
    """
    for n, (homes, own) in enumerate(zip(placement, devices, strict=True)):
        if len(homes) != len(own) or len(set(homes)) != len(homes):
            yield f"pipeline.placement[{n}]: has ranks {list(homes)} for {len(own)} devices; write another one for each"
    widths = [max(1, len(homes)) for homes in placement]
    for name, rows in transfers.items():
        for n, (row, (a, b)) in enumerate(zip(rows, pairwise(widths), strict=True)):
            if len(row) != lcm(a, b):
                yield (
                    f"pipeline.{name}[{n}]: has {len(row)} entries and needs {lcm(a, b)}, the least common multiple of "
                    f"{a} and {b} replicas"
                )
