"""Import of PipeDream's graph.txt: kept, dropped and merged nodes, and notes."""

from pathlib import Path

import pytest

from helpers.foreign_workloads import BRANCH, IMAGE_BYTES, IMAGES, edges, line
from helpers.shared_data import shared
from pipeplan import load_model
from pipeplan.core.errors import InputError
from pipeplan.core.model import Model
from pipeplan.io.importers.pipedream import pipedream_from_text


def times(model: Model) -> list[tuple[int, int]]:
    """Forward and backward of every layer."""
    return [(cost.forward, cost.backward) for cost in model.profiles[0].costs]


def test_order_times_and_edges() -> None:
    """Layers come in topological order, ties by creation number; milliseconds become nanoseconds; edges stay."""
    model = pipedream_from_text(BRANCH, "branch")
    assert model.names == ("node2", "node3", "node4", "node5", "node10")
    assert times(model)[0] == (1_500_000, 3_001_000)
    assert [layer.inputs for layer in model.layers] == [(), (), ("node2",), ("node4", "node3"), ("node5", "node2")]
    assert [layer.parameters for layer in model.layers] == [896, 96, 0, 0, 64]
    assert model.layers[0].kind == "Conv2d"


def test_line_order_does_not_matter() -> None:
    """The same lines in another order give the same layers and costs."""
    turned = pipedream_from_text("\n".join(reversed(BRANCH.splitlines())), "branch")
    assert turned.names == pipedream_from_text(BRANCH, "branch").names
    assert times(turned) == times(pipedream_from_text(BRANCH, "branch"))


def test_inputs_and_unread_items_are_dropped() -> None:
    """Input nodes carry loading time, and items that nothing reads carry nothing: both go, and it is said."""
    model = pipedream_from_text(BRANCH, "branch")
    assert not {"node1", "node7", "node8"} & set(model.names)
    assert any("node7, node8" in note for note in model.notes)


def test_several_outputs_are_summed_and_cuts_count_each_tensor_once() -> None:
    """[x; y] is one output of x + y bytes; a layer read twice beyond a cut crosses it once."""
    model = pipedream_from_text(BRANCH, "branch")
    assert model.profiles[0].costs[1].output == 2048 + 1024 + 8
    assert model.crossing(2) == (0, 1, 2)
    assert model.crossing(3) == (0, 3)


def test_the_backward_is_halved_where_there_are_parameters() -> None:
    """Halves add up to the whole, to the nanosecond; without parameters there is no weight gradient."""
    costs = pipedream_from_text(BRANCH, "branch").profiles[0].costs
    assert (costs[0].input_gradient, costs[0].weight_gradient) == (1_500_500, 1_500_500)
    assert (costs[2].input_gradient, costs[2].weight_gradient) == (125_000, 0)
    assert all(cost.input_gradient + cost.weight_gradient == cost.backward for cost in costs)


def test_samples_from_images() -> None:
    """The mini-batch holds as many samples as the input holds colour images of 224 × 224."""
    model = pipedream_from_text(BRANCH, "branch")
    assert model.profiles[0].micro_batch == IMAGES
    assert model.profiles[0].device == "profiled"
    assert model.profiles[0].provenance.how == "imported"


def test_samples_from_larger_images() -> None:
    """Inception's images have 299 × 299 points."""
    text = BRANCH.replace(str(IMAGES * IMAGE_BYTES), str(5 * 4 * 3 * 299 * 299))
    assert pipedream_from_text(text, "inception").profiles[0].micro_batch == 5


def test_samples_from_recurrent_states_or_not_at_all() -> None:
    """A recurrent layer's last state has one row a sample; without one, the mini-batch counts as one sample."""
    known = line("node1", "LSTM(16, 32)", 1, 2, f"[{4 * 6 * 9 * 32}.0; {4 * 6 * 32}.0; {4 * 6 * 32}.0]")
    assert pipedream_from_text(known, "lstm").profiles[0].micro_batch == 6
    unknown = pipedream_from_text(line("node1", "Linear(2, 2)", 1, 2), "linear")
    assert unknown.profiles[0].micro_batch == 1
    assert "counts as one" in unknown.notes[0]
    assert pipedream_from_text(BRANCH, "branch", samples=3).profiles[0].micro_batch == 3


def test_near_dialects_are_read() -> None:
    """Values without decimals, trailing blanks and a stage id are no obstacle."""
    text = (
        "node1 -- Block -- forward_compute_time=2, backward_compute_time=3, activation_size=[4; 5], parameter_size=6 "
        "-- stage_id=0 \n"
    )
    (cost,) = pipedream_from_text(text, "x").profiles[0].costs
    assert (cost.forward, cost.backward, cost.output) == (2 * 10**6, 3 * 10**6, 9)


