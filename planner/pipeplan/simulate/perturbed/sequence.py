"""Topological order of a program's actions, valid for any times."""

from itertools import pairwise

from pipeplan.simulate.program import Program
from pipeplan.simulate.structure import NOTHING

Groups = list[tuple[int, ...]]


def topological_groups(program: Program) -> Groups:
    """Return groups of actions that begin together (single actions and collectives) in topological order.

    An action comes after the previous action in its lane, after the actions that it waits for, and after the senders of
    the tensors that it waits for. A link resource of a single lane serves in that lane's order, which adds no
    constraint. The result is shorter than the schedule if the schedule deadlocks.
    """
    # members[i]: the group of action i, represented by its first member
    n = len(program.actions)
    members: Groups = [(i,) for i in range(n)]
    for together in program.collectives:
        for i in together:
            members[i] = tuple(together)
    # Arcs from each action to the groups that follow it, by signals and by lanes.
    after: list[list[int]] = [[] for _ in range(n)]
    missing = [0] * n  # predecessors still missing, per group, stored at its first member
    for i in range(n):
        for signal in program.needs[i]:
            after[signal % n].append(members[i][0])
            missing[members[i][0]] += 1
    for order in program.lanes:
        for before, i in pairwise(order):
            after[before].append(members[i][0])
            missing[members[i][0]] += 1
    # Kahn's algorithm over the groups.
    ready = [i for i in range(n) if members[i][0] == i and not missing[i]]
    found: Groups = []
    while ready:
        group = members[ready.pop()]
        found.append(group)
        for i in group:
            for other in after[i]:
                missing[other] -= 1
                if not missing[other]:
                    ready.append(other)
    return found


def has_own_resources(program: Program) -> bool:
    """Return whether no two used channels share a resource, so that no order depends on readiness."""
    return all(program.channels[channel].alone for channel in set(program.channel_of) - {NOTHING})
