"""Losses of teams on logits that are split along their classes: what they cost, where they are searched, and plans."""

from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from helpers.instances import equal_devices
from helpers.operators import COST, linear, pair, perceptrons, with_output
from helpers.ways import cuts, cuts_of
from pipeplan.analysis.explain.question import explain_plan
from pipeplan.core.cluster import DeviceKind, Link
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.operators import INPUT, SAMPLE, CrossEntropy, Operator, OperatorGraph
from pipeplan.core.plan import Plan
from pipeplan.core.strategies import UNSPLIT, AxisStrategy
from pipeplan.core.wording import team_suffix
from pipeplan.costs.sharding.batches import of_batch, with_samples
from pipeplan.costs.sharding.placements import ends_of
from pipeplan.costs.sharding.prices import class_axes, strategy_costs
from pipeplan.costs.sharding.question import team_questions
from pipeplan.costs.sharding.rooflines import Rooflines
from pipeplan.costs.sharding.shapes import Mesh
from pipeplan.costs.sharding.splits import MeshTeams
from pipeplan.costs.sharding.teams import Teams
from pipeplan.io.job_file import job_data, job_from_data
from pipeplan.io.load import load_model
from pipeplan.io.model_file import model_data, model_from_data
from pipeplan.solve import solve
from pipeplan.solve.reach import searched_for

ROUND = 1
"""Nanoseconds of latency of the link, which sends a byte in one."""


def head(classes: int = 32, rows: int = 10, kept: bool = True) -> OperatorGraph:
    """A linear map of ten tokens to logits, and the cross entropy of these."""
    axes, loops = ("token", "class"), {"class": classes}
    softmax = Operator("softmax", "softmax", loops, {"head": axes}, axes, 10 * classes, kept)
    loss = Operator("loss", "loss", loops, {"softmax": axes}, (), 1)
    map_ = linear("head", INPUT, 8, classes, kept=False)
    return OperatorGraph((map_, softmax, loss), {INPUT: 80}, loss=CrossEntropy(("softmax", "loss"), rows))


def model(graph: OperatorGraph | None = None) -> Model:
    """Three perceptrons and a head."""
    graph, body = graph or head(), perceptrons(sizes=(1,))
    last = replace(body.layers[-1], parameters=graph.parameters, operators="head")
    return replace(body, layers=(*body.layers[:-1], last), operators={"pair": pair(), "head": graph})


