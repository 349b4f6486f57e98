"""The furthest-end programme: a lower bound and a first allocation of large instances."""

from pipeplan_formulations.allocation.furthest_end.programme import FurthestEnd

__all__ = ["FurthestEnd"]