TRANSLATION = "\n".join(
    [
        line("node1", "Input0", size="0.0"),
        line("node2", "Embedding(100, 8, padding_idx=0)", 0.1, 6.9, "800", 3200),
        line("node3", "EmuBidirLSTM(  (bidir): LSTM(8, 8))", 5.2, 0.016, "1600", 512),
        line("node4", "LSTM(16, 8)", 3.1, 5.3, "[800; 64; 64]", 768),
        line("node5", "LSTM(16, 8)", 3.2, 5.4, "[800; 64; 64]", 768),
        line("node6", "LSTM(16, 8)", 3.1, 15.9, "[800; 64; 64]", 768),
        line("node7", "__getitem__(0)", size="800"),
        line("node8", "Classifier(  (classifier): Linear(8, 100))", 5.6, 1.2, "8000", 3600),
        *edges((1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 8)),
    ]
)
"""A translation net as its profiler saw it: backward time booked on the embedding and on the last LSTM."""


def test_misattributed_neighbours_are_named_and_kept_apart() -> None:
    """By default every node stays a layer, and the notes name both pairs."""
    model = pipedream_from_text(TRANSLATION, "t")
    assert model.names == tuple(f"node{i}" for i in range(2, 9))
    said = [note for note in model.notes if "booked" in note]
    assert len(said) == 2
    assert "node2" in said[0] and "node3" in said[0] and "kept apart" in said[0]
    assert "node6" in said[1] and "node8" in said[1]


def test_misattributed_neighbours_are_merged_on_request() -> None:
    """Each pair, with all between, is one layer whose costs are the sums and whose output is what leaves it."""
    model = pipedream_from_text(TRANSLATION, "t", merge_misbooked=True)
    assert model.names == ("node2+node3", "node4", "node5", "node6+node7+node8")
    first, last = model.profiles[0].costs[0], model.profiles[0].costs[3]
    assert (first.forward, first.backward, first.output) == (5_300_000, 6_916_000, 1600)
    assert (last.forward, last.backward, last.output) == (8_700_000, 17_100_000, 8000)
    assert model.layers[1].inputs == ("node2+node3",)
    assert model.layers[0].parameters == 3712
    assert sum(map(sum, times(model))) == sum(map(sum, times(pipedream_from_text(TRANSLATION, "t"))))


def test_ordinary_nets_are_not_suspected() -> None:
    """A net without recurrent layers has no misattributed times, merged or not."""
    assert pipedream_from_text(BRANCH, "b", merge_misbooked=True).names == pipedream_from_text(BRANCH, "b").names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no line describes a node"),
        (line("node1", "Input"), "nothing is left"),
        (
            BRANCH + "\n" + line("node2", "x") + "\n\tnode2 -- node77\nrubbish",
            r"(?s)line 18: node2 was.*line 20: neither.*line 19: no line describes node77",
        ),
        (BRANCH.replace("=1.500", "=soon"), r"line 3: 'soon' is not a number"),
        (BRANCH.replace("backward_compute_time=3.001, ", ""), r"line 3: node2 has no backward_compute_time"),
        (BRANCH.replace("=1.500", "=-1.500"), r"below zero"),
        (BRANCH + "\n" + edges((10, 4))[0], "circle"),
    ],
)
def test_wrong_lines_are_named(text: str, message: str) -> None:
    """Every wrong line is named by its number."""
    with pytest.raises(InputError, match=message):
        pipedream_from_text(text, "x")


def bottleneck(model: Model, stages: int) -> float:
    """Milliseconds of the largest stage in the best cut of the row into stages, by dynamic programme."""
    loads = [cost.forward + cost.backward for cost in model.profiles[0].costs]
    ends = [0]
    for load in loads:
        ends.append(ends[-1] + load)
    best = list(ends)
    for _ in range(stages - 1):
        best = [min(max(best[i], end - ends[i]) for i in range(j + 1)) for j, end in enumerate(ends)]
    return best[-1] / 1e6


@pytest.mark.parametrize(
    ("name", "stages", "optimum"),
    [
        ("vgg16", 2, 370.931), ("vgg16", 4, 216.450), ("vgg16", 8, 159.531),
        ("resnet50", 4, 111.497), ("resnet50", 8, 58.447),
        ("gnmt", 4, 25.868), ("gnmt", 8, 19.032),
        ("gnmt_large", 4, 137.129), ("gnmt_large", 8, 82.845),
    ],
)  # fmt: skip
def test_public_profiles_have_the_known_chain_optima(name: str, stages: int, optimum: float) -> None:
    """The order of the layers yields the best chain cuts that are known for the public profiles."""
    model = load_model(shared(f"pipedream/{name}.graph.txt"))
    assert bottleneck(model, stages) == pytest.approx(optimum, abs=5e-4)


@pytest.mark.parametrize(("name", "samples"), [("vgg16", 128), ("alexnet", 256), ("gnmt", 32), ("gnmt_large", 128)])
def test_public_profiles_tell_their_batch(name: str, samples: int) -> None:
    """Images and recurrent states tell the size of the profiled mini-batch."""
    assert load_model(shared(f"pipedream/{name}.graph.txt")).profiles[0].micro_batch == samples


def test_merging_changes_the_public_gnmt() -> None:
    """With the last LSTM and the classifier in one layer, eight devices cannot do better than four."""
    path: Path = shared("pipedream/gnmt.graph.txt")
    merged = load_model(path, merge_misbooked=True)
    assert {"node4+node5", "node44+node45+node47+node48"} <= set(merged.names)
    assert bottleneck(merged, 4) == bottleneck(merged, 8) == pytest.approx(25.868)
