"""Algorithms on an importer's directed graph: deterministic topological order, reachability, strong components."""

import heapq
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar

from pipeplan.core.errors import InputError

Node = TypeVar("Node", bound=Hashable)


def topological(nodes: Iterable[Node], edges: Iterable[tuple[Node, Node]], rank: Callable[[Node], Any]) -> list[Node]:
    """Return a topological order; among the nodes that may come next, the one of least ``rank`` comes first.

    Raises
    ------
    InputError
        If the edges contain a cycle.
    """
    missing = dict.fromkeys(nodes, 0)
    after: dict[Node, list[Node]] = {node: [] for node in missing}
    for a, b in set(edges):
        missing[b] += 1
        after[a].append(b)
    number = {node: i for i, node in enumerate(sorted(missing, key=rank))}
    by_number = {i: node for node, i in number.items()}
    ready = [number[node] for node, count in missing.items() if count == 0]
    heapq.heapify(ready)
    order: list[Node] = []
    while ready:
        node = by_number[heapq.heappop(ready)]
        order.append(node)
        for other in after[node]:
            missing[other] -= 1
            if missing[other] == 0:
                heapq.heappush(ready, number[other])
    if len(order) < len(missing):
        stuck = [str(node) for node, count in missing.items() if count > 0]
        raise InputError(f"the edges go round in a circle among {', '.join(stuck[:8])}{' …' * (len(stuck) > 8)}")
    return order


def reachable(start: Node, after: Mapping[Node, list[Node]]) -> set[Node]:
    """Return ``start`` and all nodes reachable from it."""
    found, todo = {start}, [start]
    while todo:
        for other in after.get(todo.pop(), ()):
            if other not in found:
                found.add(other)
                todo.append(other)
    return found


def components(nodes: Iterable[Node], edges: Iterable[tuple[Node, Node]]) -> dict[Node, Node]:
    """Map each node to its strongly connected component, named after one of its nodes (Kosaraju's algorithm)."""
    after: dict[Node, list[Node]] = {node: [] for node in nodes}
    before: dict[Node, list[Node]] = {node: [] for node in after}
    for a, b in edges:
        after[a].append(b)
        before[b].append(a)
    # First pass: depth-first search along the edges; nodes in order of completion.
    finished: list[Node] = []
    seen: set[Node] = set()
    for root in after:
        if root in seen:
            continue
        seen.add(root)
        stack = [(root, iter(after[root]))]
        while stack:
            node, rest = stack[-1]
            following = next((other for other in rest if other not in seen), None)
            if following is None:
                finished.append(node)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(after[following])))
    # Second pass: against the edges, in reverse order of completion; each search finds one component.
    component: dict[Node, Node] = {}
    for root in reversed(finished):
        todo = [] if root in component else [root]
        while todo:
            node = todo.pop()
            if node not in component:
                component[node] = root
                todo += [other for other in before[node] if other not in component]
    return component
