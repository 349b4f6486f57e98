"""Chain partition instances, with an independent evaluation and brute force, term by term from the equations."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from pipeplan_formulations.common.report import Report, Status, Stop
from pipeplan_formulations.partition import ChainPartition, LinkResource, PathCut, Tie
from pipeplan_formulations.partition.tables import Boundaries


def chain_partition(forward, backward, *, links=0, **fields) -> ChainPartition:
    """Instance on equal or unequal devices, given mainly by the times; sizes are one byte per layer.

    ``links`` takes the place of send, send_back and link; every other field of `ChainPartition` may be given.
    """
    forward, backward = np.atleast_2d(np.array(forward)), np.atleast_2d(np.array(backward))
    stages, layers = forward.shape
    cuts = np.full((stages - 1, layers - 1), links)
    ones = np.ones(layers, np.int64)
    defaults = {
        **dict.fromkeys(("send", "send_back", "link"), cuts),
        **dict.fromkeys(("resident", "saved"), ones),
        "in_flight": np.arange(stages, 0, -1),
        "limit": np.full(stages, 2**40),
        "micro_batches": 4,
    }
    return ChainPartition(forward=forward, backward=backward, **{**defaults, **fields})


UNEVEN = (7, 2, 2, 9, 1, 1, 4, 4)
"""Eight layers; three stages with the least largest sum are 7 2 2 | 9 1 | 1 4 4."""


def uneven(**settings) -> ChainPartition:
    """Instance of the layers of `UNEVEN` on three equal devices."""
    return chain_partition(**{"forward": np.tile(UNEVEN, (3, 1)), "backward": np.zeros((3, 8), int), **settings})


def random_chain(seed: int, stages: int, layers: int, **settings) -> ChainPartition:
    """Unequal layers on equal devices, backward twice the forward."""
    times = np.random.default_rng(seed).integers(1_000_000, 9_000_000, layers)
    return chain_partition(np.tile(times, (stages, 1)), np.tile(2 * times, (stages, 1)), **settings)


def nothing_known(problem: ChainPartition) -> Report[Boundaries]:
    """Start without solution or bound, so that a solver has to find and prove everything itself."""
    return Report(Status.UNKNOWN, Stop.TIME, None, problem.lower_bound(), 0.0, "none", "", 0, None)


def every_partition(problem: ChainPartition) -> Iterator[Boundaries]:
    """All boundaries, feasible or not."""
    n = problem.forward.shape[1]
    for inner in itertools.combinations(range(1, n), problem.forward.shape[0] - 1):
        yield (0, *inner, n)


def has_copy(tie: Tie, layers: range) -> bool:
    """True if these layers share weights with an earlier layer on another stage."""
    return tie.layers[0] not in layers and any(layer in layers for layer in tie.layers)


def is_home(tie: Tie, layers: range) -> bool:
    """True if the first of the tied layers is here, and another one is not."""
    return tie.layers[0] in layers and any(layer not in layers for layer in tie.layers)


def with_rebuilt(problem: Any) -> Any:
    """The problem, or half of the time one whose recomputed layers need less than all that they save."""
    rng = np.random.default_rng(int(problem.saved.sum()))
    most = problem.saved + problem.workspace
    if rng.integers(2) or most.shape != problem.workspace.shape:
        return problem
    return replace(problem, rebuilt=rng.integers(problem.workspace, most + 1))


ROLES = ("ahead", "service")
ENDLESS = ("bottleneck", "delayed")
"""Objectives of pipelines that never drain, which have no bounds of steps."""


def with_roles(problem: Any) -> Any:
    """The problem, or half of the time one whose times differ by role: of the way, of the round trip, of services."""
    rng = np.random.default_rng(int(problem.forward.sum()) + int(problem.saved.sum()))
    if rng.integers(2):
        return problem
    found: dict[str, Any] = {"round_trip": ("own", "ahead")[rng.integers(2)]}
    for role in ROLES:
        if rng.integers(3):
            found |= {f"{role}_{name}": rng.integers(0, getattr(problem, name) + 1) for name in ("forward", "backward")}
        if getattr(problem, "weight", None) is not None and rng.integers(2):
            found[f"{role}_weight"] = rng.integers(0, problem.weight + 1)
    return replace(problem, **found)


def without_roles(problem: Any) -> Any:
    """The problem with the device's own times in every role, as the families and the simulator have them."""
    weights = dict.fromkeys((f"{role}_weight" for role in ROLES), None) if hasattr(problem, "ahead_weight") else {}
    passes = {f"{role}_{name}": None for role in ROLES for name in ("forward", "backward")}
    return replace(problem, round_trip="own", **passes, **weights)


