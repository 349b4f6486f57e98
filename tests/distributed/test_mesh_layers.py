"""Layers on meshes of several axes: gradients are the unsplit model's, and nothing is sent but what is priced."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import pytest

from helpers.captured_models import tiny_bert, tiny_gpt2, tiny_llama, tiny_t5, tiny_vgg
from helpers.distributed import mesh_workers, models, vocabulary_workers
from helpers.distributed.together import Job
from helpers.plans import with_buckets
from helpers.profile_of import profile_of
from helpers.quick import part, thinned
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node
from pipeplan.core.strategies import BY_HEADS, BY_KEYS, BY_RING, PARTIAL, WHOLE
from pipeplan.costs.sharding.named import named_strategies
from pipeplan.frontend.workload import Workload
from pipeplan.io.plan_file import read_plan
from pipeplan.schedules import FAMILIES
from pipeplan.schedules.alternate import one_forward_one_backward
from pipeplan.solve import solve
from pipeplan_executor import launch
from pipeplan_executor import run as execute

EXACT, ROUNDED = 1e-10, 1e-5
"""The latter of models that round to float32 inside, for inputs of any type."""
BACKWARDS: tuple[dict[str, bool], ...] = (
    {"again": False, "split": True},
    {"again": True, "split": False},
    {"again": False, "split": False},
    {"again": True, "split": True},
)
"""Whether layers are recomputed, and weight gradients come behind those of inputs."""
STAGES = {stages: one_forward_one_backward((1,) * stages, 2, tuple(range(stages, 0, -1))) for stages in (1, 2)}


def run(
    build: Callable[[], Workload],
    sizes: tuple[int, ...],
    stages: int,
    seeds: range,
    limit: float = EXACT,
    gathered: tuple[bool, ...] = (False, True),
) -> None:
    """Run random plans, with and without gathered weights, and compare; each with another backward."""
    cases = [
        mesh_workers.on_mesh(build, sizes, STAGES[stages], seed, gathers) for seed in seeds for gathers in gathered
    ]
    cases = [mesh_workers.treated(case, **BACKWARDS[k % len(BACKWARDS)]) for k, case in enumerate(cases)]
    world = prod(sizes) * stages
    _compare(cases, *launch(mesh_workers.exact, world, tuple(case.plan for case in cases), build, timeout=300), limit)


def _compare(
    cases: Sequence[mesh_workers.Case], errors: list[float], sent: Sequence[mesh_workers.Sent], limit: float = EXACT
) -> None:
    assert max(errors) < limit, errors
    for case, own in zip(cases, sent, strict=False):
        mesh_workers.check_sent(case, own)


def jobs(world: int, folder: Path) -> dict[str, Job]:
    """Jobs of quick runs."""
    if world == 2:
        return {
            "outputs": (mesh_workers.exact, (tuple(case.plan for case in of_stages()), models.tiny_stages)),
            "losses on meshes": (mesh_workers.with_losses, (on_one_axis(),)),
            "kept": (mesh_workers.exact, (tuple(case.plan for case in that_keep()), models.tiny_decoder)),
            "beside": (mesh_workers.exact, (tuple(case.plan for case in beside_norms()), models.tiny_beside)),
        }
    if world != 4:
        return {}
    return {
        "meshes in replicas": (mesh_workers.errors, (tuple(case.plan for case in in_replicas()), models.tiny_decoder)),
        "losses on two axes": (mesh_workers.with_losses, (on_two_axes(),)),
        "meshes": (mesh_workers.exact, (tuple(case.plan for case in of_a_decoder()), models.tiny_decoder)),
        "cubes": (mesh_workers.exact, (tuple(case.plan for case in of_rectangles()), models.tiny_decoder)),
        "levels": (mesh_workers.errors, (tuple(case.plan for case in at_levels()), models.tiny_decoder)),
        "attention": (mesh_workers.exact, (tuple(case.plan for case in by_ways()), models.wide_decoder)),
    }


@cache
def of_a_decoder() -> tuple[mesh_workers.Case, ...]:
    """A decoder on two by two processes, all operators by strategies drawn for each, recomputed or split."""
    case = mesh_workers.on_mesh(models.tiny_decoder, (2, 2), STAGES[1], 0)
    return tuple(mesh_workers.treated(case, **how) for how in part(BACKWARDS[:2]))


@cache
def in_replicas() -> tuple[mesh_workers.Case, ...]:
    """Two replicas of a decoder on two processes each, whose sums run beside the last backward, joined or split."""
    schedule = FAMILIES["gpipe"].write((2,), 4)
    cases = (mesh_workers.on_mesh(models.tiny_decoder, (2,), schedule, seed) for seed in range(2))
    cases = (case._replace(plan=with_buckets(case.plan, 1)) for case in cases)
    return tuple(mesh_workers.treated(case, **how) for case, how in zip(cases, BACKWARDS[:2], strict=True))


@cache
def of_rectangles() -> tuple[mesh_workers.Case, ...]:
    """A decoder by 3-D tensor parallelism on cubes of 2 x 2 x 1 and 1 x 2 x 2, all else drawn."""
    return tuple(
        mesh_workers.on_mesh(models.tiny_decoder, (2, 2), STAGES[1], seed, named=own)
        for seed, own in part(list(enumerate(named_strategies("3d", 2))))
    )


@cache
def at_levels() -> tuple[mesh_workers.Case, ...]:
    """A decoder on two replicas of two processes, at levels 2 and 3 of ZeRO, with and without gathered weights."""
    schedule, ways = FAMILIES["1f1b-sno"].write((2,), 4), ((2, True, True), (3, True, False), (3, False, True))
    return tuple(
        mesh_workers.treated(case, again=again, split=False)
        for seed, (level, gathers, again) in part([*enumerate(ways)][::-1], 3)
        for case in [mesh_workers.on_mesh(models.tiny_decoder, (2,), schedule, seed, gathers, zero=level)]
    )


@cache
def by_ways() -> tuple[mesh_workers.Case, ...]:
    """A decoder on two by two processes whose axes both split the tokens of attention, in a pair of ways."""
    pairs = (BY_RING, BY_HEADS), (BY_RING, BY_KEYS)
    return tuple(
        mesh_workers.treated(
            mesh_workers.on_mesh(models.wide_decoder, (2, 2), STAGES[1], seed, False, ways), **BACKWARDS[seed]
        )
        for seed, ways in enumerate(pairs)
    )


@cache
def of_stages() -> tuple[mesh_workers.Case, ...]:
    """Layers on two processes that read some of their outputs themselves."""
    return tuple(mesh_workers.on_mesh(models.tiny_stages, (2,), STAGES[1], seed, False) for seed in (0, 3, 6))


def test_gradients_of_outputs_are_added_to_parts_of_sums(ranks: Callable[[int], dict[str, Any]]) -> None:
    """Outputs that the layer reads too: their gradients from behind are added to what its operators return."""
    _compare(of_stages(), *ranks(2)["outputs"])
    sums = [own.sums[name] for case in of_stages() for _, own in case.plan.strategies for name in own.sums]
    assert {(PARTIAL,), (WHOLE,), (0,)} <= {*sums}


@cache
def on_one_axis() -> dict[str, tuple[mesh_workers.Case, Callable[[], Workload]]]:
    """Cross entropies of which two processes have half of the classes each; last layers recomputed, or not."""
    builds = vocabulary_workers.ignoring, vocabulary_workers.weighted, vocabulary_workers.shifted, models.tiny_tied
    cases = [(mesh_workers.on_mesh(b, (2,), STAGES[1], k, losses=(True,)), b) for k, b in enumerate(builds)]
    again = mesh_workers.on_mesh(models.tiny_decoder, (2,), STAGES[1], 5, losses=(True,))
    last = again.plan.stages[-1]
    plan = replace(again.plan, stages=(replace(last, recompute=last.layers[-1:]),))
    every = {"again": (again._replace(plan=plan), models.tiny_decoder)} | {b.__name__: (case, b) for case, b in cases}
    return thinned(every)


@cache
def on_two_axes() -> dict[str, tuple[mesh_workers.Case, Callable[[], Workload]]]:
    """On two by two processes: both axes split the classes, or one of them and the other something else."""
    axes = {"both": (True, True), "first": (True, False), "second": (False, True)}
    builds = {"both": vocabulary_workers.many, "first": models.tiny_decoder, "second": vocabulary_workers.weighted}
    cases = {
        name: (mesh_workers.on_mesh(builds[name], (2, 2), STAGES[1], 7, losses=own), builds[name])
        for name, own in axes.items()
    }
    stages = mesh_workers.on_mesh(models.tiny_decoder, (2,), STAGES[2], 3, losses=(True,)), models.tiny_decoder
    return thinned(cases | {"two stages": stages}, 4)


def _compare_losses(
    cases: dict[str, tuple[mesh_workers.Case, Callable[[], Workload]]], found: dict[str, mesh_workers.Loss]
) -> None:
    for name, (case, _) in cases.items():
        own = found[name]
        assert max(own.error, own.evaluated, own.predicted) < EXACT, (name, own)
        assert own.half < 0.02, name
        if own.sent is not None and name != "again":
            assert own.sent[0] == case.sent[0], name
            assert own.sent[1] <= case.sent[1], name


def test_losses_on_split_logits_are_exact(ranks: Callable[[int], dict[str, Any]]) -> None:
    """Classes along one axis: ignored, weighted, shifted targets; in training, evaluation and half precision.

    The forward sends two numbers for each row and the loss, the backward nothing that is not priced.
    """
    _compare_losses(on_one_axis(), ranks(2)["losses on meshes"])


def test_losses_are_split_along_axes_of_a_mesh(ranks: Callable[[int], dict[str, Any]]) -> None:
    """Classes along both axes, nested, or along one while the other splits other operators, and over two stages."""
    _compare_losses(on_two_axes(), ranks(4)["losses on two axes"])


def test_losses_that_are_no_cross_entropy_are_refused(ranks: Callable[[int], dict[str, Any]]) -> None:
    """A plan that splits the loss of another workload says what it takes, and how to do without."""
    assert ranks(2)["losses on meshes"]["others"] == "--no-vocabulary-parallel"


def test_targets_that_are_no_class_are_refused(ranks: Callable[[int], dict[str, Any]]) -> None:
    """By every process, whatever classes it has."""
    assert ranks(2)["losses on meshes"]["target"] == "a target is none of the 50 classes"


@cache
def that_keep() -> tuple[mesh_workers.Case, ...]:
    """A decoder on two processes, all operators by strategies drawn for each, and copies that are kept."""
    return tuple(mesh_workers.on_mesh(models.tiny_decoder, (2,), STAGES[1], seed, False) for seed in range(2))


def test_copies_are_kept_for_the_backward(ranks: Callable[[int], dict[str, Any]]) -> None:
    """Also those for one operator: gradients are exact, and nothing is gathered again that is priced as kept."""
    _compare(that_keep(), *ranks(2)["kept"])
    copies = [
        copy for case in that_keep() for _, own in case.plan.strategies for copy in own.copies.values() if copy.kept
    ]
    assert {len(copy.readers) > 1 for copy in copies} == {False, True}


@cache
def beside_norms() -> tuple[mesh_workers.Case, ...]:
    """Norms and products that read the same tensors on two processes, whose weight gradients come later."""
    cases = (mesh_workers.on_mesh(models.tiny_beside, (2,), STAGES[1], seed, False) for seed in (6, 32))
    return tuple(mesh_workers.treated(case, again=False, split=True) for case in cases)


def test_copies_of_norms_and_products_are_made_for_the_input_gradient(ranks: Callable[[int], dict[str, Any]]) -> None:
    """Also those that products alone share: the weight gradient sends nothing."""
    _compare(beside_norms(), *ranks(2)["beside"])
    shared = {
        copy.readers for case in beside_norms() for _, own in case.plan.strategies for copy in own.copies.values()
    }
    assert {("one", "other"), ("norm", "other")} <= shared
    assert not any(case.later for case in beside_norms())


def test_attention_runs_in_pairs_of_ways(ranks: Callable[[int], dict[str, Any]]) -> None:
    """Keys go round over one axis and are gathered, or exchanged for heads, along the other: exact, and as priced.

    Other pairs run in threads (`tests/executor/test_mesh_in_threads.py`).
    """
    _compare(by_ways(), *ranks(4)["attention"])
    copied = {name for case in by_ways() for _, strategies in case.plan.strategies for name in strategies.copies}
    assert copied, "some tensor is moved once for several operators"


def test_rectangular_cubes_run_by_name(ranks: Callable[[int], dict[str, Any]]) -> None:
    """3-D tensor parallelism with one axis of one device, without the first and without another: exact, as priced."""
    _compare(of_rectangles(), *ranks(4)["cubes"])


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(2, 2, 2), (4, 2), (2, 4)])
def test_cubes_run_by_name(sizes: tuple[int, ...]) -> None:
    """2 x 2 x 2, and of eight devices those with an axis of one: gradients are exact, all is sent as priced."""
    found = named_strategies("3d", len(sizes))
    cases = [
        mesh_workers.on_mesh(models.tiny_decoder, sizes, STAGES[1], seed, named=own)
        for own in found
        for seed in range(3 - len(found))
    ]
    plans = tuple(case.plan for case in cases)
    _compare(cases, *launch(mesh_workers.exact, 8, plans, models.tiny_decoder, timeout=300))


@pytest.mark.slow
@pytest.mark.skipif(not models.HAS_TRANSFORMERS, reason="transformers is not installed")
@pytest.mark.parametrize("way", [BY_KEYS, BY_RING, BY_HEADS])
@pytest.mark.parametrize(("build", "limit"), [(tiny_llama, ROUNDED), (tiny_gpt2, EXACT)])
def test_captured_attention_runs_in_every_way(way: str, build: Callable[[], Workload], limit: float) -> None:
    """On an axis of two: masks are cut along the queries that a process has, or along its heads."""
    cases = [mesh_workers.on_mesh(build, (2,), STAGES[1], seed, False, (way,)) for seed in range(2)]
    _compare(cases, *launch(mesh_workers.exact, 2, tuple(case.plan for case in cases), build, timeout=300), limit)


def test_replicas_of_meshes_sum_beside_the_last_backward(ranks: Callable[[int], dict[str, Any]]) -> None:
    """Gradients are summed along the axis, then over replicas, bucket by bucket, behind B or W: exact."""
    assert max(ranks(4)["meshes in replicas"]) < EXACT


def test_a_decoder_runs_by_random_words(ranks: Callable[[int], dict[str, Any]]) -> None:
    """Its gradients are the unsplit model's, and nothing is sent but what is priced."""
    _compare(of_a_decoder(), *ranks(4)["meshes"])


