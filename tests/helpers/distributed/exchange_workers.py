"""What the members of a team are predicted to send each other, and what they send, for each way to split a model."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.distributed.models import blank_model
from helpers.instances import equal_devices
from helpers.plans import plan_for, with_teams
from helpers.profile_of import profile_of
from helpers.team_exchanges import BACKWARD, FORWARD, STEP, exchanges
from pipeplan.core.cluster import DeviceKind, Link
from pipeplan.core.operators import BY_HEADS, BY_RING, TOKEN, Shards, Split
from pipeplan.core.plan import Plan
from pipeplan.costs.sharding.exchanges import Exchange
from pipeplan.costs.teams.splits import TeamSplits
from pipeplan.frontend.workload import Workload
from pipeplan.schedules import FAMILIES
from pipeplan.search.build_plan import shared_out
from pipeplan_executor.stages.source import draw
from pipeplan_executor.train.pipeline import Pipeline
from pipeplan_executor.train.verify import worst_error

MEMBERS, SAMPLES, MICRO_BATCHES = 2, 2, 2
OPERATIONS = {
    "all_reduce": Exchange.SUM,
    "allreduce_": Exchange.SUM,
    "all_gather_into_tensor": Exchange.GATHER,
    "reduce_scatter_tensor": Exchange.SCATTER,
    "all_to_all_single": Exchange.TURN,
    "send": Exchange.SHIFT,
}
OF_PARTS = Exchange.GATHER, Exchange.TURN, Exchange.SHIFT
"""Collectives that are called with a member's part."""

Sums = Counter[tuple[str, int]]
"""How often tensors of so many bytes are gathered, and reduce-scattered; an all-reduce is one of each."""


class Block(NamedTuple):
    """What is predicted of one layer: how often each kind of collective sends tensors of so many bytes."""

    layer: str
    ends: tuple[bool, bool]
    forward: dict[tuple[Exchange, int], int]
    backward: dict[tuple[Exchange, int], int]


class Case(NamedTuple):
    """A plan, and what is sent in the forward and in the backward of a micro-batch, and once per step; and by layer."""

    plan: Plan
    sent: tuple[Sums, Sums, Sums]
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True)
class Profiled:
    """A profiled model, teams on devices like those of the profile, and a plan of one stage for them."""

    teams: TeamSplits
    kind: DeviceKind
    plan: Plan

    def case(self, split: Split) -> Case:
        """The plan of a split, and what it is predicted to send."""
        sent: dict[str, Sums] = {when: Counter() for when in (FORWARD, BACKWARD, STEP)}
        blocks = []
        for i, layer in enumerate(self.teams.model.layers):
            if layer.operators:
                problem = self.teams.problem(i, self.kind, SAMPLES, split.sequence)
                own = exchanges(problem, tuple(split.of(layer.operators).items()))
                for each in own:
                    sent[each.when] += halves(each.kind, each.size)
                both = (Counter((e.kind, e.size) for e in own if e.when == when) for when in (FORWARD, BACKWARD))
                blocks.append(Block(layer.name, tuple(problem.ends), *map(dict, both)))
        return Case(shared_out(self.plan, self.teams.model, split), tuple(sent.values()), tuple(blocks))


def profiled(
    build: Callable[[], Workload], members: int = MEMBERS, group: tuple[str, ...] = (), context: bool = True
) -> Profiled:
    """Profile a model for teams of so many members; ``group``: modules that are captured whole.

    ``context``: also ways with products and attention on parts of the tokens.
    """
    model = profile_of(build(), SAMPLES, group=group)
    cluster = equal_devices(members, link=Link(10**9, 1))
    kind = replace(next(iter(cluster.kinds.values())), timed_as=model.profiles[0].device)
    cluster = replace(cluster, kinds=dict.fromkeys(cluster.kinds, kind))
    teams = TeamSplits(model, cluster, members, (SAMPLES,), "sgd", False, context_parallel=context)
    module, layers, held = blank_model(build, group)
    schedule = FAMILIES["gpipe"].write((1,), MICRO_BATCHES)
    base = with_teams(plan_for(module, layers, (0, len(layers)), schedule, SAMPLES, held=held), members)
    return Profiled(teams, kind, replace(base, fingerprint=model.fingerprint))


def cases(
    build: Callable[[], Workload],
    most: int = 1000,
    group: tuple[str, ...] = (),
    whole: str = "",
    context: bool = True,
) -> tuple[Case, ...]:
    """The ways to split a profiled model that are worth searching.

    At most so many with whole tensors, with split tokens, and with products on these; of these none without
    ``context``. ``group``: modules that are captured whole. ``whole``: ways that split parameters of such a name are
    left out.
    """
    own = profiled(build, group=group, context=context)
    found: dict[tuple[bool, bool], list[Case]] = {}
    for split in own.teams.splits():
        case = own.case(split)
        if not (whole and any(whole in name for name, _ in case.plan.shards)):
            found.setdefault((bool(split.sequence), bool(case.plan.context)), []).append(case)
    return tuple(case for each in found.values() for case in each[:most])


