"""Tensor parallelism on real processes: groups of two in place of ranks."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.captured_models import tiny_gpt2, tiny_llama
from helpers.distributed import checkpointing, models, tensor_parallel_workers, training_workers, vocabulary_workers
from helpers.distributed.together import Job
from helpers.distributed.training_workers import MESHES, TEAMS, TEAMS_CONTEXT, TEAMS_LOW, TEAMS_SHARDED, Seen
from helpers.instances import equal_devices
from helpers.layer_operators import layers_operators
from helpers.profile_of import profile_of
from helpers.quick import QUICK, part
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.plan import Plan
from pipeplan.core.strategies import WHOLE
from pipeplan.frontend.workload import Workload
from pipeplan.solve import solve
from pipeplan_executor import launch, run

EXACT = 1e-10
RANDOM = 2 if QUICK else 4
"""Number of random plans with random shards."""
ROUNDS = ("llama", "t5")
"""Models that round to float32 inside, for inputs of any type."""
ROUNDED = 1e-5
EVERY = {**TEAMS, **TEAMS_SHARDED, **TEAMS_CONTEXT, **MESHES, **TEAMS_LOW}
OFTEN = (
    "teams, split loss, tied, ZeRO-1",
    "unlike teams, tokens, ZeRO-3",
    "meshes, ZeRO-3, dropout",
)
"""Cases of training that are always run; all others are slow tests."""
NAMED = part([("decoder", ("again",)), ("decoder", ("split",)), ("dropped", ("split",)), ("skipping", ("joined",))])
"""Models, and how their backwards run."""


def jobs(world: int, folder: Path) -> dict[str, Job]:
    """Jobs of two tensor-parallel groups."""
    if world != 4:
        return {}
    return {
        "tensor-parallel named": (tensor_parallel_workers.named, NAMED),
        "tensor-parallel random": (tensor_parallel_workers.random_groups, (RANDOM, 4)),
        "tensor-parallel unlike": (tensor_parallel_workers.unlike_groups, (RANDOM, 5)),
        "tensor-parallel outputs": (tensor_parallel_workers.outputs, ()),
        "tensor-parallel collectives": (tensor_parallel_workers.collectives, ()),
        "tensor-parallel tokens": (tensor_parallel_workers.tokens, ()),
        "tensor-parallel saved": (tensor_parallel_workers.saved, ()),
        "tensor-parallel waiting": (tensor_parallel_workers.waiting, ()),
        "tensor-parallel freed": (tensor_parallel_workers.freed, ()),
        "tensor-parallel losses": (vocabulary_workers.errors, ()),
        "tensor-parallel sent by losses": (vocabulary_workers.sent, ()),
        "tensor-parallel report": (tensor_parallel_workers.report, ()),
        "tensor-parallel training": (training_workers.tensor_parallel_runs, OFTEN),
        "tensor-parallel handed on": (checkpointing.handed_on, (str(folder), "shared", "adam")),
    }


@pytest.fixture(scope="module")
def found(ranks: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    """Results of four processes."""
    return ranks(4)


def test_models_are_exact_as_people_cut_them(found: dict[str, Any]) -> None:
    """Loss and gradients equal the unsplit model's: by columns then rows, recomputed, split, captured, with dropout."""
    assert len(found["tensor-parallel named"]) == len(NAMED)
    _all_exact(found["tensor-parallel named"])


@pytest.mark.slow
@pytest.mark.skipif(not models.HAS_TRANSFORMERS, reason="transformers is not installed")
def test_transformers_are_exact() -> None:
    """So do captured Llama, by columns and rows, and GPT-2: in groups, or in equal shards that are gathered."""
    ways = ("joined", "split", "again")
    cases = ("llama", ways), ("gpt2", ways), ("gpt2 gathered", ways[:1])
    _all_exact(launch(tensor_parallel_workers.named, 4, *cases, timeout=90))


@pytest.mark.slow
@pytest.mark.skipif(not models.HAS_TRANSFORMERS, reason="transformers is not installed")
def test_chosen_teams_of_captured_models_are_exact() -> None:
    """A team of two runs GPT-2, cut inside its blocks, as the planner splits what a profile found."""
    plan = _chosen(tiny_gpt2, Link(10**12, 1))
    assert plan.strategies and plan.teams == (2,)
    _verified(plan, tiny_gpt2)


@pytest.mark.slow
def test_a_chosen_loss_of_a_profiled_model_is_exact() -> None:
    """On slow links a team of two splits the decoder's head and its loss, as found by a profile."""
    plan = _chosen(models.tiny_tied, Link(10**8, 1))
    assert "loss" in plan.parallelism
    _verified(plan, models.tiny_tied)


