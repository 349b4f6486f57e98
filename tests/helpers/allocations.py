"""Chain allocation problems by brute force: docs/bounds/allocation.md evaluated without code of the formulation."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from math import ceil, lcm

import numpy as np
from hypothesis import strategies as st

from helpers.partitions import ROLES, exposed, role_tables, with_rebuilt, with_roles
from pipeplan_formulations.allocation import Allocation, ChainAllocation, Place


def every_allocation(problem: ChainAllocation) -> Iterator[Allocation]:
    """All cuts, kinds and widths, feasible or not."""
    n = problem.forward.shape[1]
    for depth in range(1, n + 1):
        rows = list(_modes(problem, depth, tuple(problem.units.tolist())))
        for inner in itertools.combinations(range(1, n), depth - 1):
            edges = (0, *inner, n)
            for chosen in rows:
                stages = tuple(Place(edges[s], edges[s + 1], *chosen[s]) for s in range(depth))
                yield from with_flights(problem, stages)


def _modes(problem: ChainAllocation, depth: int, left: tuple[int, ...]) -> Iterator[tuple[tuple[int, int], ...]]:
    """Kind and width of each stage, within the units that are left of each pool."""
    if depth == 0:
        yield ()
        return
    for kind, w in itertools.product(range(problem.forward.shape[0]), range(len(problem.widths))):
        pool, width = int(problem.pool[kind]), problem.widths[w]
        rest = left[pool] - width * int(problem.takes[kind])
        if problem.able[kind, w] and rest >= 0:
            for row in _modes(problem, depth - 1, (*left[:pool], rest, *left[pool + 1 :])):
                yield ((kind, width), *row)


def units_used(problem: ChainAllocation, stages: Allocation) -> tuple[int, ...]:
    """Units of each pool that some stages take."""
    used = [0] * len(problem.units)
    for place in stages:
        used[int(problem.pool[place.kind])] += place.width * int(problem.takes[place.kind])
    return tuple(used)


def with_flights(problem: ChainAllocation, stages: Allocation) -> Iterator[Allocation]:
    """The stages; if in-flight counts are a choice, with every non-increasing sequence of counts."""
    if problem.in_flight_rule != "non_increasing":
        yield stages
        return
    widths = [place.width for place in stages]
    shares = [ceil(problem.micro_batches / (width * problem.unit)) for width in widths]
    least = [flight(replace(problem, in_flight_rule="sno"), stages, s) for s in range(len(stages))]
    wanted = [ceil((3 * sum(widths[s:]) - 2 * width) / width) for s, width in enumerate(widths)]
    most = [min(k, share) for k, share in zip(wanted, shares, strict=True)]
    pairs = list(itertools.combinations(range(len(stages)), 2))
    for counts in itertools.product(*(range(a, b + 1) for a, b in zip(least, most, strict=True))):
        if all(
            counts[t] == least[t]
            or counts[s] == shares[s]
            or counts[t] * widths[t] - sum(widths[t:]) <= counts[s] * widths[s] - sum(widths[s:])
            for s, t in pairs
        ):
            yield tuple(replace(place, held=k) for place, k in zip(stages, counts, strict=True))


def flight(problem: ChainAllocation, stages: Allocation, s: int) -> int:
    """In-flight count by the in-flight rule: replicas from the stage on, divided by its own; or the chosen count."""
    if stages[s].held:
        return stages[s].held
    replicas = [place.width * problem.unit for place in stages]
    rest, own = sum(replicas[s:]), replicas[s]
    share = ceil(problem.micro_batches / own)
    held = {"sno": rest, "so": 2 * rest - own, "fbp": 2 * rest, "full": share * own}[problem.in_flight_rule]
    return min(share, ceil(held / own))


def memory(problem: ChainAllocation, stages: Allocation, s: int, again: tuple[int, ...]) -> int:
    """Left side of the memory limit, in bytes, with the layers ``again`` recomputed."""
    p, place, k = problem, stages[s], flight(problem, stages, s)
    w = p.widths.index(place.width)
    layers = range(place.start, place.end)
    saved, output, workspace, received = (
        own if own.ndim == 1 else own[place.kind] for own in (p.saved, p.output, p.workspace, p.received)
    )
    held = int(received[place.start - 1]) if s else 0
    held += sum(int(output[i] if i in again else saved[i]) for i in layers)
    rebuilt = saved + workspace if p.rebuilt is None else p.rebuilt[place.kind]
    peak = max([int(workspace[i]) for i in layers] + [int(rebuilt[i]) for i in again])
    return sum(int(p.resident[place.kind, w, i]) for i in layers) + k * held + peak


def least_recomputation(problem: ChainAllocation, stages: Allocation, s: int) -> int | None:
    """Least recomputation time with which the stage fits; None if it never does."""
    place = stages[s]
    choices = [i for i in range(place.start, place.end) if problem.recomputable[i]]
    fits = [
        sum(int(problem.forward[place.kind, i]) for i in again)
        for size in range(len(choices) + 1)
        for again in itertools.combinations(choices, size)
        if memory(problem, stages, s, again) <= problem.limit[place.kind]
    ]
    return min(fits, default=None)


def meets_constraints(problem: ChainAllocation, stages: Allocation) -> bool:
    """True if cuts are allowed and forced modes are respected."""
    modes = tuple((place.kind, place.width) for place in stages)
    first, last = problem.first, problem.last
    return (
        len(modes) >= len(first) + len(last)
        and modes[: len(first)] == first
        and modes[len(modes) - len(last) :] == last
        and all(problem.able[place.kind, problem.widths.index(place.width)] for place in stages)
        and all(problem.cuts[place.start - 1] for place in stages[1:])
    )


def objective(problem: ChainAllocation, stages: Allocation) -> int | None:
    """The largest right side of the bounds of a step, or of the bottleneck; None if a stage does not fit."""
    sides = right_sides(problem, stages)
    if sides is None:
        return None
    return max(*map(max, sides), *drains(problem, stages, sides[1][0]), own_endings(problem, stages))


def ending(problem: ChainAllocation, place: Place) -> int:
    """E of a stage."""
    w = problem.widths.index(place.width)
    return reduction(problem, place) + sum(int(problem.update[place.kind, w, i]) for i in range(place.start, place.end))


def backwards(problem: ChainAllocation, stages: Allocation) -> list[int]:
    """Backward times B of each stage, all of which fit."""
    own = [sum(int(problem.backward[q.kind, i]) for i in range(q.start, q.end)) for q in stages]
    again = [least_recomputation(problem, stages, s) for s in range(len(stages))]
    return [b + x for b, x in zip(own, again, strict=True)]


def in_role(problem: ChainAllocation, stages: Allocation, role: str) -> tuple[list[int], list[int]]:
    """F and B of each stage in a role: of its own tables, or the device's own with recomputation."""
    tables = role_tables(problem, role)
    if tables is None:
        forward = [sum(int(problem.forward[q.kind, i]) for i in range(q.start, q.end)) for q in stages]
        return forward, backwards(problem, stages)
    forward, backward = ([sum(int(t[q.kind, i]) for i in range(q.start, q.end)) for q in stages] for t in tables)
    return forward, backward


