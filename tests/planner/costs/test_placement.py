"""A placement of stages on ranks: several stages may share devices, with replicas."""

from helpers.instances import model_of
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node
from pipeplan.core.job import Job
from pipeplan.costs.assembly import assemble
from pipeplan.costs.pricing import price

NODE = Node(("small", "small", "large", "large"), Link(10**9))
KINDS = {"small": DeviceKind("small", memory=10**9), "large": DeviceKind("large", memory=2 * 10**9)}
CLUSTER = Cluster("a node", KINDS, (NODE,), None)


def test_stages_share_the_devices_of_their_placement() -> None:
    """Three stages of two replicas on four devices: first and last lie on the same ranks, with one limit each."""
    devices = CLUSTER.devices
    groups = [devices[:2], devices[2:], devices[:2]]
    chain = price(model_of([50] * 3), CLUSTER, groups, 1, Job(8))
    pipeline = assemble(chain, CLUSTER, (0, 1, 2, 3), placement=((0, 1), (2, 3), (0, 1)))
    assert pipeline.stages_on == ((0, 2), (0, 2), (1,), (1,))
    assert pipeline.limits == (10**9, 10**9, 2 * 10**9, 2 * 10**9)
    apart = assemble(chain, CLUSTER, (0, 1, 2, 3))
    assert apart.placement == ((0, 1), (2, 3), (4, 5))
    assert apart.transfers == pipeline.transfers
