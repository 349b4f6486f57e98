"""A model in the order of a plan's stages, so that everything that cuts a row of layers can read the plan.

::

    listed   0 1 2 3 4 5      stages {0, 2} {1, 3} {4, 5}      reordered   0 2 │ 1 3 │ 4 5
"""

from collections.abc import Sequence
from dataclasses import replace

from pipeplan.core.model import Model


def reordered(model: Model, stages: Sequence[Sequence[int]]) -> tuple[Model, tuple[int, ...]]:
    """The model with its layers in the order of the stages, and the boundaries of the stages in it.

    Within a stage the listed order stays. A layer still comes after all that it reads, if the stages are differences of
    downsets.
    """
    order = [i for stage in stages for i in sorted(stage)]
    boundaries = [0]
    for stage in stages:
        boundaries.append(boundaries[-1] + len(stage))
    profiles = tuple(replace(p, costs=tuple(p.costs[i] for i in order)) for p in model.profiles)
    return replace(model, layers=tuple(model.layers[i] for i in order), profiles=profiles), tuple(boundaries)