def _chosen(build: Callable[[], Workload], link: Link) -> Plan:
    """The plan of a profiled model for a team of two."""
    model = profile_of(build())
    cluster = equal_devices(2, link=link)
    kinds = {name: replace(kind, timed_as=model.profiles[0].device) for name, kind in cluster.kinds.items()}
    return solve(
        model, replace(cluster, kinds=kinds), 4, teams=(2,), micro_batches=(2,), optimizer="sgd", workers=1
    ).plan


def _verified(plan: Plan, build: Callable[[], Workload]) -> None:
    error = run(plan, build, steps=1, warmup=0, verify=True).error
    assert error is not None
    assert error < EXACT


@pytest.mark.slow
@pytest.mark.skipif(not models.HAS_TRANSFORMERS, reason="transformers is not installed")
@pytest.mark.parametrize(
    ("build", "block", "split"),
    [
        (tiny_gpt2, "GPT2Block", ("transformer.wte", "transformer.wpe", "transformer.h.0")),
        (tiny_llama, "LlamaDecoderLayer", ("model.embed_tokens", "model.layers.0")),
    ],
)
def test_captured_models_split_tokens_exactly(build: Callable[[], Any], block: str, split: tuple[str, ...]) -> None:
    """Two teams of two run blocks of GPT-2, and of Llama beside its mask, in chosen parts of the tokens."""
    model = profile_of(build(), group=(block,))
    nodes = (Node(("unit", "unit"), Link(10**12, 1)),) * 2
    kind = DeviceKind("unit", timed_as=model.profiles[0].device)
    slow = Cluster("slow", {"unit": kind}, nodes, Link(10**4, 1), Overlap.COPY)
    plan = solve(model, slow, 4, teams=(2,), depths=(2,), micro_batches=(2,), optimizer="sgd", workers=1).plan
    outputs = {name for name, strategies in plan.strategies if any(entry != WHOLE for entry in strategies.output)}
    assert outputs >= {*split}
    assert len(plan.stages) == 2
    error = run(plan, build, steps=1, warmup=0, verify=True).error
    assert error is not None
    assert error < (ROUNDED if "llama" in build.__name__ else EXACT)


def test_random_cuts_are_exact(found: dict[str, Any]) -> None:
    """So they do with any parameters of any model sharded along any axes, under random plans."""
    assert len(found["tensor-parallel random"]) == RANDOM
    _all_exact(found["tensor-parallel random"])


def test_teams_of_unlike_sizes_are_exact(found: dict[str, Any]) -> None:
    """So they do where neighbouring stages have teams of unlike sizes, and tokens pass in parts."""
    assert len(found["tensor-parallel unlike"]) == RANDOM
    _all_exact(found["tensor-parallel unlike"])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("world", [3, 4, 5])
def test_many_teams_of_unlike_sizes_are_exact(world: int) -> None:
    """The same for more plans, on three to five processes."""
    _all_exact(launch(tensor_parallel_workers.unlike_groups, world, 40, 200 + world, timeout=300))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(3))
def test_many_random_cuts_are_exact(seed: int) -> None:
    """The same for more plans of all models."""
    _all_exact(launch(tensor_parallel_workers.random_groups, 4, 39, 100 + seed, timeout=300))


def _all_exact(errors: dict[str, float]) -> None:
    limits = {name: ROUNDED if any(model in name for model in ROUNDS) else EXACT for name in errors}
    assert not {name: error for name, error in errors.items() if not error <= limits[name]}


@pytest.mark.parametrize("name", OFTEN)
def test_tensor_parallel_training_equals_plain_torch(found: dict[str, Any], name: str) -> None:
    """Losses, norms, rates and weights are those of a plain loop: clipped, at levels of ZeRO, tied, with dropout."""
    _trained_alike(name, *found["tensor-parallel training"][name])


@pytest.mark.slow
def test_more_tensor_parallel_training_equals_plain_torch() -> None:
    """So are those of all other cases."""
    names = [name for name in EVERY if name not in OFTEN]
    for name, seen in launch(training_workers.tensor_parallel_runs, 4, *names, timeout=300).items():
        _trained_alike(name, *seen)


def _trained_alike(name: str, ours: Seen, theirs: Seen, apart: float) -> None:
    near = 1e-3 if name in TEAMS_LOW else EXACT  # partial sums are rounded too
    assert ours.losses == pytest.approx(theirs.losses, rel=near)
    assert ours.evaluated == pytest.approx(theirs.evaluated, rel=1e-2 if name in TEAMS_LOW else EXACT)
    assert ours.norms == pytest.approx(theirs.norms, rel=near)
    assert ours.rates == theirs.rates
    assert ours.scales == theirs.scales
    assert apart < near
    assert len(set(ours.losses)) > 1
    options = EVERY[name].options
    assert all(norm > options["clip"] for norm in ours.norms)
    assert bool(ours.norms) == ("clip" in options)


