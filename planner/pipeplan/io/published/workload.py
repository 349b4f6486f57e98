"""A published workload as a graph partition problem, with the names of what is partitioned."""

from dataclasses import dataclass

from pipeplan_formulations.graph import GraphPartition

INTERLEAVED = "several stages per device (interleaving)"
SPLIT = "tensor, sequence and context parallelism"
REPEATED = "recomputation"
REPLICAS = "stages with replicas"
SCHEDULES = "schedules and steps: the rule is about the largest load of an endless pipeline"
"""What rules leave out."""


@dataclass(frozen=True)
class Published:
    """The problem, and how to speak of its solutions.

    Attributes
    ----------
    name : str
    problem : GraphPartition
    names : tuple of str
        What an imported model calls each group.
    members : tuple of tuple of str
        The file's ids of all that each group holds.
    unit : float
        Seconds of one unit of load.
    rule : str
        What a load is, in words, and where the rule was published.
    searched : str
        The stages over which the bound holds.
    not_searched : tuple of str
        What lies outside.
    costs : str
        Where times and bytes come from.
    replicas, devices : tuple of int
        For each mode: replicas of a stage, and devices of each of them.
    variants : tuple of str
        What the file calls each variant.
    """

    name: str
    problem: GraphPartition
    names: tuple[str, ...]
    members: tuple[tuple[str, ...], ...]
    unit: float
    rule: str
    searched: str
    not_searched: tuple[str, ...]
    costs: str
    replicas: tuple[int, ...]
    devices: tuple[int, ...]
    variants: tuple[str, ...] = ("",)
