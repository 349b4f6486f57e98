"""Questions with once falsely proved answers: each with the right answer, and the reason for it."""

from dataclasses import replace

import pytest

from helpers.instances import equal_devices, model_of
from pipeplan import Cluster, InfeasibleError, InputError, Job, solve
from pipeplan.core.cluster import DeviceKind, Link, Node, Overlap
from pipeplan.core.model import Layer, LayerCost, Model, Profile, Provenance, Tie
from pipeplan.search.result import Result

FREE = Link(10**9, 0)


def answer(model: Model, cluster: Cluster, job: Job) -> Result:
    """Value and bound of the answer."""
    result = solve(model, cluster, job=job)
    assert result.bound == result.value
    return result


def two_layers(saved: int = 40, **more: object) -> Model:
    """Two layers of 10 ns forward and 20 ns backward, with 8 bytes of parameters each."""
    settings = {"saved": [saved] * 2, "output": [4] * 2, "parameters": [8] * 2, **more}
    return model_of([10, 10], **settings)


def boxes(counts: int, devices: int, inside: Link, network: Link, **kind: object) -> Cluster:
    """Boxes of equal devices, ``counts`` devices in each."""
    unit = DeviceKind("unit", **kind)
    node = Node(("unit",) * devices, inside)
    return Cluster("boxes", {"unit": unit}, (node,) * counts, network, Overlap.COPY)


def heavy_ends() -> Model:
    """A first layer that takes nearly all the time, and as many parameters at both ends."""
    forward, parameters = [1000, 1, 1, 1, 1], [10_000, 0, 0, 0, 10_000]
    return model_of(forward, parameters=parameters, saved=[4] * 5, output=[4] * 5)


def test_a_stage_may_straddle_boxes_whose_network_is_faster_than_their_links() -> None:
    """Gradients of two replicas, one in each box, travel over the network only, wherever the other stages lie."""
    cluster = boxes(2, 3, FREE, Link(10**12, 0), memory=20_500)
    found = answer(heavy_ends(), cluster, Job(3, recompute="none", depths=(3,)))
    assert found.value == 6010
    alone = answer(heavy_ends(), cluster, Job(3, recompute="none", depths=(2,)))
    assert alone.value == 6010  # with one device left over in a box


@pytest.mark.slow
def test_large_clusters_bound_what_straddles_boxes() -> None:
    """The same question without a depth has too many device groups to list, and the same answer."""
    cluster = boxes(2, 5, FREE, Link(10**12, 0), memory=20_500)
    assert answer(heavy_ends(), cluster, Job(5, recompute="none")).value == 9010


@pytest.mark.parametrize(("memory", "schedules"), [(130, ("gpipe", "1f1b")), (200, ("gpipe", "1f1b"))])
def test_one_stage_runs_every_requested_family(memory: int, schedules: tuple[str, ...]) -> None:
    """1F1B holds one micro-batch where GPipe holds four; so it fits, and without recomputation: 4 x (20 + 40) ns."""
    found = answer(two_layers(), equal_devices(1, memory), Job(4, schedules=schedules))
    assert found.value == 240
    assert found.plan.schedule.family == "1f1b"


def test_one_stage_on_one_lane_beats_two_lanes() -> None:
    """On two lanes a forward takes as long as forward and backward together, so GPipe's 240 ns are the best of both."""
    cluster = equal_devices(1, overlap="stream")
    found = answer(two_layers(), cluster, Job(4, schedules=("gpipe", "fbp-as"), recompute="none"))
    assert (found.value, found.plan.schedule.family) == (240, "gpipe")


