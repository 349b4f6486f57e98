"""A placement of stages on ranks: several stages may share devices, with replicas."""

from dataclasses import replace

from helpers.instances import model_of
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node
from pipeplan.core.job import Job
from pipeplan.core.pipeline import Transfer
from pipeplan.costs.assembly import assemble
from pipeplan.costs.pricing import price
from pipeplan.search.space.outside import unasked
from pipeplan.search.space.space import Space

NODE = Node(("small", "small", "large", "large"), Link(10**9))
KINDS = {"small": DeviceKind("small", memory=10**9), "large": DeviceKind("large", memory=2 * 10**9)}
MODEL = model_of([50] * 3, kinds=("small", "large"))
CLUSTER = Cluster("a node", KINDS, (NODE,), None)


def test_stages_share_the_devices_of_their_placement() -> None:
    """Three stages of two replicas on four devices: first and last lie on the same ranks, with one limit each."""
    devices = CLUSTER.devices
    groups = [devices[:2], devices[2:], devices[:2]]
    chain = price(MODEL, CLUSTER, groups, 1, Job(8))
    pipeline = assemble(chain, CLUSTER, (0, 1, 2, 3), placement=((0, 1), (2, 3), (0, 1)))
    assert pipeline.stages_on == ((0, 2), (0, 2), (1,), (1,))
    assert pipeline.limits == (10**9, 10**9, 2 * 10**9, 2 * 10**9)
    apart = assemble(chain, CLUSTER, (0, 1, 2, 3))
    assert apart.placement == ((0, 1), (2, 3), (4, 5))
    assert apart.transfers == pipeline.transfers


def test_a_tensor_that_stays_on_its_device_is_not_sent() -> None:
    """Of two stages on the same two devices, replica by replica; over to the other replica it takes the link."""
    devices, boundaries = CLUSTER.devices, (0, 1, 3)
    for groups, placement, sent in (
        ([devices[:2], devices[:2]], ((0, 1), (0, 1)), {Transfer()}),
        (
            [devices[:2], devices[1::-1]],
            ((0, 1), (1, 0)),
            {Transfer(resources=(way,)) for way in ("d0 to d1", "d1 to d0")},
        ),
    ):
        pipeline = assemble(price(MODEL, CLUSTER, groups, 1, Job(8)), CLUSTER, boundaries, placement=placement)
        assert {*pipeline.transfers[0]} == {*pipeline.returns[0]} == sent


def test_no_space_has_stages_that_share_devices() -> None:
    """A space says of a candidate whose stages share devices that it lies outside, and has the same one apart."""
    space = Space(MODEL, CLUSTER, Job(8, micro_batches=(8,), replicas=(2,)))
    groups = (CLUSTER.devices[:2], CLUSTER.devices[2:])
    candidate = space.candidates_of(price(space.model, CLUSTER, groups, 1, space.job))[0]
    assert unasked(space, candidate, (0, 1, 3)) is None
    assert candidate.ranks == (0, 1, 2, 3)
    below = replace(candidate, placement=((0, 1), (0, 1)))
    assert "a device has 2 stages" in (unasked(space, below, (0, 1, 3)) or "")
