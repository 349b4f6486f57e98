"""Random sharding problems, and all their choices, evaluated without the formulation."""

from itertools import product

import numpy as np
from hypothesis import strategies as st

from helpers.scripts import script
from pipeplan_formulations.sharding import Cap, Edge, Sharding

Block = script("benchmarks/sharding_frontier.py").Block
UNLIMITED = 2**62


def every_choice(problem: Sharding) -> tuple[np.ndarray, np.ndarray]:
    """All possible choices, of shape (choices, operators), and their costs, of shape (choices, D)."""
    choices = np.array(list(product(*(range(len(costs)) for costs in problem.costs))))
    parts = [costs[choices[:, v]] for v, costs in enumerate(problem.costs)]
    parts += [costs[choices[:, u], choices[:, v]] for u, v, costs in problem.edges]
    stacked = np.stack(parts)
    valid = (stacked < UNLIMITED).all(axis=(0, 2))
    stacked = stacked[:, valid]
    last = stacked.shape[2] - problem.maxima
    return choices[valid], np.concatenate([stacked[..., :last].sum(axis=0), stacked[..., last:].max(axis=0)], axis=1)


def pareto(points: np.ndarray) -> list[list[int]]:
    """The distinct points that no other one dominates, sorted."""
    points = np.unique(points, axis=0)
    beaten = [((points <= p).all(axis=1) & (points < p).any(axis=1)).any() for p in points]
    return points[~np.array(beaten, bool)].tolist()


def _series_parallel(rng: np.random.Generator, operators: int) -> list[tuple[int, int]]:
    """Edges of a graph that grows from one edge by dividing edges, doubling them and hanging on leaves."""
    edges = [(0, 1)] if operators > 1 else []
    for new in range(2, operators):
        u, v = edges[rng.integers(len(edges))]
        if rng.random() < 0.7:
            edges += [(u, new), (new, v)]
            if rng.random() < 0.5:
                edges.remove((u, v))
        else:
            edges.append((u, new))
        if rng.random() < 0.3:
            edges.append(edges[rng.integers(len(edges))])
    return edges


def _general(rng: np.random.Generator, operators: int) -> list[tuple[int, int]]:
    """Edges between random operators, in either direction; some operators have none, some pairs several."""
    if operators < 2:
        return []
    return [tuple(rng.choice(operators, 2, replace=False).tolist()) for _ in range(rng.integers(0, 2 * operators))]


def _costs(rng: np.random.Generator, shape: tuple[int, ...], most: int, impossible: float) -> np.ndarray:
    costs = rng.integers(0, most + 1, shape)
    costs[rng.random(shape[:-1]) < impossible] = UNLIMITED
    return costs


@st.composite
def shardings(draw, operators: int = 5, signatures: int = 3, coordinates: int = 4, width: int = 0) -> Sharding:
    """Small instances: ties, costs of zero, impossible pairs, sums and maxima; ``width`` fixes the coordinates."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    graph = draw(st.sampled_from([_series_parallel, _general]))
    count = draw(st.integers(1, operators))
    many = [int(rng.integers(1, signatures + 1)) for _ in range(count)]
    width = width or draw(st.integers(1, coordinates))
    most, impossible = draw(st.sampled_from([1, 3, 1000])), draw(st.sampled_from([0, 0, 0.1, 0.4]))
    return Sharding(
        tuple(_costs(rng, (k, width), most, impossible) for k in many),
        tuple(Edge(u, v, _costs(rng, (many[u], many[v], width), most, impossible)) for u, v in graph(rng, count)),
        draw(st.sampled_from([0, 0, 1, width])),
    )


@st.composite
def blocks(draw) -> Block:
    """Series-parallel graphs of two to four operators with ends of equally many signatures, two coordinates."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, ends = draw(st.integers(2, 4)), draw(st.integers(1, 2))
    entry, last = rng.choice(count, 2, replace=False).tolist()
    many = [ends if v in (entry, last) else int(rng.integers(1, 3)) for v in range(count)]
    most, impossible = draw(st.sampled_from([1, 9])), draw(st.sampled_from([0, 0.1]))
    graph = _series_parallel(rng, count)
    costs = tuple(_costs(rng, (k, 2), most, impossible) for k in many)
    edges = tuple(Edge(u, v, _costs(rng, (many[u], many[v], 2), most, impossible)) for u, v in graph)
    return Block(Sharding(costs, edges, draw(st.sampled_from([0, 1]))), entry, last)


@st.composite
def questions(draw, problem: Sharding) -> tuple[tuple[int, ...], tuple[Cap, ...]]:
    """Weights of the sums, some of them 0, and up to two caps on all coordinates that may bind or exclude all."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    caps = []
    for _ in range(draw(st.integers(0, 2))):
        weights = tuple(rng.integers(0, 3, problem.coordinates).tolist())
        most = sum(w * c for w, c in zip(weights, problem.largest, strict=True))
        caps.append(Cap(weights, int(most * rng.random())))
    return tuple(rng.integers(0, 4, problem.sums).tolist()), tuple(caps)