def test_a_heuristic_with_fewer_stages_than_requested_is_no_answer() -> None:
    """One stage would take 60 ns, but two are asked for; the first boundary's 40 bytes take 40 ns each way."""
    model = model_of([10, 10], saved=[40, 40], output=[40, 4], parameters=[8, 8])
    found = answer(model, equal_devices(2, link=FREE), Job(1, depths=(2,), recompute="none"))
    assert (found.value, len(found.plan.stages)) == (140, 2)
    outside = [row for row in found.baselines.values() if row.value is not None and row.outside]
    assert outside, "heuristics that leave a device out stay in the comparison"
    assert all("asked for" in row.outside for row in outside)


def test_layers_that_stay_together_cannot_fill_two_stages() -> None:
    """Two layers, together, in two stages: there is no such plan, and a plan of one stage is no answer."""
    with pytest.raises((InfeasibleError, InputError)):
        solve(two_layers(), equal_devices(2), job=Job(1, depths=(2,), together=(("l0", "l1"),), recompute="none"))


def unlike(*names: str) -> Cluster:
    """Devices of these kinds in one box; the slow one takes ten times as long."""
    kinds = {"unit": DeviceKind("unit"), "slow": DeviceKind("slow", timed_as="unit", speed=0.1)}
    return Cluster("unlike", kinds, (Node(names),), overlap=Overlap.COPY)


@pytest.mark.parametrize(
    ("names", "value", "devices"),
    [(("slow", "unit", "unit"), 1200, [0, 1]), (("unit", "slow", "unit"), 240, [0])],
    ids=["front", "middle"],
)
def test_a_given_order_leaves_no_device_out_but_those_at_the_end(
    names: tuple[str, ...], value: int, devices: list[int]
) -> None:
    """Stages take d0, d1, ... one after the other: a slow device in front has to be used, one behind does not."""
    found = answer(two_layers(), unlike(*names), Job(4, replicas=(1,), recompute="none", order="given"))
    assert found.value == value
    assert [device for stage in found.plan.stages for device in stage.devices] == devices


def test_stages_are_priced_with_the_bytes_of_the_kinds_that_run_them() -> None:
    """A kind that takes no part may state a larger output; the tensor that crosses is the sender's all the same."""

    def cost(forward: int, output: int) -> LayerCost:
        return LayerCost(forward, 2 * forward, forward, forward, saved=output, output=output)

    layers = (Layer("l0", 0), Layer("l1", 0, ("l0",)))
    by_hand = Provenance("imported", "by hand")
    profiles = (
        Profile("unit", 1, (cost(10, 4), cost(10, 4)), by_hand),
        Profile("other", 1, (cost(1000, 400), cost(1000, 400)), by_hand),
    )
    model = Model("unlike bytes", layers, profiles)
    kinds = {"unit": DeviceKind("unit"), "other": DeviceKind("other")}
    cluster = Cluster("unlike", kinds, (Node(("other", "unit", "unit"), FREE),), overlap=Overlap.COPY)
    found = answer(model, cluster, Job(1, depths=(2,), recompute="none"))
    assert found.value == 60 + 2 * 4
    assert [stage.memory.activations for stage in found.plan.stages] == [4, 4 + 4]


def test_two_lanes_need_a_forwards_workspace_beside_the_backwards() -> None:
    """32 B stay, 2 x 4 B of outputs are held, and a backward rebuilds 20 B: 60 B are enough, 59 are not."""
    model = two_layers(saved=20)
    job = Job(1, schedules=("fbp-as",))
    found = answer(model, equal_devices(1, 60, overlap="stream"), job)
    assert found.plan.stages[0].memory.total == 60
    with pytest.raises(InfeasibleError):
        solve(model, equal_devices(1, 59, overlap="stream"), job=job)


def test_two_pins_of_one_layer_contradict_each_other() -> None:
    """A layer cannot be on two devices; the error names both."""
    with pytest.raises(InputError, match=r"d0.*d1|d1.*d0"):
        solve(two_layers(), equal_devices(2), job=Job(4, pin=(("l1", "d0"), ("l1", "d1"))))


