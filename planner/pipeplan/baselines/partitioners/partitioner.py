"""`Partitioner`: the interface of heuristics that cut a chain into stages, and helpers that most of them use."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NoReturn

import numpy as np

from pipeplan.core.errors import PipeplanError
from pipeplan.costs.chain import Array, Boundaries, Chain

MOST_LAYERS = 4_000
"""Largest number of layers for which n × n matrices are made: 128 MB each."""


class NotApplicable(PipeplanError):  # noqa: N818 (it is an answer, not a mistake)
    """A partitioner has no partition for this chain; the text gives the reason, with the numbers."""


def refuse(*_: object, why: str) -> NoReturn:
    """Have no plan, for this reason."""
    raise NotApplicable(why)


@dataclass(frozen=True, slots=True)
class Partitioner:
    """A heuristic that cuts a chain into stages without a solver.

    Attributes
    ----------
    name : str
    summary : str
        One line for tables.
    source : str
        The project or paper whose behaviour it reproduces, and how closely.
    balance : callable
        ``balance(chain, micro_batches)`` returns the boundaries ``(0, …, n)``, one stage for each device of the chain;
        a stage may be empty where the original leaves one empty. Raises `NotApplicable`.
    effort : callable
        ``effort(layers, stages)`` returns the approximate number of values that it evaluates.
    """

    name: str
    summary: str
    source: str
    balance: Callable[[Chain, int], Boundaries]
    effort: Callable[[int, int], int] = lambda layers, stages: 30 * layers * stages


def by_matrices(layers: int, stages: int) -> int:
    """Return the effort of a dynamic programme with one step on n × n matrices per stage."""
    return 4 * stages * layers**2


def require_few_layers(layers: int) -> None:
    """Refuse a chain whose n × n matrices would take too much memory."""
    if layers > MOST_LAYERS:
        raise NotApplicable(
            f"its programme has a table of {layers} x {layers} spans, and is not begun beyond {MOST_LAYERS:,} layers"
        )


def from_counts(counts: Iterable[int]) -> Boundaries:
    """Return the boundaries of stages with these numbers of layers."""
    return (0, *accumulate(counts))


def first_device_times(chain: Chain) -> Array:
    """Return forward plus backward time of each layer on the first device, as tools for one kind of device use it."""
    return np.asarray(chain.forward[0] + chain.backward[0], np.int64)


def prefix_sums(values: Array) -> Array:
    """Return prefix sums along the last axis: entry b less entry a is the sum over a … b − 1."""
    sums: Array = np.zeros((*values.shape[:-1], values.shape[-1] + 1), np.int64)
    np.cumsum(values, axis=-1, out=sums[..., 1:])
    return sums


def stage_loads(chain: Chain, boundaries: Boundaries) -> list[int]:
    """Return forward plus backward time of one micro-batch on every stage, in nanoseconds; 0 for an empty stage."""
    times = chain.forward + chain.backward
    return [int(times[s, a:b].sum()) for s, (a, b) in enumerate(pairwise(boundaries))]


def require_filled(chain: Chain, name: str) -> None:
    """Refuse a chain that has fewer layers than devices, where the original does."""
    if chain.layers < chain.stages:
        raise NotApplicable(f"{name} needs a layer for every stage: {chain.layers} layers, {chain.stages} stages")
