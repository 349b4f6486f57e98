"""Regimes: the numbers by which the search takes one way to answer a question or another, in one table.

::

    question ──▶ how many choices? ──▶ at most the threshold    each one by itself: listed, a node or a solve for each
                                   └─▶ more                     bounded together, sought later, or left out

docs/regimes.md says which node answers which question, and names a benchmark's rows on either side of each number.
Seconds and shares of the time limit are not here: they say how long a way is tried, not which one is taken. Solvers
keep the thresholds that only they know (`pipeplan_formulations`); the page lists these too.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Threshold:
    """The most of something for which the first way is taken.

    Attributes
    ----------
    most : int
    reason : str
        What speaks against the first way beyond it.
    """

    most: int
    reason: str


@dataclass(frozen=True)
class Regimes:
    """Every threshold of the search. A module that takes one has it as a constant, which tests may lower."""

    # Which root nodes: `search.root_nodes`.
    listed_pairs: Threshold = Threshold(100_000, "all pairs of a shape and a partition are bounded at once")
    listed_groups: Threshold = Threshold(300, "all device groups are nodes, each with a programme of its own")
    listed_arrangements: Threshold = Threshold(5_000, "every arrangement of like devices is a device-groups node")
    graph_modes: Threshold = Threshold(32, "each class with each number of replicas is a mode of the problem")
    any_order_groups: Threshold = Threshold(2_000, "device groups under any order are a joint search each")
    first_plans_devices: Threshold = Threshold(16_384, "a simulation takes seconds, so first plans delay the targets")
    # Aggregate nodes: `nodes.layouts`.
    tree_units: Threshold = Threshold(16, "a tree over all device groups solves an allocation problem per node")
    tree_cells: Threshold = Threshold(2**16, "layers x units x widths of each problem of such a tree")
    layout_units: Threshold = Threshold(64, "usages of an unequal layout: larger units, fewer replica numbers")
    layout_cells: Threshold = Threshold(2**19, "layers x units x widths of an unequal layout's programme")
    beam_devices: Threshold = Threshold(64, "without teams: a beam takes what the proof needs, which is shared instead")
    # Teams of unlike sizes: `space.mixed`.
    mixed_fillings: Threshold = Threshold(512, "every way to fill the nodes is tried for a row that may be the best")
    # Below device groups: `nodes.family`, `space.in_flight`, `search.evaluate`.
    listed_counts: Threshold = Threshold(8, "in-flight counts of a box are nodes of their own")
    path_cells: Threshold = Threshold(4_000, "stages x layers: a solver with path cuts takes minutes to begin")
    simulated_actions: Threshold = Threshold(20_000_000, "more actions than that need too much memory")
    # Heuristics before or behind the search: `Space.large`.
    early_groups: Threshold = Threshold(4_000, "the search finds better plans sooner than heuristics do")
    early_samples: Threshold = Threshold(2**15, "devices x samples: heuristics' plans take long to simulate")
    early_layers: Threshold = Threshold(1_000, "devices x layers: heuristics' plans take long to make")
    shown_samples: Threshold = Threshold(2**20, "devices x samples: heuristics' plans take seconds each to simulate")
    # Why nothing fits: `search.infeasible`.
    least_memory_groups: Threshold = Threshold(300, "all device groups are tried for the least memory that fits")


REGIMES = Regimes()