def test_where_other_orders_fit_the_answer_says_so() -> None:
    """Families hold two micro-batches on the first of two stages; some order holds one, in 104 B per device."""
    model = model_of([10, 10], saved=[100, 100], output=[4, 4])
    cluster, job = equal_devices(2, 150), Job(4, recompute="none")
    with pytest.raises(InfeasibleError, match=r"(?s)--schedules any.*104 B") as refusal:
        solve(model, cluster, job=job)
    assert "1f1b" in str(refusal.value)
    assert solve(model, cluster, job=replace(job, schedules=("any",))).value > 0


def test_the_bottleneck_with_a_depth_uses_replicas() -> None:
    """Two stages of two devices each take 300 ns for two samples: 150 ns per sample, half the time of one device."""
    model = model_of([100, 100], saved=[4, 4], output=[4, 4])
    job = Job(4, depths=(2,), recompute="none", objective="bottleneck")
    assert answer(model, equal_devices(4, link=FREE), job).value == 150


def test_1f1b_alone_chooses_among_all_its_counts() -> None:
    """``1f1b`` beside one named family, or alone, is as good as the families that it contains."""
    model = model_of([10, 40, 10, 20, 30, 10], saved=[4] * 6, output=[30] * 6)
    cluster = equal_devices(5, link=FREE)
    values = [
        answer(model, cluster, Job(8, schedules=names, replicas=(1,), depths=(5,))).value
        for names in (("1f1b",), ("1f1b", "gpipe"), ("1f1b", "1f1b-so"), ("1f1b-sno", "1f1b-so"))
    ]
    assert values[0] <= values[3]
    assert values[1] <= values[0]
    assert values[2] == values[0]


def test_families_of_one_lane_are_not_held_to_two_lanes_memory() -> None:
    """A two-lane family that does not fit must not exclude plans of 1F1B that do."""

    def cost(workspace: int) -> LayerCost:
        return LayerCost(1, 2, 1, 1, saved=4, output=4, workspace=workspace)

    layers = (Layer("l0", 0), Layer("l1", 0, ("l0",)))
    model = Model("wide", layers, (Profile("unit", 1, (cost(20), cost(20)), Provenance("imported", "by hand")),))
    cluster = equal_devices(2, 36, overlap="stream")
    alone = answer(model, cluster, Job(2, schedules=("1f1b-sno",), recompute="none")).value
    assert answer(model, cluster, Job(2, schedules=("fbp-as", "1f1b-sno"), recompute="none")).value == alone


def test_ties_on_boxes_with_a_fast_network_are_bounded() -> None:
    """Copies of shared weights may be summed over the network or inside a box: the bound takes the faster one."""
    model = model_of([4, 6, 2, 5], parameters=[40, 12, 12, 16], saved=[9] * 4, output=[3] * 4)
    model = replace(model, ties=(Tie(("l0", "l3"), 28),))
    cluster = boxes(2, 2, Link(5 * 10**8, 3), Link(5 * 10**9, 0), memory=260)
    result = solve(model, cluster, job=Job(4, optimizer="adam", recompute="none", zero=(0,)))
    listed = [
        solve(model, cluster, job=Job(4, optimizer="adam", recompute="none", zero=(0,), depths=(depth,))).value
        for depth in (2, 3, 4)
    ]
    assert result.bound == result.value == min(listed)


def test_the_stages_of_a_device_use_its_card_once_beside_a_tie() -> None:
    """Four devices sum 4000 bytes in 6 rounds of 1000 ns behind 120 ns of passes; no other ring is on their cards."""
    model = replace(model_of([10] * 4, parameters=[4000, 0, 0, 0]), ties=(Tie(("l0", "l1"), 4000),))
    cluster = boxes(4, 1, FREE, Link(10**9, 0))
    job = Job(2, replicas=(2,), depths=(4,), chunks=(2,), schedules=("interleaved",), zero=(0,))
    assert answer(model, cluster, job).value == 6120
