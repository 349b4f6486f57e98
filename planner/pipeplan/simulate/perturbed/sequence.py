"""An order of all actions in which everything comes after what it waits for, whatever the times are."""

from itertools import pairwise

from pipeplan.simulate.program import Program
from pipeplan.simulate.structure import NOTHING

Groups = list[tuple[int, ...]]


def follows(program: Program) -> Groups:
    """Groups of actions that begin together: single ones, and the collectives.

    What stands ahead in a lane, what an action waits for, and the sender of what it waits for come earlier. A wire that
    one lane alone sends through serves in that lane's order, which adds nothing. Shorter than the schedule if that
    cannot finish.
    """
    n = len(program.actions)
    members: Groups = [(i,) for i in range(n)]
    for together in program.collectives:
        for i in together:
            members[i] = tuple(together)
    after: list[list[int]] = [[] for _ in range(n)]
    missing = [0] * n  # of each group, kept at its first member
    for i in range(n):
        for signal in program.needs[i]:
            after[signal % n].append(members[i][0])
            missing[members[i][0]] += 1
    for order in program.lanes:
        for before, i in pairwise(order):
            after[before].append(members[i][0])
            missing[members[i][0]] += 1
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


def alone_on_wires(program: Program) -> bool:
    """Whether no two channels that carry something share a wire, so that nothing depends on who is ready first."""
    return all(program.channels[channel].alone for channel in set(program.channel_of) - {NOTHING})
