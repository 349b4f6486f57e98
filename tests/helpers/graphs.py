"""Graph partition instances, and an exhaustive search that writes the equations again, set by set."""

import itertools
from functools import cache

import numpy as np
from hypothesis import strategies as st

from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.graph import Border, GraphMode, GraphPartition, Line, Star


def stage_load(
    problem: GraphPartition, mode: GraphMode, earlier: frozenset, here: tuple, later: frozenset, variants
) -> int:
    """Load of a stage, between earlier and later groups."""
    loads = []
    for line in mode.lines:
        total = line.base * any(line.pays[g] for g in here) + sum(
            int(line.time[v, g]) for g, v in zip(here, variants, strict=True)
        )
        for weights, crosses in ((line.leave, leaves), (line.enter, enters)):
            stars = zip(weights, problem.stars, strict=True)
            sent = sum(int(weight) for weight, star in stars if crosses(problem, star, earlier, here, later))
            total += line.times * -(-sent // line.divisor)
        loads.append(-(-total // line.share))
    return max(loads)


def leaves(problem: GraphPartition, star: Star, earlier, here, later) -> bool:
    """True if a star's tensor leaves a stage."""
    if problem.route == "relay":
        return star.source not in later and any(reader in later for reader in star.readers)
    return star.source in here and any(reader not in here for reader in star.readers)


def enters(problem: GraphPartition, star: Star, earlier, here, later) -> bool:
    """True if a star's tensor enters a stage."""
    if problem.route == "relay":
        return star.source in earlier and any(reader not in earlier for reader in star.readers)
    return star.source not in here and any(reader in here for reader in star.readers)


def stage_memory(problem: GraphPartition, mode: GraphMode, earlier, here, later, variants, behind: int) -> int:
    """Left side of the memory limit, in bytes."""
    chosen = list(zip(variants, here, strict=True))
    each = sum(int(mode.held[v, g]) for v, g in chosen)
    each += sum(
        int(size)
        for size, star in zip(mode.received, problem.stars, strict=True)
        if enters(problem, star, earlier, here, later)
    )
    flying = [int(q) for q in mode.in_flight]
    flying += [flying[-1]] * 99
    return sum(int(mode.fixed[i]) for i in chosen) + flying[behind] * each + max(int(mode.peak[i]) for i in chosen)


def border_load(problem: GraphPartition, upto: frozenset, before: int, behind: int | None) -> int | None:
    """Border load behind the groups ``upto``, between these modes; None if they may not be neighbours."""
    if problem.pairs is None or behind is None:
        return 0
    if problem.pairs[before, behind] < 0:
        return None
    border = problem.borders[problem.pairs[before, behind]]
    crossing = (s.source in upto and any(reader not in upto for reader in s.readers) for s in problem.stars)
    total = sum(int(size) for size, crosses in zip(border.leave, crossing, strict=True) if crosses)
    return border.times * -(-total // border.divisor) // border.share


def exhaustive(problem: GraphPartition) -> int | None:
    """The optimum over all sequences of stages, last stage first; None if none fits."""
    everything = frozenset(range(problem.groups))

    @cache
    def best(left: frozenset, behind: int, pools: tuple[int, ...], count: int, next_: int | None) -> float:
        if not left:
            return 0 if not problem.depths or count in problem.depths else float("inf")
        found = float("inf")
        for size in range(1, len(left) + 1):
            for here in itertools.combinations(sorted(left), size):
                earlier = left - frozenset(here)
                if any(a in here and b in earlier for a, b in problem.edges):
                    continue
                for m, mode in enumerate(problem.modes):
                    rest = tuple(pool - take for pool, take in zip(pools, mode.takes, strict=True))
                    link = border_load(problem, left, m, next_)
                    if min(rest) < 0 or link is None:
                        continue
                    alone = max(link, cheapest(mode, earlier, here, behind))
                    if alone < found:
                        found = min(found, max(alone, best(earlier, behind + mode.flow, rest, count + 1, m)))
        return found

    def cheapest(mode: GraphMode, earlier: frozenset, here: tuple, behind: int) -> float:
        later, loads = everything - earlier - frozenset(here), []
        for variants in itertools.product(range(problem.variants), repeat=len(here)):
            if not all(mode.possible[v, g] for g, v in zip(here, variants, strict=True)):
                continue
            if stage_memory(problem, mode, earlier, here, later, variants, behind) <= mode.limit:
                loads.append(stage_load(problem, mode, earlier, here, later, variants))
        return min(loads, default=float("inf"))

    value = best(everything, 0, problem.pools, 0, None)
    return None if value == float("inf") else int(value)


def judge(problem: GraphPartition, stages) -> int:
    """The value of a solution, every requirement asserted on the way."""
    place = {g: s for s, stage in enumerate(stages) for g in stage.groups}
    assert sorted(g for stage in stages for g in stage.groups) == list(range(problem.groups))
    assert all(place[a] <= place[b] for a, b in problem.edges)
    taken = [sum(problem.modes[stage.mode].takes[p] for stage in stages) for p in range(len(problem.pools))]
    assert all(t <= pool for t, pool in zip(taken, problem.pools, strict=True))
    assert not problem.depths or len(stages) in problem.depths
    value, behind, next_ = 0, 0, None
    for s in reversed(range(len(stages))):
        mode, here, variants = problem.modes[stages[s].mode], stages[s].groups, stages[s].variants
        earlier = frozenset(g for g in place if place[g] < s)
        later = frozenset(g for g in place if place[g] > s)
        assert here
        assert all(mode.possible[v, g] for g, v in zip(here, variants, strict=True))
        assert stage_memory(problem, mode, earlier, here, later, variants, behind) <= mode.limit
        value = max(value, stage_load(problem, mode, earlier, here, later, variants))
        link = border_load(problem, earlier | frozenset(here), stages[s].mode, next_)
        assert link is not None
        value, next_ = max(value, link), stages[s].mode
        behind += mode.flow
    return value


@st.composite
def graph_partitions(draw, groups: int = 7, stages: int = 4) -> GraphPartition:
    """Small graphs with skip edges: replicas, unlike devices, variants, both routes, ties, memory that excludes all."""
    variants = draw(st.sampled_from([1, 1, 1, 2]))
    n = draw(st.integers(1, groups if variants == 1 else groups - 2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    density = draw(st.sampled_from([0.15, 0.35, 0.7]))
    edges = tuple((a, b) for a in range(n) for b in range(a + 1, n) if rng.random() < density)
    route = draw(st.sampled_from(["direct", "direct", "relay"]))
    stars = [Star(a, tuple(b for c, b in edges if c == a)) for a in range(n) if any(c == a for c, _ in edges)]
    if route == "direct" and n > 1:  # gradients: tensors that run against the order
        for _ in range(draw(st.integers(0, 2))):
            source, *readers = (int(g) for g in rng.permutation(n)[: rng.integers(2, 4)])
            stars.append(Star(source, tuple(readers)))
    top = draw(st.sampled_from([3, 40, 10**9]))
    links = draw(st.sampled_from([0, top // 3, top]))
    paid, bordered = draw(st.sampled_from([False, False, True])), route == "relay" and draw(st.booleans())
    alike, rounded = draw(st.booleans()), draw(st.sampled_from([False, False, True]))
    kind = draw(st.sampled_from(["equal", "replicas", "pairs", "unlike", "both"]))
    memory = draw(st.sampled_from(["free", "tight", "tight", "scarce"]))
    shapes = {
        "equal": [((1,), 1)],
        "replicas": [((m,), m) for m in range(1, stages + 1)],
        "pairs": [((2,), 2)],
        "unlike": [((1, 0), 1), ((0, 1), 1)],
        "both": [((1, 0), 1), ((2, 0), 2), ((0, 1), 1)],
    }[kind]
    pools = (draw(st.integers(1, stages)),) if kind in ("equal", "replicas", "pairs") else (draw(st.integers(1, 3)), 1)

    def table(high: int) -> np.ndarray:
        return rng.integers(0, high + 1, (variants, n))

    common = [table(8), table(6), table(8) if draw(st.booleans()) else table(0), rng.integers(0, 4, len(stars))]
    flying = np.cumsum(rng.integers(0, 2, stages)) + 1 if draw(st.booleans()) else np.array([2])
    modes = []
    for takes, flow in shapes:
        lines = []
        for _ in range(draw(st.integers(1, 2))):
            leave, enter = rng.integers(0, links + 1, (2, len(stars)))
            divisor, times = (int(x) for x in rng.integers(1, 4, 2)) if rounded else (1, 1)
            enter = leave if alike else enter
            pays = rng.random(n) < 0.5 if paid else np.ones(n, np.bool_)
            base = int(rng.integers(0, top + 3)) if paid else int(rng.integers(0, 3))
            lines.append(Line(table(top), leave, enter, base, divisor, times, flow, pays))
        fixed, held, peak, received = common
        total = int((fixed + 2 * held).max(axis=0).sum())
        limit = {"free": UNLIMITED, "tight": int(total * rng.uniform(0.4, 1.2)), "scarce": total // 4}[memory]
        possible = rng.random((variants, n)) < (0.9 if len(shapes) > 1 and kind != "replicas" else 1)
        modes.append(
            GraphMode(
                f"{takes}",
                takes,
                tuple(lines),
                fixed,
                held,
                peak,
                received,
                possible,
                limit=limit,
                flow=flow,
                in_flight=flying,
            )
        )  # fmt: skip
    depths = draw(st.sampled_from([(), (), (), (1,), (2,), (1, 3), (stages,)]))
    borders, pairs = (), None
    if bordered:
        numbers = [[int(x) for x in rng.integers(1, 4, 3)] for _ in range(draw(st.integers(1, 3)))]
        borders = tuple(Border(rng.integers(0, 2 * links + 1, len(stars)), *three) for three in numbers)
        pairs = rng.integers(-1 if draw(st.booleans()) else 0, len(borders), (len(modes), len(modes)))
    return GraphPartition(n, edges, tuple(stars), pools, tuple(modes), route, depths, borders, pairs)