def on_tokens(build: Callable[[], Workload], members: int = MEMBERS) -> tuple[Case, ...]:
    """Ways to run products and attention on parts of the tokens: by keys, by heads where these can be divided, by ring.

    Then attention so, and a perceptron behind it in the same layer by columns and rows, if there is one.
    """
    own = profiled(build, members)
    ways = [_on_tokens(own.teams, by, pair) for pair in (False, True) for by in (0, BY_HEADS, BY_RING)]
    return tuple(own.case(split) for split in dict.fromkeys(ways))


def _on_tokens(teams: TeamSplits, by: int, pair: bool) -> Split:
    shards: dict[str, Shards] = {}
    for name, graph in teams.model.operators.items():
        found: dict[str, int] = {}
        maps = [each for each in graph.operators if each.product]
        attention = next((n for n, each in enumerate(graph.operators) if each.attention is not None), None)
        behind = [] if attention is None else [each for each in maps if each in graph.operators[attention:]]
        last = behind[-2:] if pair and len(behind) > 2 else []
        for each in maps:
            if each in last:
                loop = "out" if each is last[0] else "in"
                found |= {own.name: own.loops.index(loop) for own in each.weights if loop in own.loops}
            elif TOKEN in each.loops:
                found[each.name] = each.makes.index(TOKEN)
        for each in graph.operators:
            if each.attention is not None and TOKEN in each.loops:
                possible = by and (by != BY_HEADS or each.attention.heads % teams.team == 0)
                found[each.name] = by if possible else each.makes.index(TOKEN)
        shards[name] = tuple(found.items())
    return Split(teams.team, tuple(shards.items()), 0, teams.sequence)


def halves(kind: Exchange, size: int) -> Sums:
    """What a collective sends."""
    both = {Exchange.SUM: (Exchange.SCATTER, Exchange.GATHER)}
    return Counter((own.value, size) for own in both.get(kind, (kind,)))


class Seen(TorchDispatchMode):
    """Counts collectives as torch's `CommDebugMode` does, and their bytes: of layers, and of the end of a step."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: Sums = Counter()
        self.at_the_end: Sums = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.partition(".")[0]
        if "c10d" in func.namespace and name in OPERATIONS:
            tensor = args[0] if isinstance(args[0], Tensor) else args[0][0]
            parts = dist.get_world_size() if OPERATIONS[name] in OF_PARTS else 1
            in_layers = "functional" in func.namespace or OPERATIONS[name] is Exchange.SHIFT
            own = self.sent if in_layers else self.at_the_end
            own.update(halves(OPERATIONS[name], tensor.nbytes * parts))
        return func(*args, **(kwargs or {}))


def seen(build: Callable[[], Workload], plans: Sequence[Plan]) -> list[tuple[Sums, Sums, Sums]]:
    """What a member sends with each plan: in a forward, in a backward, and at the end of a step."""
    return [_seen(build, plan) for plan in plans]


def exact(build: Callable[[], Workload], plans: Sequence[Plan]) -> tuple[list[float], list[tuple[Sums, Sums, Sums]]]:
    """The worst error of each plan, and what a member sends with it."""
    return [worst_error(plan, build, 2) for plan in plans], seen(build, plans)


def _seen(build: Callable[[], Workload], plan: Plan) -> tuple[Sums, Sums, Sums]:
    pipeline = Pipeline(plan, build)
    batch = draw(pipeline.workload, plan.batch, 3)
    with Seen() as forward:
        pipeline.evaluate(*batch)
    with Seen() as both:
        pipeline.compute(*batch, update=False)
    gathered = dict(pipeline.modules[0].sharded_layers.dispatch.gathered)
    assert not gathered, gathered
    return forward.sent, both.sent - forward.sent, both.at_the_end


def times(sums: Sums, count: int) -> Sums:
    """As often in all micro-batches."""
    return Counter({each: count * own for each, own in sums.items()})


def together(sums: Mapping[tuple[str, int], int]) -> dict[str, int]:
    """Bytes by kind: sums of a step are made in one collective."""
    found: Counter[str] = Counter()
    for (kind, size), count in sums.items():
        found[kind] += size * count
    return dict(found)


def compared(build: Callable[[], Workload], case: Case, sent: Iterable[Sums]) -> dict[str, Any]:
    """What is sent and was not predicted, and the reverse; empty if they agree."""
    forward, backward, step = case.sent
    expected = (times(forward, MICRO_BATCHES), times(backward, MICRO_BATCHES), step)
    wrong: dict[str, Any] = {}
    for when, own, there in zip((FORWARD, BACKWARD), sent, expected, strict=False):
        if own != there:
            wrong[when] = {"more": dict(own - there), "less": dict(there - own)}
    found = tuple(sent)[2]
    if together(found) != together(step):
        wrong[STEP] = {"sent": together(found), "predicted": together(step)}
    return wrong
