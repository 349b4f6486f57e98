"""Models as YAML: chains by default, folded repetition, profiles by layer name."""

from typing import Any

import pytest
import yaml

from pipeplan.core.errors import InputError
from pipeplan.core.model import Layer, Model, Work
from pipeplan.io.model_file import model_data, model_from_data
from pipeplan.io.repeat import Group, fold
from pipeplan.io.text import yaml_text

COST = {
    "forward": "1ms",
    "backward": "2ms",
    "input_gradient": "1ms",
    "weight_gradient": "1ms",
    "saved": "1MiB",
    "output": 8,
}


def load(text: str) -> Model:
    """Read a model from text."""
    return model_from_data(yaml.safe_load(text), "x.yaml")


def blocks(count: int) -> Model:
    """An embedding, so many pairs of attention and feed-forward network, and a head."""
    layers = [Layer("embed", 100)]
    for i in range(count):
        for part in ("attention", "mlp"):
            layers.append(Layer(f"h.{i}.{part}", 2**20, (layers[-1].name,), Work(3, 2, 1, 8, 16), part))
    layers.append(Layer("head", 100, (layers[-1].name, "embed")))
    return Model("blocks", tuple(layers))


def test_a_layer_reads_the_one_before_unless_it_says_otherwise() -> None:
    """Inputs left out are the layer before; an empty list is the batch alone."""
    model = load("{name: m, layers: [{name: a}, {name: b}, {name: c, inputs: [a]}, {name: d, inputs: []}]}")
    assert [layer.inputs for layer in model.layers] == [(), ("a",), ("a",), ()]


def test_a_group_repeats_with_its_number_in_names_and_inputs() -> None:
    """{i} counts from first; a block's first layer reads the block before."""
    model = load(
        """
name: m
layers:
  - {name: embed}
  - repeat: 3
    first: 2
    layers: [{name: 'b{i}.x'}, {name: 'b{i}.y', inputs: ['b{i}.x', embed], parameters: 1KiB}]
"""
    )
    assert model.names == ("embed", "b2.x", "b2.y", "b3.x", "b3.y", "b4.x", "b4.y")
    assert model.layers[3].inputs == ("b2.y",)
    assert model.layers[4].inputs == ("b3.x", "embed")
    assert model.layers[4].parameters == 1024


def test_a_deep_model_is_a_short_file() -> None:
    """96 blocks are written once, and come back as 96."""
    model = blocks(96)
    text = yaml_text(model_data(model))
    assert len(text.splitlines()) == 10
    assert "repeat: 96" in text
    assert model_from_data(yaml.safe_load(text), "x") == model


def test_only_equal_layers_fold() -> None:
    """A block that differs, by a byte or by a gap in the numbers, ends the group."""
    layers = [Layer(f"b{i}", 5 if i != 3 else 6) for i in (0, 1, 2, 3, 4, 6, 7)]
    folded = [(e.count, e.first) if isinstance(e, Group) else e.name for e in fold(layers)]
    assert folded == [(3, 0), "b3", "b4", (2, 6)]


def test_numbers_that_stay_are_left_alone() -> None:
    """Only the number that counts becomes {i}; a constant one in the same name stays."""
    (group,) = fold([Layer(f"net7.{i}.w3", 1) for i in range(4)])
    assert isinstance(group, Group)
    assert group.layers[0].name == "net7.{i}.w3"
    assert len(group.expand()) == 4


def test_profiles_are_tables_by_layer_name() -> None:
    """Costs may come in any order; units are read."""
    model = model_from_data(
        {
            "name": "m",
            "layers": [{"name": "a"}, {"name": "b"}],
            "profiles": [
                {
                    "device": "d",
                    "micro_batch": 4,
                    "provenance": {"how": "measured", "source": "here"},
                    "costs": {"b": COST | {"update": "5us"}, "a": COST},
                }
            ],
        },
        "x",
    )
    a, b = model.profiles[0].costs
    assert (a.forward, a.backward, a.saved, a.output, a.update) == (10**6, 2 * 10**6, 2**20, 8, 0)
    assert b.update == 5000


def test_everything_wrong_is_said_at_once() -> None:
    """Bad fields of layers, groups and profiles stand in one error, each with its path."""
    data: dict[str, Any] = {
        "name": "m",
        "layers": [
            {"nam": "a"},
            {"name": "b", "parameters": "-3"},
            {"repeat": 2, "layers": [{"name": "c{i}", "inputs": "b"}]},
        ],
        "profiles": [
            {"device": "d", "micro_batch": 0, "provenance": {"how": "guessed", "source": "x"}, "costs": {"a": {}}}
        ],
    }
    with pytest.raises(InputError) as caught:
        model_from_data(data, "x.yaml")
    said = str(caught.value)
    for part in [
        "layers[0].nam: unknown field; did you mean 'name'?",
        "layers[1].parameters: '-3' is not a size",
        "layers[2].layers[0].inputs: should be a list, found 'b'",
        "profiles[0].micro_batch: should be greater than or equal to 1, found 0",
        "profiles[0].provenance.how: should be 'measured', 'imported' or 'analytic', found 'guessed'",
        "profiles[0].costs.a.forward: missing",
    ]:
        assert part in said


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([{"kind": "x"}], r"layers\[0\]\.name: missing"),
        ([{"repeat": 2}], r"layers\[0\]\.layers: missing"),
        ([{"layers": [{"name": "a"}]}], r"layers\[0\]\.repeat: missing"),
        ([{"repeat": 2, "layers": [{"name": "a"}]}], r"layers\[0\]\.layers\[0\]\.name: 'a' needs \{i\}"),
        ([{"repeat": 2, "name": "b", "layers": [{"name": "a{i}"}]}], r"layers\[0\]\.name: a group has none"),
        ([{"name": "a"}, {"name": "a"}], "two layers are called 'a'"),
        ([{"name": "a", "inputs": ["b"]}, {"name": "b"}], "reads 'b', which is not an earlier layer"),
        ([], "no layers"),
    ],
)
def test_what_is_neither_a_layer_nor_a_group(layers: list[dict[str, Any]], message: str) -> None:
    """An entry must be one or the other, and names must differ."""
    with pytest.raises(InputError, match=message):
        model_from_data({"name": "m", "layers": layers}, "x")


def test_costs_of_unknown_and_forgotten_layers() -> None:
    """A misspelt layer is named twice: as missing, and as unknown with the near miss."""
    profile = {
        "device": "d",
        "micro_batch": 1,
        "provenance": {"how": "measured", "source": "x"},
        "costs": {"con1": COST},
    }
    with pytest.raises(InputError) as caught:
        model_from_data({"name": "m", "layers": [{"name": "conv1"}], "profiles": [profile]}, "x")
    assert "profiles[0].costs.conv1: missing" in str(caught.value)
    assert "profiles[0].costs.con1: the model has no such layer; did you mean 'conv1'?" in str(caught.value)
