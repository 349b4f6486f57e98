"""`shard` and its command: the choice that fits, placements, text, files, errors; a captured Llama from end to end."""

import csv
import json
import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

import pipeplan
from helpers.captured_models import tiny_llama
from helpers.operators import block, of_many_tokens, perceptrons
from pipeplan.analysis.sharding import programme
from pipeplan.cli.main import main
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node
from pipeplan.core.errors import InfeasibleError, InputError, PipeplanError
from pipeplan.core.units import format_bytes
from pipeplan.io.cluster_file import write_cluster
from pipeplan.io.model_file import write_model
from pipeplan_formulations.common.mip import SOLVERS
from pipeplan_formulations.common.report import Status

UNIT = DeviceKind("unit", memory=10**6, peak={"float32": 10**12}, bandwidth=10**11, runtime=100)
CLUSTER = Cluster("two by two", {"unit": UNIT}, (Node(("unit",) * 2, Link(10**10, 5)),) * 2, Link(10**9, 20))


def test_the_fastest_choice_that_fits() -> None:
    """With less memory the choice is further along the frontier; with too little the least is named."""
    model = perceptrons(3, (1, 2), of_many_tokens(100, 128))
    free = pipeplan.shard(model, CLUSTER, 2, optimizer="adam")
    assert free.shapes == ((4,), (2, 2))
    assert free.number == 0
    times, needed = ([own[i] for own in free.points] for i in (0, 1))
    assert times == sorted(set(times)) and needed == sorted(set(needed), reverse=True)
    limit = free.points[1].memory
    tight = pipeplan.shard(model, CLUSTER, 2, optimizer="adam", memory=limit + UNIT.runtime)
    assert (tight.point, tight.limit) == (free.points[1], limit)
    assert tight.points == free.points
    with pytest.raises(InfeasibleError, match=r"on 4 or 2 x 2 fits .*the least is"):
        pipeplan.shard(model, CLUSTER, 2, optimizer="adam", memory=free.points[-1].memory)
    (one,) = {pipeplan.shard(model, CLUSTER, 2, [sizes], optimizer="adam").shapes for sizes in ((2, 2),)}
    assert one == ((2, 2),)


def test_a_named_strategy_stands_beside_the_best() -> None:
    """On the asked cube, or on all of as many axes as there are; other shapes and clusters are refused."""
    model = perceptrons(3, (1, 2), of_many_tokens(100, 128))
    best = pipeplan.shard(model, CLUSTER, 2, optimizer="adam")
    found = pipeplan.shard(model, CLUSTER, 2, optimizer="adam", strategy="3d")
    assert (found.beside, found.strategy, found.mesh.sizes) == (best.point, "3d", (2, 2))
    assert found.bound == found.point.time >= best.point.time
    asked = pipeplan.shard(model, CLUSTER, 2, "1x2x2", optimizer="adam", strategy="3d")
    assert asked.point.time >= found.point.time
    assert {frozenset(each.splits) for layers in asked.layers for each in layers.operators} == {
        frozenset({"in", "out"})
    }
    text, written = str(asked), asked.as_json()
    assert "no 3d choice that fits is faster" in text and "the best of any strategy on one or two axes" in text
    assert written["best_of_any_strategy"]["step_time_s"] == best.point.time / 1e9  # type: ignore[index]
    with pytest.raises(InputError, match="mesh 4: strategy 3d splits meshes of 3 axes"):
        pipeplan.shard(model, CLUSTER, 2, "4", strategy="3d")
    with pytest.raises(InputError, match=r"strategy 2.5d splits meshes of 3 axes, and none of 4 devices fits"):
        pipeplan.shard(model, CLUSTER, 2, strategy="2.5d")


def test_frozen_weights_are_whole_on_every_device() -> None:
    """They add their bytes to every point of the frontier, and count where nothing fits."""
    model = perceptrons(3)
    frozen = replace(model, layers=tuple(replace(layer, frozen=5000) for layer in model.layers))
    bare, own = pipeplan.shard(model, CLUSTER, 2), pipeplan.shard(frozen, CLUSTER, 2)
    assert [point.memory for point in own.points] == [point.memory + 15_000 for point in bare.points]
    with pytest.raises(InfeasibleError, match=r"14\.65 KiB of frozen weights are whole on every device"):
        pipeplan.shard(frozen, CLUSTER, 2, memory=15_000)