def test_members_exchange_two_numbers_a_row_and_the_loss() -> None:
    """Split logits cost three small sums forward and nothing backward; whole ones are gathered."""
    cluster = equal_devices(2, link=Link(10**9, ROUND))
    (found,) = team_questions(model(), cluster, Job(1, teams=(2,)))
    (whole,) = team_questions(model(), cluster, Job(1, teams=(2,), vocabulary_parallel=False))
    assert cuts(model(), found.split, 3) == {"head.weight": 0, "softmax": "classes"}
    assert cuts(model(), whole.split, 3) == {"head.weight": 0}
    own, before = (each.model.profiles[0].costs[-1] for each in (found, whole))
    rows, number, logits = 2 * (ROUND + 5), 2 * (ROUND + 1), ROUND + 160
    assert own.forward == COST.forward // 2 + 2 * rows + number
    assert before.forward == COST.forward // 2 + logits
    assert own.backward == before.backward == COST.backward // 2 + 2 * (ROUND + 40)  # the gradient of the input
    assert (own.saved, before.saved) == (COST.saved // 2, COST.saved)
    assert (own.output, before.output) == (COST.output // 2, COST.output)


def test_devices_exchange_numbers_of_their_own_rows() -> None:
    """Of four samples of ten rows, of which an axis of two has two each, 2 numbers a row take 2 (2 + 20) ns."""
    graph = with_samples(head(), True)
    own = Rooflines(graph, COST, graph.parameters, DeviceKind("unit"), None, 4)
    mesh = Mesh((2, 2), (Link(10**9, ROUND),) * 2)

    def exchanged(first: AxisStrategy, own: Rooflines = own) -> int:
        (loss,) = (each for each in own.graph.operators if each.name == own.graph.loss_name)
        cost = [
            strategy_costs(own, loss, (first, entry), mesh)[0]
            for entry in (AxisStrategy("class"), AxisStrategy(UNSPLIT))
        ]
        return int(cost[0] - cost[1])

    assert exchanged(AxisStrategy(UNSPLIT)) == 2 * (2 * ROUND + 40)
    assert exchanged(AxisStrategy(SAMPLE)) == 2 * (2 * ROUND + 20)
    # a batch of four as one sample has as many rows
    every = of_batch(head(), 4)
    batch = Rooflines(every, COST, every.parameters, DeviceKind("unit"), None, 1)
    assert exchanged(AxisStrategy(UNSPLIT), batch) == exchanged(AxisStrategy(UNSPLIT))


def test_members_with_a_part_of_the_loss_have_their_part_of_its_output_rounded_up() -> None:
    """Of 81 bytes 41."""
    cluster, whole = equal_devices(2, link=Link(10**9, ROUND)), model()
    whole = replace(whole, profiles=tuple(with_output(profile, 81) for profile in whole.profiles))
    (found,) = team_questions(whole, cluster, Job(1, teams=(2,)))
    assert [cost.output for cost in found.model.profiles[0].costs] == [81, 81, 81, 41]


def test_rows_cost_as_many_sums_as_a_whole_loss_saves() -> None:
    """Where numbers for each row take as long as logits, the loss gets whole ones."""
    own, cluster = model(head(32, 4000, kept=False)), equal_devices(2, link=Link(10**9, ROUND))
    assert all("softmax" not in cuts(own, each.split, 3) for each in team_questions(own, cluster, Job(1, teams=(2,))))
    less = model(head(32, 4, kept=False))
    (cheap,) = team_questions(less, cluster, Job(1, teams=(2,)))
    assert "softmax" in cuts(less, cheap.split, 3)


def test_classes_that_a_team_does_not_divide_are_whole() -> None:
    """Neither are the columns of the head split then."""
    (found,) = team_questions(model(head(31)), equal_devices(2, link=Link(10**9, ROUND)), Job(1, teams=(2,)))
    assert cuts(model(head(31)), found.split, 3) == {"head.weight": 1}


def test_plans_say_that_the_loss_is_split(tmp_path: Path) -> None:
    """In their file and in all strategies about them; the softmax is no parameter that is shared out."""
    cluster = equal_devices(2, link=Link(10**9, ROUND))
    found = solve(model(), cluster, 1, teams=(2,), workers=1)
    split = "teams of 2, loss split by classes"
    assert split in str(found) and split in explain_plan(found.plan).headline
    assert team_suffix((4,), ("loss",), (2, 2)) == ", teams of 2 x 2, loss split by classes"
    assert cuts_of(model(), "head", found.plan.strategies[3][1]) == {"head.weight": 0, "softmax": "classes"}
    found.plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == found.plan
    whole = solve(model(), cluster, 1, teams=(2,), vocabulary_parallel=False, workers=1)
    assert cuts_of(model(), "head", whole.plan.strategies[3][1]) == {"head.weight": 0}
    assert whole.value > found.value


def test_the_answer_says_why_no_loss_is_split() -> None:
    """It was left out, or is not known to be a cross entropy; otherwise it is among what was searched."""
    cluster, unknown = equal_devices(2, link=Link(10**9, ROUND)), model(replace(head(), loss=None))
    found = searched_for(model(), cluster, Job(1, teams=(2,)))
    assert "logits split along their classes" in found.teams
    assert not any("vocabulary" in each for each in found.not_searched)
    for asked, job in ((model(), Job(1, teams=(2,), vocabulary_parallel=False)), (unknown, Job(1, teams=(2,)))):
        found = searched_for(asked, cluster, job)
        assert "classes" not in found.teams
        (said,) = (each for each in found.not_searched if "vocabulary" in each)
        assert ("not known to be a cross entropy" in said) == (asked is unknown)


def test_meshes_split_losses() -> None:
    """Along one axis or both, of the logits each device then has its classes; none without vocabulary parallelism."""
    unit = equal_devices(2, link=Link(10**9, ROUND))
    cluster = replace(unit, nodes=unit.nodes * 2, network=Link(10**7, ROUND))
    for wish in (True, False):
        teams = Teams(model(), cluster, 4, (1,), "adam", False, vocabulary_parallel=wish)
        parts = set()
        for own in MeshTeams.of(teams, 1, 2):
            for way in own.ways():
                strategies = dict(way.strategies)["head", *ends_of(way.placements, way.passes, 3)]
                axes = class_axes(strategies.operators["softmax"].strategy)
                parts.add(count := prod(own.sizes[axis] for axis in axes))
                assert own.member(way, 3, teams.kinds[0], 1).output == -(-COST.output // count)
        assert parts == ({2, 4} if wish else {1})
    assert "vocabulary" not in str(searched_for(model(), cluster, Job(1, teams=(4,))).not_searched)


def test_plans_on_meshes_have_the_words_of_the_loss(tmp_path: Path) -> None:
    """Over a slow network it is split in nodes; whole it takes longer."""
    unit = equal_devices(2, link=Link(10**9, ROUND))
    cluster = replace(unit, nodes=unit.nodes * 2, network=Link(10**6, ROUND))
    asked = {"teams": (4,), "depths": (1,), "workers": 1}
    found, whole = (solve(model(), cluster, 1, vocabulary_parallel=wish, **asked) for wish in (True, False))
    assert found.value == found.bound < whole.value
    for plan, axes in ((found.plan, (1,)), (whole.plan, ())):
        strategies = dict(plan.strategies)["l3"].operators
        assert plan.mesh == (2, 2) and plan.vocabulary is None
        assert class_axes(strategies["softmax"].strategy) == class_axes(strategies["loss"].strategy) == axes
    found.plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == found.plan


def test_files_have_losses_and_the_wish() -> None:
    """A model and a job are read as they were written."""
    assert model_from_data(model_data(model()), "test") == model()
    job = Job(1, teams=(2,), vocabulary_parallel=False)
    assert job_data(job)["vocabulary_parallel"] is False
    assert job_from_data(job_data(job), "test") == job
    assert load_model("llama3-8b").operators["head"].loss == CrossEntropy(("log_softmax", "loss"), 4 * 8192)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"loss": CrossEntropy((), 1)}, "has no operators; leave it out"),
        ({"loss": CrossEntropy(("softmux",), 1)}, "'softmux' is none of the operators; did you mean 'softmax'"),
        ({"loss": CrossEntropy(("softmax",), 1)}, "'softmax', the last one, makes 2 axes, and not a number"),
        ({"loss": CrossEntropy(("loss", "softmax"), 1)}, "'loss' makes no axis with its loop"),
        ({"loss": CrossEntropy(("head", "softmax", "loss"), 1)}, "'head' has 2 loops and 1 weights"),
        ({"outputs": ("loss", "softmax")}, "'softmax' is read by others than the next one"),
    ],
)
def test_other_losses_are_refused(change: dict[str, object], said: str) -> None:
    """Each fault is named: no operators, unknown ones, and what is no chain from logits to a number."""
    with pytest.raises(InputError, match=said):
        replace(head(), **change)


def test_only_the_last_layer_has_a_loss() -> None:
    """Operators of an earlier layer may not."""
    with pytest.raises(InputError, match="layer 'l0' have a loss, and it is not the last layer"):
        replace(perceptrons(graph=head()))
