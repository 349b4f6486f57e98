"""Heuristics without a search: their best plans before one begins."""

from collections.abc import Mapping
from math import inf
from typing import Any

from pipeplan.search.heuristics import Heuristics
from pipeplan.search.space.spaces import Spaces
from pipeplan.search.turns import Baseline


def baselines(spaces: Spaces, seconds: float, *, at_most: float = inf, **how: Any) -> Mapping[str, Baseline]:
    """Each heuristic's best plan by name, as far as `Heuristics.begin` gets in the time; see there."""
    heuristics = Heuristics(spaces, **how)
    heuristics.begin(seconds, at_most)
    return heuristics.rows()
