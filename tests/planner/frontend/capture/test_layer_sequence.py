"""Choice of the front end, and names and contents of layers."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from helpers import captured_models
from helpers.captured_models import tiny_gnmt, tiny_llama, tiny_unet, tiny_vgg
from helpers.cut_by_hand import WIDTH, Dropping, Functional, LooksAtValues, ManyOutputs, ReturnsNumbers, Tied, Trunk
from pipeplan import load_model, profile
from pipeplan.core.errors import InputError
from pipeplan.frontend.batch import mapped, tensors
from pipeplan.frontend.capture import LayerSequence, Stages, capture_layers
from pipeplan.frontend.workload import Workload
from pipeplan.io.model_file import write_model


def inputs_of(workload: Workload, samples: int = 2) -> object:
    """A batch of the workload."""
    return workload.draw(samples, torch.Generator().manual_seed(0))[0]


def crossing(sequence: LayerSequence, inputs: object) -> list[list[tuple[tuple[int, ...], torch.dtype]]]:
    """Shapes and types of the tensors that every layer passes on."""
    given, found = tensors(inputs), []
    for layer in sequence.layers:
        made = layer(*given)
        given = made if isinstance(made, tuple) else (made,)
        found.append([(tuple(tensor.shape), tensor.dtype) for tensor in given])
    return found


def test_a_chain_is_taken_as_it_stands_and_the_graph_where_there_is_none() -> None:
    """VGG-16 is a sequence of its own modules; a U-shaped net is captured."""
    vgg, net = tiny_vgg(), tiny_unet()
    sequence = capture_layers(vgg.module, inputs_of(vgg))
    assert sequence.names == tuple(name for name, _ in vgg.module.named_children())
    assert sequence.layers == tuple(vgg.module)
    assert sequence.parameters[0] == {"weight": "conv1_1.weight", "bias": "conv1_1.bias"}
    sequence = capture_layers(net.module, inputs_of(net))
    assert sequence.names[:3] == ("down.0.first", "down.0.second", "down.1.first")
    assert sequence.parameters[0]["body.down_0_first_weight"] == "down.0.first.weight"


def test_the_users_own_stages_pass_several_tensors() -> None:
    """`Stages` are layers unchanged; a tuple that one returns gives the arguments of the next."""

    class Fork(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return x + y, y

    class Join(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.linear(x) * y

    module, inputs = Stages(Fork(), Join()), (torch.randn(2, WIDTH), torch.randn(2, WIDTH))
    sequence = capture_layers(module, inputs)
    assert (sequence.names, sequence.layers, sequence.kinds) == (("0", "1"), tuple(module), ("Fork", "Join"))
    assert sequence.parameters[1] == {"linear.weight": "1.linear.weight", "linear.bias": "1.linear.bias"}
    torch.testing.assert_close(sequence.layers[1](*sequence.layers[0](*inputs)), module(*inputs))


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (tiny_gnmt, ("encoder.embedding", "encoder.both_ways", "encoder.layers.0", "encoder.layers.1", "embedding")),
        (tiny_llama, ("model.embed_tokens", "model.layers.0.self_attn")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_layers_are_named_by_their_modules(build: object, expected: tuple[str, ...]) -> None:
    """Names are paths of modules, so that a plan is readable."""
    if build is not tiny_gnmt:
        pytest.importorskip("transformers")
    workload = build()  # type: ignore[operator]
    sequence = capture_layers(workload.module, inputs_of(workload), both_modes=False)
    assert sequence.names[: len(expected)] == expected
    assert len(set(sequence.names)) == len(sequence.names)


def test_names_depend_on_neither_device_nor_samples() -> None:
    """Layers and parameters are the same on meta or CPU, for 2 samples or 3."""
    workload = tiny_unet()
    sequences = [capture_layers(workload.module, inputs_of(workload, n), both_modes=False) for n in (2, 3)]
    meta = copy.deepcopy(workload.module).to("meta")
    blank = mapped(inputs_of(workload), lambda tensor: tensor.to("meta"))
    sequences.append(capture_layers(meta, blank, both_modes=False))
    assert (
        len({(each.names, each.kinds, *(tuple(sorted(p.items())) for p in each.parameters)) for each in sequences}) == 1
    )


@pytest.mark.slow
@pytest.mark.parametrize("build", ["tiny_unet", "tiny_resnet", "tiny_t5"])
def test_names_are_the_same_in_every_process(build: str) -> None:
    """Two new processes, with different hash seeds, find the same names and pass on the same tensors."""
    code = (
        f"import torch; from helpers.captured_models import {build};"
        f"from pipeplan.frontend.capture import capture_layers; w = {build}();"
        "sequence = capture_layers(w.module, w.draw(2, torch.Generator())[0], front_end='graph', both_modes=False);"
        "print(sequence.names, [layer.body.code for layer in sequence.layers])"
    )
    folder = Path(captured_models.__file__).parent.parent  # from which ``helpers`` can be imported
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


@pytest.mark.parametrize("build", [tiny_gnmt, tiny_unet])
def test_layers_run_on_the_meta_device(build: object) -> None:
    """On meta, the layers pass on tensors of the same shapes and types as on CPU."""
    workload = build()  # type: ignore[operator]
    inputs = inputs_of(workload)
    real = capture_layers(workload.module, inputs, front_end="graph", both_modes=False)
    blank = mapped(inputs, lambda tensor: tensor.to("meta"))
    empty = capture_layers(copy.deepcopy(workload.module).to("meta"), blank, front_end="graph", both_modes=False)
    assert all(p.is_meta for layer in empty.layers for p in layer.parameters())
    assert crossing(empty, blank) == crossing(real, inputs)


def test_layers_hold_the_modules_own_tensors_once() -> None:
    """Every parameter and buffer of the module is in a layer, the very object, under a name of the module's."""
    module = Tied()
    sequence = capture_layers(module, torch.arange(4).view(2, 2))
    held = [
        (unsplit, layer.get_parameter(local))
        for layer, names in zip(sequence.layers, sequence.parameters, strict=True)
        for local, unsplit in names.items()
    ]
    known = dict(module.named_parameters(remove_duplicate=False))
    assert all(tensor is known[name] for name, tensor in held)
    assert {name for name, _ in held} == set(known)  # a name for each use: the embedding's and the head's
    assert [name for names in sequence.parameters for name in names.values()].count("unused.weight") == 1