def test_operators_without_loops_are_named() -> None:
    """In the text with the time that they lose, and with their weights where nothing fits."""
    model = perceptrons(3)
    layers = (model.layers[0], replace(model.layers[1], operators="", parameters=5000), model.layers[2])
    unknown = replace(model, layers=layers)
    text = str(pipeplan.shard(unknown, CLUSTER, 2))
    assert "whole on every device: 1 unknown operator (l1/layer)" in text
    assert "an even split would save" in " ".join(text.split())
    with pytest.raises(InfeasibleError, match=r"4\.88 KiB of weights belong to .*whole on every device: unknown"):
        pipeplan.shard(unknown, CLUSTER, 2, memory=600)
    found = pipeplan.shard(unknown, CLUSTER, 2)
    little = found.unsplit[0]._replace(time=1, lost=1, parameters=0)
    assert "too, 1 ns more than an even split: 1 operator (unknown)" in str(replace(found, unsplit=(little,)))
    odd = pipeplan.shard(perceptrons(3), CLUSTER, 2, [(4,)])
    assert "a team of 4 leaves whole what it does not divide: 2 samples (2 does)" in str(odd)


def test_a_passed_input_meets_a_layer_without_known_operators() -> None:
    """A mask of the model, read and passed on by a layer, has its axes too in one of which nothing is known."""
    masked = block()
    add = masked.operators[-1]
    masks = {"add": replace(add, reads={**add.reads, "mask": ("token", "feature")})}
    operators = tuple(masks.get(each.name, each) for each in masked.operators)
    graph = replace(masked, operators=operators, inputs={**masked.inputs, "mask": 80}, outputs=("add", "mask"))
    model = perceptrons(2, graph=graph)
    unknown = replace(model, layers=(model.layers[0], replace(model.layers[1], operators="")))
    exact, solved = (
        pipeplan.shard(unknown, CLUSTER, 2, [(4,)], backend=name, workers=1) for name in ("exact", "cpsat")
    )
    assert exact.point.time == solved.point.time == solved.bound


def test_what_cannot_be_asked() -> None:
    """Optimisers, batches, graphs of layers, models without operators, too little time."""
    model = perceptrons(2)
    for words, wrong in (
        ("did you mean 'adam'", {"optimizer": "adma"}),
        ("samples of one step", {"batch": 0}),
        ("has 3 devices, and", {"meshes": [(3,)]}),
    ):
        with pytest.raises(InputError, match=words):
            pipeplan.shard(**{"model": model, "cluster": CLUSTER, "batch": 2, **wrong})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="--device meta"):
        pipeplan.shard(replace(model, operators={}, layers=tuple(replace(own, operators="") for own in model.layers)),
                       CLUSTER, 2)  # fmt: skip
    first, second = model.layers
    with pytest.raises(InputError, match=r"form a chain; 'l1'.* reads nothing, not 'l0'"):
        pipeplan.shard(replace(model, layers=(first, replace(second, inputs=()))), CLUSTER, 2)
    with pytest.raises(PipeplanError, match=r"was not found in 0 s; give it more time"):
        pipeplan.shard(model, CLUSTER, 2, time_limit=0.0)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text, one JSON object, files of the answer and of the frontier; bad shapes are refused."""
    model, cluster = tmp_path / "model.yaml", tmp_path / "cluster.yaml"
    write_model(perceptrons(3, (1, 2), block()), model)
    write_cluster(CLUSTER, cluster)
    asked = ["shard", str(model), str(cluster), "--batch", "2", "--optimizer", "momentum", "--mesh", "2x2,4"]
    saved, table = tmp_path / "answer.json", tmp_path / "points.csv"
    assert main([*asked, "-o", str(saved), "--csv", str(table)]) == 0
    text = capsys.readouterr().out
    assert "proved, no choice that fits is faster" in text
    assert "l0 and" in text or "\nl0\n" in text
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    kept = json.loads(saved.read_text())
    assert {**found, "seconds": 0} == {**kept, "seconds": 0}
    rows = list(csv.DictReader(table.open()))
    assert [int(row["memory_bytes"]) for row in rows] == [own["memory_bytes"] for own in found["frontier"]]
    assert found["frontier"][found["choice"]]["step_time_s"] == found["step_time_s"] == found["bound_s"]
    names = [name for own in found["layers"] for name in own["names"]]
    assert sorted(names) == ["l0", "l1", "l2"]
    axes = len(found["mesh"])
    for own in found["layers"]:
        assert [each["name"] for each in own["operators"]] == ["norm", "wide", "act", "narrow", "add"]
        for each in own["operators"]:
            assert all(len(row) == axes for row in (each["splits"], each["makes"], *each["weights"].values()))
    for shape in ("2x", "x", "2x2x", "two", "2,,2"):
        assert main([*asked[:-1], shape]) == 2
        assert "like 8x8" in capsys.readouterr().err
    assert main([*asked[:-1], "8"]) == 2
    assert "8 devices, and 'two by two' has 4" in capsys.readouterr().err


@pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")
def test_a_captured_llama_end_to_end() -> None:
    """Sizes from the meta device are those of a profile; what is chosen from them names every layer and weight."""
    import torch

    workload = tiny_llama(1)
    how = {"micro_batches": (4,), "loss": workload.loss, "group": ("LlamaDecoderLayer",)}

    def draw(samples: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        return workload.draw(samples, torch.Generator().manual_seed(0))

    described = pipeplan.profile(workload.module, draw, device="meta", **how)  # type: ignore[arg-type]
    measured = pipeplan.profile(workload.module, draw, repeats=1, warmup=0, **how)  # type: ignore[arg-type]
    assert not described.profiles
    assert described.layers == measured.layers
    assert described.operators == measured.operators
    assert (described.ties, described.dtype) == (measured.ties, measured.dtype)
    found = pipeplan.shard(described, CLUSTER, 4, [(4,)])
    assert {name for own in found.layers for name in own.names} == {layer.name for layer in described.layers}
    weights = {
        (own.names[0], name): row
        for own in found.layers
        for each in own.operators
        for name, row in each.weights.items()
    }
    known = [weight for graph in described.operators.values() for weight in graph.weights]
    assert len(weights) >= len({weight.name for weight in known})
    for each in found.products:
        assert each.received >= each.least - 1e-6
        assert each.rows == 4 * 12
    assert sum(each.inputs * each.outputs for each in found.products) == sum(
        parameter.numel() for name, parameter in workload.module.named_parameters()
        if parameter.dim() > 1 and "embed" not in name
    )  # fmt: skip


@pytest.mark.parametrize("backend", SOLVERS)
def test_a_programme_finds_the_choice_of_the_frontier(backend: str) -> None:
    """With and without a limit the solvers' choice has the least time that fits, with a bound at its value or below."""
    how = {"optimizer": "adam", "time_limit": 600}
    for layers in (1, 2):
        model = perceptrons(layers, (1, 2), of_many_tokens(100, 128))
        free = pipeplan.shard(model, CLUSTER, 2, [(2, 2)], **how)
        memory = free.points[1].memory + UNIT.runtime if layers > 1 else None
        best = pipeplan.shard(model, CLUSTER, 2, [(2, 2)], memory=memory, **how)
        found = pipeplan.shard(model, CLUSTER, 2, [(2, 2)], memory=memory, backend=backend, **how)
        assert found.point.time == best.point.time
        assert found.point.memory <= best.limit or best.limit is None
        assert found.bound <= found.point.time <= found.bound * (1 + 1e-6) + 1
        assert (found.points, found.number, found.backend) == ((found.point,), 0, backend)
        assert {name for own in found.layers for name in own.names} == set(model.names)
        assert "frontier" not in str(found)


