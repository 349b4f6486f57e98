"""Contiguous layers of a chain to the stages of a pipeline."""

from pipeplan_formulations.partition.problem import ChainPartition, PathCut

__all__ = ["ChainPartition", "PathCut"]