def test_persistent_buffers_only_are_in_the_state() -> None:
    """The layers' state dicts have the names of the module's, and no others."""
    pytest.importorskip("transformers")
    workload = tiny_llama(layers=1)
    sequence = capture_layers(workload.module, inputs_of(workload), both_modes=False)
    found = set()
    for layer, names in zip(sequence.layers, sequence.parameters, strict=True):
        found |= {names[local] for local in layer.state_dict()}
        assert set(layer.state_dict()) <= set(names)
    assert found == set(workload.module.state_dict())


def test_groups_stay_whole() -> None:
    """A module that matches a pattern of paths or a class name is not cut inside."""
    workload = tiny_unet()
    inputs = inputs_of(workload)
    assert capture_layers(workload.module, inputs, both_modes=False, group=["Twice", "up.*"]).names == (
        *("down.0", "down.1", "bottom", "up.1", "up.0", "head"),
    )


def test_a_model_without_modules_is_cut_between_its_operations(tmp_path: Path) -> None:
    """Layers are then named by operations, not cut within a skip; and such names survive in a file."""
    module, inputs = Functional(), torch.randn(2, WIDTH)
    sequence = capture_layers(module, inputs)
    assert sequence.names == ("linear", "linear#2", "linear#3", "linear#4", "linear#5")
    assert all(len(shapes) == 1 for shapes in crossing(sequence, inputs))
    model = profile(module, inputs, micro_batches=(2,), repeats=1, warmup=0)
    write_model(model, tmp_path / "model.yaml")
    assert load_model(str(tmp_path / "model.yaml")).layers == model.layers


def test_another_number_of_samples_is_refused() -> None:
    """A layer called with another micro-batch size is refused, naming the captured size."""
    sequence = capture_layers(Dropping(), torch.randn(4, WIDTH), front_end="graph")
    with pytest.raises(InputError, match=r"\(4, 6\) and was called with \(3, 6\)"):
        sequence.layers[0](torch.randn(3, WIDTH))


@pytest.mark.parametrize(
    ("module", "inputs", "words"),
    [
        (LooksAtValues(), torch.randn(2, WIDTH), "depends on values in the batch"),
        (ReturnsNumbers(), torch.randn(2, WIDTH), "returns no tensor"),
        (Trunk(), torch.randn(2, WIDTH), "NotImplementedError"),
        (nn.Linear(WIDTH, WIDTH), torch.randn(2, WIDTH), "nothing to cut"),
        (ManyOutputs(), {"x": torch.randn(2, WIDTH), "scale": None}, "may hold tensors only"),
        (Trunk(), torch.randn(2, WIDTH + 1), "same reduction dim"),
    ],
    ids=["values", "numbers", "raises", "one layer", "no tensor in", "wrong shape"],
)
def test_what_cannot_be_captured_is_explained(module: nn.Module, inputs: object, words: str) -> None:
    """The error names the module and the reason, and is an `InputError`."""
    with pytest.raises(InputError, match=words):
        capture_layers(module, inputs, front_end="graph")


def test_neither_chain_nor_graph_tells_both_reasons() -> None:
    """If no front end can describe a module, the error has the reason of each."""
    for seed in range(4):  # a branch that leaves the tensor as it is makes no chain either
        torch.manual_seed(seed)
        with pytest.raises(InputError, match=r"depends on values(.|\n)*Nor is it a chain"):
            capture_layers(LooksAtValues(), torch.randn(2, WIDTH))


def test_an_unknown_front_end_is_refused() -> None:
    """The error lists the known front ends."""
    with pytest.raises(InputError, match="choose from auto, chain, graph"):
        capture_layers(Dropping(), torch.randn(2, WIDTH), front_end="fx")  # type: ignore[arg-type]
