"""Other projects' workloads under their authors' own rules of what a stage costs, one file each.

pipeplan's rules differ in what they count (who pays for a transfer, how often replicas sum their gradients), so that a
value is comparable with a published one only under the rule that it was published for.
"""

from pipeplan.io.published.dnn_partitioning import dnn_partitioning
from pipeplan.io.published.pipedream import pipedream
from pipeplan.io.published.piper import piper
from pipeplan.io.published.workload import Published

__all__ = ["Published", "dnn_partitioning", "pipedream", "piper"]
