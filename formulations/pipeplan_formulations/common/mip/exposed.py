"""Rows for the exposed time E of a stage's collectives, if a model chooses its layers: see `common.exposed`."""

from collections.abc import Sequence

from pipeplan_formulations.common.mip.model import Expression, LinearModel


def exposed_collectives(
    model: LinearModel, inside: Sequence[Expression], times: Sequence[int], hides: Sequence[int], base: int, unit: int
) -> Expression:
    """Add a time that is at least E of a stage, and E when minimised, in units of ``unit`` rounded down.

    Let v_l be E of the stage's layers from l on, and x_l = 1 if layer l lies on the stage, else 0. Then v_l is the
    largest of 0, (base + p_l) x_l if p_l > 0, and v_{l+1} + (p_l − h_l) x_l: two short rows per layer. Behind the stage
    v_l is 0; before it v_l = v_{l+1}. So E is v_0.

    Parameters
    ----------
    inside : sequence of Expression
        x of each layer.
    times, hides : sequence of int
        p and h of each layer.
    """
    later = Expression({})
    for x, p, h in zip(reversed(inside), reversed(times), reversed(hides), strict=True):
        parts = [(base + p) // unit * x] if p else []
        if later.terms and (p or h):
            parts.append(later + (p - h) // unit * x)
        if parts and (x.terms or x.constant):
            later = model.largest(parts, time=True)
    return later