def role_tables(problem: Any, role: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Forward and backward of a role; None if it has the device's own, which count recomputation."""
    if role == "own":
        return None
    if role == "trip":
        return role_tables(problem, "ahead") if problem.round_trip == "ahead" else None
    forward = getattr(problem, f"{role}_forward")
    return None if forward is None else (forward, getattr(problem, f"{role}_backward"))


def ends_together(problem: ChainPartition) -> bool:
    """True if no sum or update of the last stage begins before the first stage has ended its last backward."""
    stages, layers = problem.forward.shape
    many = problem.objective == "step" and stages > 1
    return many and any({0, layers - 1} <= {*tie.layers} and tie.reduce[-1] for tie in problem.ties)


def memory_of(problem: ChainPartition, boundaries: Boundaries, s: int, again=()) -> int:
    """Left side of the memory limit, layer by layer, with the layers ``again`` recomputed."""
    layers = range(boundaries[s], boundaries[s + 1])
    received = int(row_of(problem.received, s - 1)[layers[0] - 1]) if s else 0
    saved, workspace = row_of(problem.saved, s), row_of(problem.workspace, s)
    held = sum(int(row_of(problem.output, s)[i] if i in again else saved[i]) for i in layers)
    stays = sum(int(row_of(problem.resident, s)[i]) for i in layers)
    stays += sum(tie.resident[s] for tie in problem.ties if has_copy(tie, layers))
    whole = saved + workspace if problem.rebuilt is None else row_of(problem.rebuilt, s)
    peaks = [int(whole[i] if i in again else workspace[i]) for i in layers]
    beside = 0 if problem.beside is None else max(int(row_of(problem.beside, s)[i]) for i in layers)
    return stays + int(problem.in_flight[s]) * (held + received) + max(peaks) + beside


def row_of(table: np.ndarray, s: int) -> np.ndarray:
    """Row s of a table that has one row for each stage, or one for all."""
    return table[s] if table.ndim == 2 else table


def recomputed(problem: ChainPartition, boundaries: Boundaries, s: int) -> tuple[int, ...] | None:
    """Cheapest set of recomputed layers with which stage s fits, of these a smallest one; None if none fits."""
    layers = range(boundaries[s], boundaries[s + 1])
    may = [i for i in layers if problem.recomputable[i]]
    sets = (x for size in range(len(may) + 1) for x in itertools.combinations(may, size))
    fit = (x for x in sets if memory_of(problem, boundaries, s, x) <= problem.limit[s])
    return min(fit, key=lambda x: (sum(int(problem.forward[s, i]) for i in x), len(x)), default=None)


def allowed(problem: ChainPartition, boundaries: Boundaries) -> bool:
    """True if the constraints hold: no forbidden cut, no layer on a forbidden stage."""
    cuts = problem.cuts is None or all(problem.cuts[b - 1] for b in boundaries[1:-1])
    spans = enumerate(itertools.pairwise(boundaries))
    return cuts and (problem.where is None or all(problem.where[s, i] for s, (a, b) in spans for i in range(a, b)))


def fits(problem: ChainPartition, boundaries: Boundaries) -> bool:
    """True if the memory limit holds for every stage, and the constraints too."""
    stages = range(len(boundaries) - 1)
    return allowed(problem, boundaries) and all(recomputed(problem, boundaries, s) is not None for s in stages)


def reduction(problem: ChainPartition, boundaries: Boundaries, s: int) -> int:
    """Reduction time R_s, part by part."""
    layers = range(boundaries[s], boundaries[s + 1])
    parts, hides = ([int(table[s, i]) for i in layers] for table in (problem.reduce, problem.hides))
    tied = sum(tie.reduce[s] for tie in problem.ties if has_copy(tie, layers))
    tied += sum(tie.home[s] for tie in problem.ties if is_home(tie, layers))
    gathers = 0
    if s == 0 or problem.objective in ("period", "delayed"):
        first, beside = ([int(table[s, i]) for i in layers] for table in (problem.gather, problem.gather_hides))
        gathers = exposed(first, beside, int(problem.gather_base[s]))
    return exposed(parts, hides, int(problem.reduce_base[s])) + gathers + tied


def exposed(reduce: Sequence[int], hides: Sequence[int], base: int) -> int:
    """What is left of a stage's reduction when its last backward has ended, from what each layer needs and hides.

    The layers up to any one that reduces wait for it, and what lies before it in the stage is still to be run backward.
    """
    left = [base + sum(reduce[: i + 1]) - sum(hides[:i]) for i in range(len(reduce)) if any(reduce[: i + 1])]
    return max([0, *left])


def objective(problem: ChainPartition, boundaries: Boundaries) -> int:
    """Largest load, or right side of the bounds of a step; a stage that does not fit recomputes nothing."""
    p, stages = problem, range(len(boundaries) - 1)
    cut = [b - 1 for b in boundaries[1:-1]]

    def total(table, s):
        return sum(int(table[s, i]) for i in range(boundaries[s], boundaries[s + 1]))

    forward, backward, update = ([total(t, s) for s in stages] for t in (p.forward, p.backward, p.update))
    for s in stages:
        backward[s] += sum(int(p.forward[s, i]) for i in recomputed(p, boundaries, s) or ())
        update[s] += sum(tie.update[s] for tie in p.ties if has_copy(tie, range(boundaries[s], boundaries[s + 1])))

    def of_role(role):
        tables = role_tables(p, role)
        return (forward, backward) if tables is None else tuple([total(t, s) for s in stages] for t in tables)

    way, trip, service = of_role("ahead"), of_role("trip"), of_role("service")
    longer = [forward[s] + backward[s] - trip[0][s] - trip[1][s] for s in stages]
    send, back, link = ([int(t[s, c]) for s, c in enumerate(cut)] for t in (p.send, p.send_back, p.link))
    latency, last = [int(x) for x in p.latency], stages[-1]
    many = [p.micro_batches if p.counts is None else int(p.counts[s]) for s in stages]
    if p.link_counts is not None:
        carried = [int(x) for x in p.link_counts]
    else:  # a stage whose busiest replica has all micro-batches has one; then the other's replicas have a link each
        carried = [min(x, y) if p.micro_batches in (x, y) else 1 for x, y in itertools.pairwise(many)]
    waits = p.overlap == "none"
    work = [
        forward[s] + backward[s] + (send[s] if waits and s < last else 0) + (back[s - 1] if waits and s > 0 else 0)
        for s in stages
    ]
    if p.objective == "delayed":
        busy = [] if waits else [carried[s] * link[s] for s in range(last)]
        steps = [many[s] * work[s] + update[s] for s in stages]
        return max(steps + busy + [reduction(p, boundaries, s) for s in stages])
    if p.objective == "bottleneck":
        samples = p.samples or p.micro_batches
        busy = [] if waits else [carried[s] * link[s] // samples for s in range(last)]
        steps = [many[s] * work[s] + reduction(p, boundaries, s) for s in stages]
        return max([-(-step // samples) for step in steps] + busy)

    reduce = [reduction(p, boundaries, s) for s in stages]
    weight = [total(p.weight, s) if p.weight is not None else 0 for s in stages]
    first_weight, late_weight = (
        weight if table is None else [total(table, s) for s in stages] for table in (p.ahead_weight, p.service_weight)
    )
    ending = [update[s] + reduce[s] for s in stages]
    if ends_together(p):
        ending[0] = max(ending[0], ending[-1])
    after = ending[0] + first_weight[0]  # time that always follows the last backward of stage 0
    sides = []
    for s in stages:  # forwards before it, its micro-batches, then way back or own ending
        there, home = (sum(times[:s]) + sum(latency[:s]) for times in way)
        if p.overlap == "copy":
            there, home = there + sum(send[:s]), home + sum(back[:s])
        elif waits:
            there, home = there + sum(send[:s]), home + sum(back[: max(s - 1, 0)])
        own = there if p.objective == "step" else 0  # in a long run a stage does not wait for those before it
        sides += [there + many[s] * work[s] + home + after, own + many[s] * (work[s] + weight[s]) + ending[s]]
    alone = after + sum(trip[0]) + sum(trip[1]) + 2 * sum(latency)
    if p.overlap != "stream":
        alone += sum(send) + sum(back)
    for s in stages:  # services and warm-up bounds for devices
        one = service[0][s] + (send[s] if waits and s < last else 0)
        other = service[1][s] + (back[s - 1] if waits and s > 0 else 0)
        through = alone + longer[s]
        sides += [through + (many[s] - 1) * one, through + (many[s] - 1) * other]
        if p.alternating:
            first = max(1, int((p.in_flight if p.warm_up is None else p.warm_up)[s]))
            slower = 0 if p.slower_pairs is None else int(p.slower_pairs[s])
            sides.append(through + slower + max(many[s] - first, 0) * (one + late_weight[s]) + (many[s] - 1) * other)
    for s, (f, g) in enumerate(zip(send, back, strict=True)):  # services bound for links
        if p.overlap == "copy":
            sides += [alone + (carried[s] - 1) * f, alone + (carried[s] - 1) * g]
        elif p.overlap == "stream":
            sides += [alone - trip[0][s] + carried[s] * f, alone - trip[1][s + 1] + carried[s] * g]
    for resource in p.resources:  # link-resource bound
        s, both = resource.link, resource.beyond is not None
        total = int(resource.busy[cut[s]]) + (int(resource.beyond[cut[s + 1]]) if both else 0)
        if p.overlap == "stream":
            between = trip[1][s + 1] if resource.back else trip[0][s]
        elif both:
            middle = (trip[1][s + 1], latency[s + 1]) if resource.back else (trip[0][s + 1], latency[s])
            between = sum((back if resource.back else send)[s : s + 2]) + sum(middle)
        else:
            between = (back if resource.back else send)[s]
        sides.append(alone - between + total)
    for path in p.paths:  # path cuts
        rows = [(path.forward, forward), (path.backward, backward), (path.update, update), (path.reduce, reduce)]
        rows += [(path.send, send), (path.send_back, back)]
        surplus = sum(row[cut[s]] for s, row in path.surplus)
        sides.append(
            path.constant + surplus + sum(a * x for row, times in rows for a, x in zip(row, times, strict=bool(row)))
        )
    return max(sides)


def brute_force(problem: ChainPartition) -> int | None:
    """The optimum over all partitions; None if none fits."""
    return min((objective(problem, b) for b in every_partition(problem) if fits(problem, b)), default=None)


@st.composite
def chain_partitions(draw, layers=7, stages=4, cuts=2, roomy=False, plain=False) -> ChainPartition:
    """Small instances of all kinds: ties (times 0 to 3), large numbers, unequal devices, tight and hopeless memory.

    Unless ``plain``, each may also have replicas, reductions, a short warm-up, recomputation, tied weights and
    constraints.
    """
    n = draw(st.integers(1, layers))
    depth = draw(st.integers(1, min(n, stages)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    largest = draw(st.sampled_from([3, 40, 10**6, 10**10]))
    linked = draw(st.sampled_from([0, 1, 5]))
    memory = "free" if roomy else draw(st.sampled_from(["free", "tight", "tight", "scarce"]))
    equal = draw(st.booleans())
    kind = draw(st.sampled_from(["step", "step", "period", "bottleneck", "delayed"]))

    def table(rows, columns, top):
        values = rng.integers(0, top + 1, (rows, columns))
        return np.tile(values[:1], (rows, 1)) if equal and rows else values

    many = draw(st.integers(1, 5))

    def counts(length):
        return tuple(int(x) for x in rng.integers(0, many + 1, length))

    paths = tuple(
        PathCut(
            counts(depth),
            counts(depth),
            counts(depth),
            counts(depth - 1),
            counts(depth - 1),
            int(rng.integers(9)),
            counts(depth) if rng.integers(2) else (),
            ((0, tuple(rng.integers(0, 9 * largest, n - 1).tolist())),) if depth > 1 and rng.integers(2) else (),
        )
        for _ in range(draw(st.integers(0, cuts)) if kind not in ENDLESS else 0)
    )
    problem = ChainPartition(
        forward=table(depth, n, largest),
        backward=table(depth, n, 2 * largest),
        update=table(depth, n, draw(st.sampled_from([0, largest // 2, 9 * largest]))),
        send=table(depth - 1, n - 1, linked * largest),
        send_back=table(depth - 1, n - 1, linked * largest),
        link=table(depth - 1, n - 1, linked * largest),
        latency=rng.integers(0, largest + 1, depth - 1),
        resident=rng.integers(0, 10, n),
        saved=rng.integers(0, 6, n),
        received=rng.integers(0, 6, n - 1),
        workspace=rng.integers(0, 10, n),
        in_flight=rng.integers(1, 4, depth),
        limit=np.full(depth, 2**62),
        micro_batches=many,
        overlap=draw(st.sampled_from(["none", "copy", "stream"])),
        objective=kind,
        paths=paths,
    )
    if not plain:
        problem = with_roles(with_rebuilt(replace(problem, **draw(extras(problem, rng, largest)))))
    if memory == "free":
        return problem
    # Enough for one partition, so that some fit and others do not; or less than that, so that perhaps none fits.
    inner = np.sort(rng.choice(np.arange(1, n), depth - 1, replace=False)) if depth > 1 else []
    spots = [int(i) for i in np.flatnonzero(problem.recomputable)]
    again = [i for i in spots if rng.integers(2)]
    need = np.array([memory_of(problem, (0, *map(int, inner), n), s, again) for s in range(depth)])
    spare = rng.integers(0, 6, depth) if memory == "tight" else -rng.integers(0, 3, depth)
    return replace(problem, limit=np.maximum(need + spare, 0))


@st.composite
def extras(draw, problem: ChainPartition, rng: np.random.Generator, largest: int) -> dict:
    """Fields beyond the plain problem, each present or not."""
    depth, n = problem.forward.shape
    many, found = problem.micro_batches, {}
    if draw(st.booleans()):
        found["counts"] = -(-many // rng.integers(1, 4, depth))
        if draw(st.booleans()):
            found["link_counts"] = rng.integers(1, many + 1, depth - 1)
    if draw(st.booleans()):
        found["reduce"] = rng.integers(0, 3 * largest, (depth, n)) * rng.integers(0, 2, (depth, n))
        if draw(st.booleans()):
            found["reduce_base"] = rng.integers(0, 3 * largest, depth)
        if draw(st.sampled_from([True, True, False])):
            found["hides"] = rng.integers(0, 3 * largest, (depth, n)) * rng.integers(0, 2, (depth, n))
    if draw(st.sampled_from([True, False, False])):
        found["gather"] = rng.integers(0, 3 * largest, (depth, n)) * rng.integers(0, 2, (depth, n))
        found["gather_base"] = rng.integers(0, 3 * largest, depth)
        if draw(st.sampled_from([True, True, False])):
            found["gather_hides"] = rng.integers(0, 3 * largest, (depth, n)) * rng.integers(0, 2, (depth, n))
    found["alternating"] = draw(st.booleans())
    if problem.objective == "bottleneck" and draw(st.booleans()):
        found["samples"] = many * draw(st.integers(1, 4))
    if problem.objective not in ENDLESS and depth > 1 and draw(st.booleans()):
        found["resources"] = tuple(random_resource(rng, problem, largest) for _ in range(draw(st.integers(1, 2))))
    if draw(st.booleans()):
        found["warm_up"] = rng.integers(0, many + 2, depth)
        found["slower_pairs"] = rng.integers(0, 2 * largest, depth) * rng.integers(0, 2, depth)
    if draw(st.booleans()):
        sorts = rng.integers(1, n + 1)  # layers of one sort have equal numbers
        found["saved"] = np.resize(rng.integers(0, 12, sorts), n)
        found["output"] = np.resize(rng.integers(0, 6, sorts), n)
        found["recomputable"] = rng.integers(0, 4, n) > 0
        if draw(st.booleans()):  # devices of two kinds
            kinds = rng.integers(0, 2, depth)
            found["saved"] = np.stack([found["saved"], rng.integers(0, 12, n)])[kinds]
            found["output"] = np.stack([found["output"], rng.integers(0, 6, n)])[kinds]
    if draw(st.booleans()):
        found["workspace"] = rng.integers(0, 10, (depth, n))
    if draw(st.booleans()):
        found["received"] = rng.integers(0, 6, (depth - 1, n - 1))
    if draw(st.integers(0, 3)) == 0:
        found["beside"] = rng.integers(0, 10, (depth, n) if draw(st.booleans()) else n)
    if draw(st.booleans()):
        found["resident"] = rng.integers(0, 10, (depth, n))
    if n > 1 and draw(st.booleans()):
        found["ties"] = tuple(random_tie(rng, depth, n, largest) for _ in range(draw(st.integers(1, 2))))
    if problem.objective == "step" and not problem.paths and draw(st.booleans()):
        found["weight"] = rng.integers(0, 2 * largest, (depth, n))
    if n > 1 and draw(st.booleans()):
        found["cuts"] = rng.integers(0, 4, n - 1) > 0
    if draw(st.integers(0, 2)) == 0:
        found["where"] = rng.integers(0, 6, (depth, n)) > 0
    return found


def random_resource(rng: np.random.Generator, problem: ChainPartition, largest: int) -> LinkResource:
    """Resource of one link or two, busy for about as long as stages work."""
    depth, n = problem.forward.shape
    both = depth > 2 and problem.overlap != "stream" and bool(rng.integers(2))
    rows = rng.integers(0, 5 * n * largest, (2, n - 1))
    return LinkResource(int(rng.integers(depth - 1 - both)), rows[0], rows[1] if both else None, bool(rng.integers(2)))


def random_tie(rng: np.random.Generator, stages: int, layers: int, largest: int) -> Tie:
    """Tie of two layers or three, often the first and the last, with unlike numbers for each stage, some of them 0."""
    tied = sorted(rng.choice(layers, min(layers, int(rng.integers(2, 4))), replace=False).tolist())
    if rng.integers(2):
        tied[0], tied[-1] = 0, layers - 1
    tops = (9, *[int(rng.choice([1, largest]))] * 3)
    return Tie(tuple(tied), *(tuple(rng.integers(0, top, stages).tolist()) for top in tops))


def unequal_chain(seed: int, stages: int, layers: int, **settings) -> ChainPartition:
    """Instance of devices up to twice as slow as others, and priced links: partitions differ in R, with many labels."""
    rng = np.random.default_rng(seed)
    times = (rng.lognormal(0, 0.6, layers) * 1e6).astype(np.int64)
    slowness = rng.choice([10, 15, 20], stages)[:, None]
    forward, backward = times * slowness // 10, times * slowness // 5
    links = (rng.lognormal(0, 0.6, layers - 1) * 1e6 * layers / stages).astype(np.int64)
    return chain_partition(forward, backward, links=links, **settings)


def late_endings(seed: int) -> ChainPartition:
    """Instance with long reductions behind the first stage and different paths to them: slack decides own ending."""
    rng = np.random.default_rng(seed)
    stages = int(rng.integers(3, 6))
    layers = int(rng.integers(stages + 2, 12))
    times = rng.integers(0, 40, (2, stages, layers))
    problem = chain_partition(*times, micro_batches=int(rng.integers(1, 4)))
    send, back = rng.integers(0, 60, (2, stages - 1, layers - 1))
    late = (np.arange(stages) > 0)[:, None]
    reduce, hides = rng.integers(0, 150, (stages, layers)) * late, rng.integers(0, 2) * times[1]
    tie = Tie((0, layers - 1), *((0,) * stages,) * 2, tuple(rng.integers(0, 40, stages).tolist()), (0,) * stages)
    ties = (tie,) * int(rng.integers(2))  # half of the time the last stage's ending takes the place of the first one's
    return replace(problem, send=send, send_back=back, reduce=reduce, hides=hides, ties=ties)


def short_of_memory(seed: int) -> ChainPartition:
    """Instance that fits only with recomputation, of layers of a few sorts, whose saved bytes peak meanwhile."""
    rng = np.random.default_rng(seed)
    stages = int(rng.integers(1, 4))
    layers = int(rng.integers(stages, 7))
    sorts = int(rng.integers(1, layers + 1))
    few = [np.resize(rng.integers(0, top, sorts), layers) for top in (9, 20, 4, 6)]
    problem = chain_partition(np.tile(few[0], (stages, 1)), np.tile(2 * few[0], (stages, 1)))
    saved, output, workspace = few[1:]
    problem = replace(problem, saved=saved, output=output, workspace=workspace, recomputable=np.ones(layers, np.bool_))
    edges = (0, *sorted(rng.choice(np.arange(1, layers), stages - 1, replace=False).tolist()), layers)
    most = [memory_of(problem, edges, s, range(layers)) for s in range(stages)]
    none = [memory_of(problem, edges, s) for s in range(stages)]
    limit = [int(rng.integers(min(a, b), max(a, b) + 1)) for a, b in zip(most, none, strict=True)]
    return replace(problem, limit=np.array(limit))


def short_of_received(seed: int) -> ChainPartition:
    """Instance in which stages recompute, and what they receive decides where they may begin."""
    rng = np.random.default_rng(seed)
    stages, layers = int(rng.integers(2, 4)), int(rng.integers(4, 7))
    times, saved = rng.integers(1, 9, layers), rng.integers(5, 12, layers)
    problem = chain_partition(np.tile(times, (stages, 1)), np.tile(2 * times, (stages, 1)))
    received = rng.choice([1, 25], layers - 1)
    again = {"output": np.ones(layers, np.int64), "recomputable": np.ones(layers, np.bool_)}
    problem = replace(problem, saved=saved, received=received, **again)
    edges = (0, *sorted(rng.choice(np.arange(1, layers), stages - 1, replace=False).tolist()), layers)
    some = [memory_of(problem, edges, s, range(edges[s], edges[s + 1] - 1)) for s in range(stages)]
    return replace(problem, limit=np.full(stages, max(some)))