def drains(problem: ChainAllocation, stages: Allocation, alone: int) -> list[int]:
    """Right sides of alternation and two trips, or two phases, with e = 0 first, where ``alone`` is E_0 + A."""
    if problem.objective in ("bottleneck", "delayed") or any(role_tables(problem, role) for role in ROLES):
        return [alone]
    found, (forwards, backward) = [alone], in_role(problem, stages, "own")
    replicas, hops = [q.width * problem.unit for q in stages], there_and_back(problem, stages)
    for s, forward in enumerate(forwards):
        many, k = ceil(problem.micro_batches / replicas[s]), flight(problem, stages, s)
        if problem.phases and len(problem.widths) == 1:
            found += [alone + (many - 1) * (forward + other) for other in backward]
        if problem.alternating:  # micro-batches of the first replica; behind the switch, of the stage on its device
            switch = replicas[s] * (many - k)
            for t in range(s + 1):
                left = len(range(switch + replicas[t], problem.micro_batches, replicas[t]))
                found.append(alone + (many - k) * (forward + backward[s]) + left * backward[t])
            if problem.two_trips and many > k:
                trips = [f + b + passed for f, b, passed in zip(forwards, backward, hops, strict=True)]
                found += trips_in_turn(problem, stages, s, alone, trips)
    return found


def trips_in_turn(problem: ChainAllocation, stages: Allocation, s: int, alone: int, trips: list[int]) -> list[int]:
    """Right sides of a first trip, cycles from stage s to each behind it, alternation on s, and a last trip.

    ``trips`` are F + B of each stage and the hop behind it, there and back.
    """
    found, replicas = [], [q.width * problem.unit for q in stages]
    counts = [flight(problem, stages, t) for t in range(len(stages))]
    hops = there_and_back(problem, stages)
    for t in range(s, len(stages)):
        batch, length = counts[s] * replicas[s], alone + sum(trips[s:])
        while batch + counts[s] * replicas[s] - (counts[t] - 1) * replicas[t] < problem.micro_batches:
            length += sum(trips[s : t + 1]) - hops[t]
            batch += counts[s] * replicas[s] - (counts[t] - 1) * replicas[t]
        while batch + replicas[s] < problem.micro_batches:
            length += trips[s] - hops[s]
            batch += replicas[s]
        found.append(length)
    return found


