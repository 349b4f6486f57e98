"""Tensors that are ready at the same time on one device go in the order of its list, on two lanes too."""

from helpers.instances import model_of
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.solve import solve


def test_a_forward_and_a_backward_that_begin_at_once_send_in_the_order_of_the_list() -> None:
    """The middle device's F1 and B0 begin at 101 ns; F1 is earlier in its list, so its tensor does not wait for B0's.

    ::

        d1   F0 F1                    B0        B1         one card out and in for d1 and d2, 50 ns a tensor
        d0      F0       F1,B0   B1                        of the first layer, none of the second one
        d2         F0 B0     F1 B1

    Otherwise F1's tensor would leave at 151 ns, and the step would take 270 ns.
    """
    model = model_of([15, 2, 9], [27, 7, 3], saved=[5, 0, 0], output=[5, 0, 0])
    kinds = {"unit": DeviceKind("unit")}
    nodes = (Node(("unit",)), Node(("unit", "unit")))
    cluster = Cluster("cards", kinds, nodes, Link(10**8, 1), Overlap.STREAM)
    options = {"depths": 3, "replicas": 1, "schedules": ("fbp-as",), "pin": ("l0=d1", "l1=d0", "l2=d2")}
    found = solve(model, cluster, 2, micro_batches=2, time_limit=10, **options)
    assert [stage.devices for stage in found.plan.stages] == [(1,), (0,), (2,)]
    assert found.value == found.bound == 244
