"""Arrangements of baseline planners for models and clusters small enough to check by hand."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from helpers.instances import equal_devices, fat_head, model_of, two_kinds_of_device
from pipeplan.baselines.partitioners import PARTITIONERS, NotApplicable
from pipeplan.baselines.planners import PLANNERS, Arrangement, unlike
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node
from pipeplan.core.job import Job
from pipeplan.core.model import Model


def arranged(name: str, model: Model, cluster: Cluster, batch: int = 8, **options: object) -> Sequence[Arrangement]:
    """The peer's arrangements for micro-batches of one sample."""
    return PLANNERS[name].arrange(model, cluster, Job(batch, **options), 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PLANNERS)
def test_layers_and_devices_are_used_once(name: str) -> None:
    """Every arrangement holds every layer, no stage is empty, and no device runs two stages."""
    model = fat_head()
    cluster = equal_devices(4) if name in ("galvatron", "uniap") else two_kinds_of_device()
    found = arranged(name, model, cluster)
    assert found
    for one in found:
        assert one.boundaries[0] == 0
        assert one.boundaries[-1] == len(model.layers)
        assert list(one.boundaries) == sorted(set(one.boundaries))
        assert len(one.devices) == len(one.boundaries) - 1
        used = [device for stage in one.devices for device in stage]
        assert len(used) == len(set(used))
        assert set(used) <= {device.index for device in cluster.devices}


def test_data_parallelism_is_one_stage() -> None:
    """All devices share the only stage; with fewer micro-batches than devices there is no such plan."""
    assert arranged("data-parallel", fat_head(), equal_devices(4)) == (Arrangement((0, 9), ((0, 1, 2, 3),)),)
    with pytest.raises(NotApplicable, match="a batch of 3 in micro-batches of 1 has 3"):
        arranged("data-parallel", fat_head(), equal_devices(4), batch=3)


def test_data_parallelism_does_not_mix_kinds() -> None:
    """Unlike devices make one choice each, as replicas are of one kind."""
    found = arranged("data-parallel", fat_head(), two_kinds_of_device())
    assert {one.devices for one in found} == {((0, 1),), ((2, 3),)}


def test_gpipe_leaves_out_devices_of_empty_stages() -> None:
    """A layer that holds most of the work leaves a stage empty; its device takes no part."""
    model = model_of([30, 1, 1, 1])
    assert arranged("gpipe-whole", model, equal_devices(2)) == (Arrangement((0, 4), ((1,),)),)


def test_pipedream_replicates_the_heavy_stage() -> None:
    """Three devices share the first stage, which has three times the work, where gradients are cheap to sum."""
    model = model_of([30, 10], output=[1, 1], parameters=[1, 1])
    cluster = equal_devices(4, link=Link(10**12))
    assert arranged("pipedream-replicated", model, cluster) == (Arrangement((0, 1, 2), ((0, 1, 2), (3,))),)


def test_pipedream_keeps_heavy_parameters_alone() -> None:
    """If summing gradients costs more than it saves, stages have one device each."""
    model = model_of([10, 10], output=[1, 1], parameters=[10**6, 10**6])
    cluster = equal_devices(2, link=Link(10**9))
    assert arranged("pipedream-replicated", model, cluster) == (Arrangement((0, 1, 2), ((0,), (1,))),)


def test_pipedream_uses_the_same_places_of_every_node() -> None:
    """A stage on both nodes is cut inside each of them alike: replicas sit in different nodes."""
    model = model_of([400, 400], output=[4000, 1], parameters=[500, 500])
    node = Node(("unit", "unit"), Link(10**12))
    cluster = Cluster("nodes", {"unit": DeviceKind("unit")}, (node, node), Link(10**9))
    assert arranged("pipedream-replicated", model, cluster) == (Arrangement((0, 1, 2), ((0, 2), (1, 3))),)


def test_the_greedy_sees_every_order() -> None:
    """Two fast and two slow devices stand in six orders; in the given order the cut is the balancer's."""
    model, cluster = model_of([10] * 12, saved=[1] * 12), two_kinds_of_device()
    assert len(arranged("bapipe-greedy", model, cluster)) == 6
    (given,) = arranged("bapipe-greedy", model, cluster, order="given")
    assert given.devices == ((0,), (1,), (2,), (3,))
    assert given.boundaries == (0, 4, 8, 10, 12)


def test_replicas_of_unlike_kinds_are_no_pipeline() -> None:
    """A stage that lies on two kinds of device is refused by both their names; any order of stages is a pipeline."""
    cluster = two_kinds_of_device()
    assert unlike(Arrangement((0, 1, 2), ((2,), (0,))), cluster) is None
    assert "unlike kinds (unit, slow)" in (unlike(Arrangement((0, 2), ((1, 2),)), cluster) or "")


def test_names_differ_from_the_balancers() -> None:
    """A report lists both, each by its name."""
    assert not set(PLANNERS) & set(PARTITIONERS)
    assert all(name == structure.name for name, structure in PLANNERS.items())


@pytest.mark.parametrize("name", ["galvatron", "uniap"])
def test_even_stages_are_for_devices_of_one_kind(name: str) -> None:
    """On unlike devices neither applies, and three devices are no power of two."""
    with pytest.raises(NotApplicable, match="plans for devices of one kind"):
        arranged(name, fat_head(), two_kinds_of_device())
    if name == "galvatron":
        with pytest.raises(NotApplicable, match="powers of two, and 3 devices are not"):
            arranged(name, fat_head(), equal_devices(3))
    else:
        assert arranged(name, fat_head(), equal_devices(3))


def test_even_stages_differ_where_layers_are_unlike() -> None:
    """Galvatron divides layers by number or bytes; UniAP gives the heavy layer a stage of its own."""
    model = model_of([90, 10, 10, 10], output=[1] * 4, saved=[1] * 4, parameters=[10**6] * 4)
    cluster = equal_devices(2, link=Link(10**9))
    (galvatron,) = arranged("galvatron", model, cluster, batch=64)
    (uniap,) = arranged("uniap", model, cluster, batch=64)
    assert galvatron.boundaries == (0, 2, 4)
    assert uniap.boundaries == (0, 1, 4)
    assert galvatron.devices == uniap.devices == ((0,), (1,))


def test_galvatron_divides_blocks_between_the_ends() -> None:
    """Embedding and head lie beside four blocks; each half has two of them, however heavy the embedding is."""
    bare = model_of([10] * 6, saved=[1] * 6, parameters=[1] * 6)
    kinds = ("embedding", *["block"] * 4, "head")
    layers = tuple(replace(layer, kind=kind) for layer, kind in zip(bare.layers, kinds, strict=True))
    (found,) = arranged(
        "galvatron", replace(bare, layers=layers), equal_devices(2, link=Link(10**9)), batch=64, depths=2
    )
    assert found.boundaries == (0, 3, 6)