def hop(problem: ChainAllocation, table: np.ndarray, stages: Allocation, before: int, s: int) -> np.ndarray:
    """Entries of a table for a hop from kind ``before`` to stage s."""
    behind = stages[s].kind
    pool = int(problem.pool[behind])
    used = units_used(problem, stages[s:])[pool]
    node = 1 if before != behind or used % int(problem.node[pool]) == 0 else 0
    return table[before, behind, node]


def there_and_back(problem: ChainAllocation, stages: Allocation) -> list[int]:
    """Time that a micro-batch and its gradient take over the hop behind each stage, 0 behind the last one."""
    tables = [
        (2, problem.latency),
        *((problem.overlap != "stream", table) for table in (problem.send, problem.send_back)),
    ]
    found = []
    for s, place in enumerate(stages[:-1]):
        each = (times * hop(problem, table, stages, place.kind, s + 1) for times, table in tables)
        found.append(sum(int(own if own.ndim == 0 else own[place.end - 1]) for own in each))
    return [*found, 0]


def least_send_back(problem: ChainAllocation, stages: Allocation, s: int) -> int:
    """The least time to send gradients from stage s to any kind of stage before; 0 for the first stage."""
    kinds = range(len(problem.forward)) if s else ()
    cut = stages[s].start - 1
    return min((int(hop(problem, problem.send_back, stages, before, s)[cut]) for before in kinds), default=0)