def test_replicas_share_out_what_processes_have(ranks: Callable[[int], dict[str, Any]]) -> None:
    """At levels 2 and 3 of ZeRO each has the unsplit model's gradients of its share of its part, recomputed or not."""
    assert max(ranks(4)["levels"]) < EXACT


@pytest.mark.slow
@pytest.mark.parametrize("level", [2, 3])
def test_replicas_of_two_axes_share_out_what_processes_have(level: int) -> None:
    """The same on eight processes."""
    schedule = FAMILIES["1f1b-sno"].write((2,), 4)
    plan = mesh_workers.on_mesh(models.tiny_decoder, (2, 2), schedule, level, zero=level).plan
    assert max(launch(mesh_workers.errors, 8, (plan,), models.tiny_decoder, timeout=300)) < EXACT


@pytest.mark.slow
@pytest.mark.skipif(not models.HAS_TRANSFORMERS, reason="transformers is not installed")
def test_queries_keys_and_values_in_one_matrix_are_split_on_meshes() -> None:
    """GPT-2: the groups of its projection are split one by one, along either axis."""
    run(tiny_gpt2, (2, 2), 1, range(1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "sizes", "stages", "limit"),
    [
        (models.tiny_decoder, (2, 2), 1, 1e-10),
        (models.tiny_decoder, (2, 2, 2), 1, 1e-10),
        (models.tiny_decoder, (2, 2), 2, 1e-10),
        (models.tiny_mlp, (2, 2), 2, 1e-10),
        (tiny_vgg, (2, 2), 1, 1e-10),
        (models.tiny_convolutions, (2, 2), 1, 1e-10),
        (tiny_llama, (2, 2), 1, ROUNDED),
        (tiny_bert, (2, 2), 1, 1e-10),
        (tiny_t5, (2, 2), 1, ROUNDED),
        (models.tiny_tied, (2, 2), 1, 1e-10),
        (models.tiny_dropping, (2, 2), 1, 1e-10),
    ],
)
def test_more_models_run_by_random_words(
    build: Callable[[], Workload], sizes: tuple[int, ...], stages: int, limit: float
) -> None:
    """Three axes, two stages, convolutions, masks, shared tables, dropout."""
    if build in (tiny_llama, tiny_bert, tiny_t5) and not models.HAS_TRANSFORMERS:
        pytest.skip("transformers is not installed")
    run(build, sizes, stages, range(2), limit)


@pytest.mark.slow
def test_a_chosen_mesh_of_a_profiled_model_is_exact() -> None:
    """On two nodes with a slow network a team of four runs the decoder as a mesh, by strategies that `solve` chose."""
    model = profile_of(models.tiny_decoder())
    kind = DeviceKind("unit", timed_as=model.profiles[0].device)
    node = Node(("unit", "unit"), Link(10**10, 1))
    cluster = Cluster("pairs", {"unit": kind}, (node, node), network=Link(10**7, 1))
    plan = solve(model, cluster, 4, teams=(4,), micro_batches=(2,), optimizer="sgd", workers=1).plan
    assert plan.mesh == (2, 2)
    error = execute(plan, models.tiny_decoder, steps=1, warmup=0, verify=True).error
    assert error is not None
    assert error < EXACT


def test_words_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Plan files have the strategies of every layer, equal ones once."""
    plan = mesh_workers.on_mesh(models.tiny_decoder, (2, 2), STAGES[1], 0).plan
    plan.save(tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan
