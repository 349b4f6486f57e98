"""`searched_for`: the space that `solve` searches, described without a search."""

from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.searched import Searched
from pipeplan.fpga import with_divided_layers
from pipeplan.search.scope import searched
from pipeplan.search.space.spaces import Spaces


def searched_for(model: Model, cluster: Cluster, job: Job) -> Searched:
    """Describe the space that `pipeplan.solve` searches for this model, cluster and job."""
    whole = searched(Spaces(model, cluster, job))
    return with_divided_layers(whole) if job.intra_layer else whole