def right_sides(problem: ChainAllocation, stages: Allocation) -> tuple[list[int], list[int]] | None:
    """Right sides of way back and delays, e = 0 first; for the bottleneck in one list; None if it does not fit."""
    p, many, depth = problem, problem.micro_batches, len(stages)
    again = [least_recomputation(problem, stages, s) for s in range(depth)]
    if None in again:
        return None
    r = [place.width * p.unit for place in stages]
    share = [ceil(many / x) for x in r]
    forward = [sum(int(p.forward[q.kind, i]) for i in range(q.start, q.end)) for q in stages]
    backward = backwards(p, stages)

    send = [int(hop(p, p.send, stages, stages[s].kind, s + 1)[stages[s].end - 1]) for s in range(depth - 1)] + [0]
    back = [int(hop(p, p.send_back, stages, stages[s].kind, s + 1)[stages[s].end - 1]) for s in range(depth - 1)] + [0]
    into = [least_send_back(p, stages, s) for s in range(depth)]
    period = [max(lcm(x, w * p.unit) for w in p.widths) for x in r]
    if p.objective in ("bottleneck", "delayed"):
        late = p.objective == "delayed"
        samples, waits = 1 if late else p.samples or many, p.overlap == "none"
        beside = [reduction(p, place) for place in stages]
        collectives = [ending(p, place) - x for place, x in zip(stages, beside, strict=True)] if late else beside
        sent = [x + y if waits else 0 for x, y in zip(send, into, strict=True)]
        rows = zip(share, forward, backward, sent, collectives, strict=True)
        loads = [ceil(Fraction(m * (f + b + x) + once, samples)) for m, f, b, x, once in rows]
        links = [ceil(many / x) * max(a, b) // samples for a, b, x in zip(send, back, period, strict=True)]
        loads += beside * late
        return loads, loads if waits else links

    end = ending(p, stages[0])
    if p.objective == "step" and p.joint.any():  # the last stage's sums wait for the first stage
        end = max(end, ending(p, stages[-1]))
    heads: list[int] = []
    way, trip, service = (in_role(p, stages, role) for role in ("ahead", "trip", "service"))
    hops = there_and_back(p, stages)
    head = [sum(way[0][t] + way[1][t] + hops[t] for t in range(s)) for s in range(depth)]
    alone = sum(trip[0]) + sum(trip[1]) + sum(hops)
    sides = [alone]
    for s in range(depth):
        f, b, m = service[0][s], service[1][s], share[s]
        if p.overlap == "none":
            f, b = f + send[s], b + into[s]
            heads.append(head[s] + m * (forward[s] + send[s] + backward[s]) + (m - 1) * into[s])
        else:
            heads.append(head[s] + m * (forward[s] + backward[s]))
        through = alone + forward[s] + backward[s] - trip[0][s] - trip[1][s]
        sides += [through + (m - 1) * f, through + (m - 1) * b]
        if p.alternating:
            sides.append(through + max(m - flight(p, stages, s), 0) * f + (m - 1) * b)
        carried = ceil(many / period[s])
        if p.overlap == "copy":
            sides += [alone + (carried - 1) * send[s], alone + (carried - 1) * back[s]]
        if p.overlap == "stream":
            sides += [alone + carried * send[s] - trip[0][s], alone + carried * into[s] - trip[1][s]]
    return [side + end for side in heads], [side + end for side in sides]


def reduction(problem: ChainAllocation, place: Place) -> int:
    """R of a stage: its sums, and the gathers of the first stage, or in a long run of every stage."""
    counts = place.start == 0 or problem.objective in ("period", "delayed")
    joint = int(problem.joint[place.kind, problem.widths.index(place.width)]) * (place.end == problem.forward.shape[1])
    return sums(problem, place) + joint + (gathers(problem, place) if counts else 0)


def sums(problem: ChainAllocation, place: Place) -> int:
    """What a stage's last backward does not hide of its sums, layer by layer."""
    w, layers = problem.widths.index(place.width), slice(place.start, place.end)
    parts, hides = problem.reduce[place.kind, w, layers].tolist(), problem.hides[place.kind, layers].tolist()
    return exposed(parts, hides, int(problem.reduce_base[place.kind, w]))


def gathers(problem: ChainAllocation, place: Place) -> int:
    """What a stage's first forward does not hide of its gathers, layer by layer."""
    w, layers = problem.widths.index(place.width), slice(place.start, place.end)
    parts, hides = problem.gather[place.kind, w, layers].tolist(), problem.gather_hides[place.kind, layers].tolist()
    return exposed(parts, hides, int(problem.gather_base[place.kind, w]))


def own_endings(problem: ChainAllocation, stages: Allocation) -> int:
    """The largest own ending: a stage's gradients and update come after its backwards; 0 for the bottleneck."""
    if problem.objective in ("bottleneck", "delayed"):
        return 0
    way, most, passes = 0, 0, in_role(problem, stages, "ahead")[0]
    for s, (place, backward) in enumerate(zip(stages, backwards(problem, stages), strict=True)):
        w, layers = problem.widths.index(place.width), range(place.start, place.end)
        forward = sum(int(problem.forward[place.kind, i]) for i in layers)
        update = sum(int(problem.update[place.kind, w, i]) for i in layers)
        many = ceil(problem.micro_batches / (place.width * problem.unit))
        behind = stages[s + 1 : s + 2]
        busy = forward + backward
        if problem.overlap == "none":
            busy += sum(int(hop(problem, problem.send, stages, place.kind, s + 1)[place.end - 1]) for _ in behind)
            busy += least_send_back(problem, stages, s)
        wait = gathers(problem, place) if s and problem.objective == "step" else 0
        most = max(most, max(way, wait) + many * busy + reduction(problem, place) + update)
        for _ in behind if problem.objective == "step" else []:
            way += passes[s] + int(hop(problem, problem.latency, stages, place.kind, s + 1))
            if problem.overlap != "stream":
                way += int(hop(problem, problem.send, stages, place.kind, s + 1)[place.end - 1])
    return most


def brute_force(problem: ChainAllocation) -> int | None:
    """The optimum over all allocations; None if none fits."""
    values = (objective(problem, stages) for stages in every_allocation(problem) if meets_constraints(problem, stages))
    return min((value for value in values if value is not None), default=None)


@st.composite
def chain_allocations(draw, layers=6, devices=4, objectives=("step", "step", "step", "bottleneck")) -> ChainAllocation:
    """Small instances of all kinds: one or two pools of devices, teams of some sizes in them, widths, tight or hopeless
    memory, constraints, ties."""
    n = draw(st.integers(1, layers))
    pools = draw(st.integers(1, 2))
    teams = draw(st.sampled_from([(1,), (1,), (1, 2), (2, 3), (1, 4)]))
    kinds = pools * len(teams)
    units = draw(st.lists(st.integers(0 if pools > 1 else max(teams), devices), min_size=pools, max_size=pools))
    while sum(units) > devices:
        units[int(np.argmax(units))] -= 1
    widths = draw(st.sampled_from([(1,), (1,), (1, 2), (2,), (1, 2, 3), (1, 3)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    top = draw(st.sampled_from([1, 4, 30, 10**6]))
    linked = draw(st.sampled_from([0, 1, 4]))
    modes = st.tuples(st.integers(0, kinds - 1), st.sampled_from(widths))
    forced = draw(st.sampled_from([(0, 0), (0, 0), (0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (2, 0)]))
    slow = np.array([1, *(draw(st.sampled_from([1, 2, 3])) for _ in range(3))])[:kinds, None]
    by_kind = (kinds,) if draw(st.booleans()) else ()
    busy = rng.random(n) < draw(st.sampled_from([1.0, 1.0, 1.0, 0.5]))  # the others compute nothing

    def times(high: int) -> np.ndarray:
        if draw(st.booleans()):
            return busy * rng.integers(0, high + 1, (1, n)) * slow
        return busy * rng.integers(0, high + 1, (kinds, n))

    able = rng.random((kinds, len(widths))) < draw(st.sampled_from([1.0, 1.0, 0.7]))
    problem = ChainAllocation(
        forward=times(top),
        backward=times(2 * top),
        update=rng.integers(0, top + 1, (kinds, len(widths), n)),
        reduce=rng.integers(0, top + 1, (kinds, len(widths), n)) * draw(st.integers(0, 1)),
        resident=rng.integers(0, 8, (kinds, len(widths), n)),
        reduce_base=rng.integers(0, top + 1, (kinds, len(widths))),
        saved=rng.integers(0, 10, (*by_kind, n)),
        output=rng.integers(0, 6, (*by_kind, n)),
        workspace=rng.integers(0, 6, (*by_kind, n)),
        recomputable=rng.random(n) < draw(st.sampled_from([0.0, 0.7, 1.0])),
        received=rng.integers(0, 5, (*by_kind, n - 1)),
        limit=np.full(kinds, 2**40),
        pool=np.repeat(np.arange(pools), len(teams)),
        takes=np.tile(teams, pools),
        units=np.array(units),
        node=rng.integers(1, 4, pools),
        send=rng.integers(0, linked * top + 1, (kinds, kinds, 2, n - 1)),
        send_back=rng.integers(0, linked * top + 1, (kinds, kinds, 2, n - 1)),
        latency=rng.integers(0, linked * top + 1, (kinds, kinds, 2)),
        able=able,
        cuts=rng.random(n - 1) < draw(st.sampled_from([1.0, 1.0, 0.7])),
        micro_batches=draw(st.integers(1, 6)),
        widths=widths,
        unit=draw(st.sampled_from([1, 1, 2])),
        overlap=draw(st.sampled_from(["none", "copy", "stream"])),
        objective=draw(st.sampled_from(objectives)),
        in_flight_rule=draw(st.sampled_from(["sno", "so", "fbp", "full", "non_increasing", "non_increasing"])),
        alternating=(alternating := draw(st.booleans())),
        two_trips=bool(rng.integers(2)),
        phases=not alternating and draw(st.booleans()),
        first=tuple(draw(modes) for _ in range(forced[0])),
        last=tuple(draw(modes) for _ in range(forced[1])),
    )
    if draw(st.booleans()):
        hides = rng.integers(0, problem.backward + 1) * rng.integers(0, 2, (kinds, n))
        parts = rng.integers(0, 2 * top + 1, problem.reduce.shape) * rng.integers(0, 2, problem.reduce.shape)
        problem = replace(problem, hides=hides, reduce=parts)
    if draw(st.sampled_from([True, False, False])):
        gather = rng.integers(0, 2 * top + 1, problem.reduce.shape) * rng.integers(0, 2, problem.reduce.shape)
        base = rng.integers(0, top + 1, (kinds, len(widths)))
        hides = rng.integers(0, problem.forward + 1) * rng.integers(0, 2)
        problem = replace(problem, gather=gather, gather_base=base, gather_hides=hides)
    if n > 1 and draw(st.sampled_from([True, False, False])):  # several stages: the first and the last one sum together
        problem = replace(problem, joint=rng.integers(0, 2 * top + 1, (kinds, len(widths))))
    if problem.objective == "bottleneck" and draw(st.booleans()):
        problem = replace(problem, samples=problem.micro_batches * draw(st.integers(2, 4)))
    problem = with_roles(with_rebuilt(problem))
    memory_kind = draw(st.sampled_from(["free", "tight", "tight", "tight", "scarce"]))
    if memory_kind == "free":
        return problem
    # About the bytes of one random allocation with everything saved, or less.
    every = list(itertools.islice(every_allocation(problem), 400))
    if not every:
        return problem
    stages = every[int(rng.integers(len(every)))]
    need = [memory(problem, stages, s, ()) for s in range(len(stages))]
    share = rng.uniform(0.5, 1.1) if memory_kind == "tight" else rng.uniform(0.1, 0.5)
    return replace(problem, limit=np.maximum((max(need) * share * rng.uniform(0.8, 1.2, kinds)).astype(np.int64), 0))