@pytest.mark.parametrize("backend", SOLVERS)
def test_a_programme_names_the_least_memory(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing fits, the error has the memory at the frontier's end; without a choice it says what to change."""
    model = perceptrons(2, (1, 2), of_many_tokens(100, 128))
    least = pipeplan.shard(model, CLUSTER, 2, [(4,)], optimizer="adam").points[-1].memory
    for how in ({}, {"backend": backend}):
        with pytest.raises(InfeasibleError, match=rf"the least is {re.escape(format_bytes(least))}"):
            pipeplan.shard(model, CLUSTER, 2, [(4,)], optimizer="adam", memory=1000, **how)
    solve = programme.solve
    nothing = {"status": Status.UNKNOWN, "solution": None, "objective": None}
    monkeypatch.setattr(programme, "solve", lambda *given, **how: replace(solve(*given, **how), **nothing))
    with pytest.raises(PipeplanError, match=f"{backend} found no choice on .* in 9 s; give it more time"):
        pipeplan.shard(model, CLUSTER, 2, [(4,)], time_limit=9.0, backend=backend)


def test_the_command_takes_a_back_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--backend cbc`` returns one choice, named with its bound; an unknown back end is refused."""
    model, cluster = tmp_path / "model.yaml", tmp_path / "cluster.yaml"
    write_model(perceptrons(1), model)
    write_cluster(CLUSTER, cluster)
    asked = ["shard", str(model), str(cluster), "--batch", "2", "--mesh", "2x2", "--json", "--backend"]
    answers = []
    for backend in ("exact", *SOLVERS):
        assert main([*asked, backend]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert [found["backend"] for found in answers] == ["exact", *SOLVERS]
    assert len({found["step_time_s"] for found in answers}) == 1
    assert main([*asked, "simplex"]) == 2
    assert "cpsat" in capsys.readouterr().err
