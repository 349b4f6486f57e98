"""Other projects' workloads under the cost rules of their own publications, one file each.

pipeplan's rules differ in what they count (the stage charged for a transfer, how often replicas sum their gradients).
A value is comparable with a published one only under the rule of that publication.
"""

from pipeplan.io.published.dnn_partitioning import dnn_partitioning
from pipeplan.io.published.pipedream import pipedream
from pipeplan.io.published.piper import piper
from pipeplan.io.published.workload import Published

__all__ = ["Published", "dnn_partitioning", "pipedream", "piper"]