def test_gathered_weights_of_members_are_freed(found: dict[str, Any]) -> None:
    """Behind a forward a member has all of its shards at levels 1 and 2 of ZeRO, and at level 3 half of them."""
    for level, (whole, there) in found["tensor-parallel freed"].items():
        assert there == (whole // 2 if level == 3 else whole)


def test_checkpoints_move_between_group_sizes(found: dict[str, Any]) -> None:
    """A run continues on teams, on meshes and without, at all levels of ZeRO, and from plain files, and is the same."""
    layouts = part((2, 1, 2, 2, 2, 2, (1, 2, 1), 2, 4, 2), 3)
    assert tuple(layout.tensor_parallel for layout in checkpointing.LAYOUTS[4]) == layouts
    assert found["tensor-parallel handed on"] < 1e-9  # some gradients are but rounding, and Adam divides by their size


def test_outputs_are_the_unsplit_models(found: dict[str, Any]) -> None:
    """In evaluation mode every tensor-parallel rank has the whole outputs, and the loss of the whole batch."""
    loss, reference, apart = found["tensor-parallel outputs"]
    assert loss == pytest.approx(reference, rel=EXACT)
    assert apart < EXACT


SUM, GATHER, SCATTER = "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"


@pytest.mark.parametrize(
    ("cuts", "forward", "both"),
    [
        ("pairs", {SUM: 2}, {SUM: 4}),
        ("columns without rows", {GATHER: 1}, {GATHER: 1, SUM: 1}),
        ("head", {GATHER: 1}, {GATHER: 1, SUM: 1}),
        ("vocabulary", {SUM: 1}, {SUM: 1}),
        ("stream", {GATHER: 1}, {GATHER: 1}),
        # there: each pair, and the end of the norm; back: each pair twice, and the gradient of the embedding; then what
        # is whole, once per step
        ("tokens", {GATHER: 3, SCATTER: 2}, {GATHER: 8, SCATTER: 4, SUM: 1}),
        ("tokens, split", {GATHER: 3, SCATTER: 2}, {GATHER: 8, SCATTER: 4, SUM: 1}),
    ],
)
def test_cuts_decide_what_is_sent(
    found: dict[str, Any], cuts: str, forward: dict[str, int], both: dict[str, int]
) -> None:
    """A block cut by columns, then rows, sums twice each way and gathers nothing; other cuts send what the docs say."""
    assert found["tensor-parallel collectives"][cuts] == (forward, both)


def test_split_tokens_are_exact(found: dict[str, Any]) -> None:
    """Loss and gradients equal the unsplit model's where tokens are split: over two stages, with any backward."""
    assert len(found["tensor-parallel tokens"]) == 3
    _all_exact(found["tensor-parallel tokens"])


def test_split_tokens_save_less(found: dict[str, Any]) -> None:
    """What a forward saves beside parameters is less if tokens are split."""
    whole, split = found["tensor-parallel saved"]
    assert split < 0.8 * whole


@pytest.mark.parametrize("name", vocabulary_workers.CASES)
def test_losses_on_split_logits_are_exact(found: dict[str, Any], name: str) -> None:
    """Loss and gradients equal the unsplit model's: with any backward, split tokens, ties, and other losses, too."""
    assert found["tensor-parallel losses"][name] < EXACT


def test_losses_send_what_was_predicted(found: dict[str, Any]) -> None:
    """Three sums in place of the gather of the logits; their bytes are those of the operators that a profile finds."""
    seen = found["tensor-parallel sent by losses"]
    assert (seen["forward False"], seen["both False"]) == ({GATHER: 1}, {GATHER: 1, SUM: 1})
    assert (seen["forward True"], seen["both True"]) == ({SUM: 3}, {SUM: 4})  # and the gradient of the head's input
    head = layers_operators(vocabulary_workers.small).graph("head")
    assert head.loss is not None
    rows, last = 2 * head.loss.rows, 2 * head.operators[-1].output
    assert seen["bytes"] == [rows, rows, last, 2 * head.inputs["input"]]


def test_weight_gradients_of_parts_wait(found: dict[str, Any]) -> None:
    """In a backward in two parts those of all four matrices, and their biases, are made in W."""
    behind, at_last = found["tensor-parallel waiting"]
    assert len(behind) == 6
    assert not any(behind.values())
    assert all(at_last.values())


def test_a_run_reports_ranks_of_the_plan(found: dict[str, Any]) -> None:
    """``run`` reports losses, peaks and time lines by ranks of the plan, not by processes, and exact gradients."""
    report, schedule = found["tensor-parallel report"]
    assert report.tensor_parallel == 2
    assert report.error <= EXACT
    assert len(report.peaks) == len(schedule.orders)
    spans = [span.action for span in report.timeline.spans]
    assert sorted(map(str, spans)) == sorted(str(action) for order in schedule.orders for action in order)
