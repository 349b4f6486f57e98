"""`Published`: a published workload as a graph partition problem, with names for reports."""

from dataclasses import dataclass

from pipeplan_formulations.graph import GraphPartition

INTERLEAVED = "several stages per device (interleaving)"
SPLIT = "tensor, sequence and context parallelism"
REPEATED = "recomputation"
REPLICAS = "stages with replicas"
SCHEDULES = "schedules and steps: the rule is about the largest load of an endless pipeline"
"""Features that the rules do not cover."""


@dataclass(frozen=True)
class Published:
    """A published problem, and the words for reports on its solutions.

    Attributes
    ----------
    name : str
    problem : GraphPartition
    names : tuple of str
        Name of each group, as in an imported model.
    members : tuple of tuple of str
        The file's ids of the operators in each group.
    unit : float
        Seconds of one unit of load.
    rule : str
        Definition of the load in words, and its publication.
    searched : str
        The stages over which the bound holds.
    not_searched : tuple of str
        Plans outside the searched space.
    costs : str
        Source of times and bytes.
    replicas, devices : tuple of int
        For each mode: replicas of a stage, and devices of each of them.
    variants : tuple of str
        The file's name of each variant.
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
