"""Joint problem: choose the partition and the devices' orders together, with a lower bound over both."""

from pipeplan_formulations.joint.instance import Choice, JointPipeline, Solution
from pipeplan_formulations.joint.search import Search, solve

__all__ = ["Choice", "JointPipeline", "Search", "Solution", "solve"]
