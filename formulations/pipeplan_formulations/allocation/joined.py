r"""One kind in place of several: at least as good as each of them, so that bounds of the joined problem hold for all.

It has the least of their times and bytes. No inequality's right side falls when one of these rises, so an allocation of
the problem is one of the joined problem, and no worse there. Two tables need a word:

- ``hides`` is at most the backward, whose least may be below the largest ``hides``. Cut off there, what is exposed of
  gradient sums may rise, by no more than the backward falls; and wherever E_s counts, so does B_s.
  Where the last stage's E stands for E_0, it counts with B of other stages: so there is no ``joint`` then.
- ``gather_hides`` is at most the forward in the same way, but a one-stage delay has a term without F_0. So a joined
  kind gathers nothing. Nor does it sum gradients if the way ahead has times of its own: these may fall less than
  ``hides``.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pipeplan_formulations.allocation.instance import ChainAllocation

LEAST = (
    "forward",
    "backward",
    "update",
    "reduce",
    "reduce_base",
    "resident",
    "saved",
    "output",
    "workspace",
    "received",
)
MOST = ("hides", "limit", "able")
NOT_JOINED = ("gather", "gather_base", "gather_hides", "joint")
"""Of kinds that are joined these are 0."""
LATE = ("late_forward", "late_backward")
SUMS = ("reduce", "reduce_base", "hides")
HOPS = ("send", "send_back", "latency")


def joined(problem: ChainAllocation, groups: Sequence[Sequence[int]]) -> ChainAllocation:
    """Return the problem with one kind for each group of kinds, which take equally many units of one pool.

    ``problem`` has no forced modes.
    """
    firsts = [group[0] for group in groups]
    alone = np.array([len(group) == 1 for group in groups])
    tables: dict[str, Any] = {
        name: np.stack([getattr(problem, name)[list(own)].min(axis=0) for own in groups]) for name in LEAST
    }
    tables |= {name: np.stack([getattr(problem, name)[list(own)].max(axis=0) for own in groups]) for name in MOST}
    tables["rebuilt"] = np.stack([problem.again[list(own)].min(axis=0) for own in groups])
    tables["hides"] = np.minimum(tables["hides"], tables["backward"])
    for role in ("ahead", "service"):
        if role in problem.apart:
            rows = [np.stack([table[list(own)].min(axis=0) for own in groups]) for table in problem.of_layers(role)]
            tables |= {f"{role}_forward": rows[0], f"{role}_backward": rows[1]}
    for name in LATE if problem.late_behind is not None else ():
        tables[name] = np.stack([getattr(problem, name)[list(own)].min(axis=0) for own in groups])
    for name in (*NOT_JOINED, *_sums(problem)):
        rows = getattr(problem, name)[firsts]
        tables[name] = np.where(alone.reshape(-1, *(1,) * (rows.ndim - 1)), rows, 0)
    tables["joint"] *= alone.all()
    for name in HOPS:
        behind = np.stack([getattr(problem, name)[:, list(own)].min(axis=1) for own in groups], axis=1)
        tables[name] = np.stack([behind[list(own)].min(axis=0) for own in groups])
    tables |= {name: getattr(problem, name)[firsts] for name in ("pool", "takes")}
    return replace(problem, **tables)


def together(problems: Sequence[ChainAllocation]) -> ChainAllocation:
    """Return one problem in place of several of the same widths and rules: at least as good as each of them.

    They have no forced modes. Where they have unlike units or nodes, it has the most units, and hops as if each of them
    were the better of one inside a node and one that leaves it.
    """
    every = {name: [getattr(problem, name) for problem in problems] for name in (*LEAST, *HOPS, *MOST)}
    if len({(*problem.units, *problem.node) for problem in problems}) > 1:
        every |= {
            name: [np.broadcast_to(hop.min(axis=2, keepdims=True), hop.shape) for hop in every[name]] for name in HOPS
        }
    tables: dict[str, Any] = {name: np.minimum.reduce(every[name]) for name in (*LEAST, *HOPS)}
    tables |= {name: np.maximum.reduce(every[name]) for name in MOST}
    tables["rebuilt"] = np.minimum.reduce([problem.again for problem in problems])
    tables["units"] = np.maximum.reduce([problem.units for problem in problems])
    tables["hides"] = np.minimum(tables["hides"], tables["backward"])
    for role in ("ahead", "service"):
        if any(role in problem.apart for problem in problems):
            pairs = zip(*(problem.of_layers(role) for problem in problems), strict=True)
            forward, backward = (np.minimum.reduce(rows) for rows in pairs)
            tables |= {f"{role}_forward": forward, f"{role}_backward": backward}
    for name in LATE if all(problem.late_behind is not None for problem in problems) else ():
        tables[name] = np.minimum.reduce([getattr(problem, name) for problem in problems])
    if any("trip" in problem.apart for problem in problems):
        tables["round_trip"] = "ahead"
    nothing = set(NOT_JOINED).union(*map(_sums, problems))
    tables |= {name: np.zeros_like(getattr(problems[0], name)) for name in nothing}
    return replace(problems[0], **tables)


def _sums(problem: ChainAllocation) -> tuple[str, ...]:
    """Tables of gradient sums that a joined kind of the problem lacks."""
    return SUMS if "ahead" in problem.apart else ()
