"""Shared weights from the model to the plan: refused ties, costs and gradient sums."""

from dataclasses import replace
from itertools import accumulate, pairwise
from random import Random

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from helpers.buckets import every_cut, left
from helpers.happening import happens
from helpers.instances import model_of
from pipeplan.analysis.explain.sensitivities import candidates
from pipeplan.analysis.explain.setting import Setting
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.errors import InputError, PlanError
from pipeplan.core.job import Job
from pipeplan.core.model import Layer, Model, Tie
from pipeplan.core.pipeline import layer_counts
from pipeplan.core.schedule import Kind, Schedule
from pipeplan.core.shared_weights import merge_overlapping, tied_stages, with_reductions
from pipeplan.core.validate import validate_plan, validate_schedule
from pipeplan.core.validate.deadlock import deadlocks
from pipeplan.costs.assembly import assemble
from pipeplan.costs.collectives import Ring, alone
from pipeplan.costs.network import least_together, together
from pipeplan.costs.pricing import price
from pipeplan.io.model_file import model_data, model_from_data
from pipeplan.io.text import yaml_text
from pipeplan.schedules import PLACED
from pipeplan.search.nodes.aggregate_problem import allocation_problem
from pipeplan.search.nodes.layouts import layouts
from pipeplan.search.result import as_json
from pipeplan.search.space.space import Space
from pipeplan.simulate import simulate
from pipeplan.solve import solve

MIB = 2**20
LINK = Link(10**9, 5)


def tied_ends(shared: int = 8 * MIB) -> Model:
    """Four equal layers of 8 MiB; the last one has the first one's matrix and nothing of its own."""
    model = model_of([10**6] * 4, parameters=[8 * MIB, 8 * MIB, 8 * MIB, 0], update=[800, 800, 800, 0], sizes=(1, 2))
    return replace(model, ties=(Tie(("l0", "l3"), shared),))


def cluster(devices: int = 2, memory: int | None = None) -> Cluster:
    """Equal devices in one node, joined at 1 GB/s."""
    return Cluster(
        "small", {"unit": DeviceKind("unit", memory=memory)}, (Node(("unit",) * devices, LINK),), overlap=Overlap.COPY
    )


@pytest.mark.parametrize(
    ("tie", "message"),
    [
        (Tie(("l0", "l9"), 4), "layer 'l9', which is not there"),
        (Tie(("l0",), 4), "two layers or more"),
        (Tie(("l3", "l0"), 4), "in the model's order"),
        (Tie(("l0", "l3"), 0), "share 0 bytes"),
        (Tie(("l0", "l3"), 9 * MIB), "'l0' has 8388608 bytes"),
    ],
)
def test_ties_that_make_no_sense_are_refused(tie: Tie, message: str) -> None:
    """Faults of a tie are reported by the model and, with their place, by the file."""
    with pytest.raises(InputError, match=message):
        replace(tied_ends(), ties=(tie,))
    data = yaml.safe_load(yaml_text(model_data(tied_ends())))
    data["ties"] = [{"layers": list(tie.layers), "parameters": tie.parameters}]
    with pytest.raises(InputError, match=rf"ties\[0\]: .*{message}"):
        model_from_data(data, "x.yaml")


def test_two_ties_of_one_layer_share_no_more_than_it_has() -> None:
    """Bytes of all ties that begin at a layer count together."""
    ties = (Tie(("l0", "l2"), 5 * MIB), Tie(("l0", "l3"), 5 * MIB))
    with pytest.raises(InputError, match="share 10485760 bytes"):
        replace(tied_ends(), ties=ties)


def test_a_file_without_ties_is_a_model_without_ties() -> None:
    """Files of before are read as they were, and a model's fingerprint changes only with its ties."""
    text = "{name: m, layers: [{name: a, parameters: 8}, {name: b}]}"
    plain = model_from_data(yaml.safe_load(text), "x.yaml")
    assert plain == Model("m", (Layer("a", 8), Layer("b", 0, ("a",))))
    assert "ties" not in model_data(plain)
    assert plain.fingerprint != replace(plain, ties=(Tie(("a", "b"), 8),)).fingerprint


def test_stages_that_share_are_grouped() -> None:
    """Groups that have a stage in common are one; layers on one stage, or on the same ranks, tie nothing."""
    assert merge_overlapping([(3, 1), (0, 2), (2, 5)]) == ((0, 2, 5), (1, 3))
    stages = [("a", "b"), ("c",), ("d", "e")]
    apart, turned = ((0, 1), (2, 3), (4, 5)), ((0, 1), (2, 3), (1, 0))
    assert tied_stages([("a", "b"), ("b", "d")], stages, apart) == ((0, 2),)
    assert tied_stages([("a", "d"), ("c", "e")], stages, apart) == ((0, 1, 2),)
    assert tied_stages([("d", "e")], stages, apart) == ()
    assert tied_stages([("b", "d")], stages, turned) == ()
    assert tied_stages([("a", "c", "e")], stages, turned) == ((0, 1),)


def test_reductions_are_added_once() -> None:
    """A tied stage without replicas gets a reduction ahead of its update; one that has it already keeps it."""
    schedule = Schedule.from_text("x", ["0F0 0B0 0R 0U", "0F1 0B1 0R 0U", "1F0 1B0 1U", "2F0 2B0 2U"])
    assert with_reductions(schedule, ((0, 3),)).as_text()[0] == "0F0 0B0 0R 0U"
    assert with_reductions(schedule, ((0, 2),)).as_text()[2:] == ("1F0 1B0 1U", "2F0 2B0 2R 2U")
    assert with_reductions(schedule, ()) is schedule


@pytest.mark.parametrize("copies", [1, 2])
def test_two_ties_over_the_same_devices_do_not_wait_for_each_other(copies: int) -> None:
    """Devices 0 and 3 of a loop have stages 0, 4 and 3, 7; weights of 0 and 7, and of 3 and 4, are summed together."""
    tied = ((0, 7), (3, 4))
    schedule = with_reductions(PLACED["interleaved"].write(4, 6, 2, copies), tied)
    assert not [*deadlocks(schedule, tied)]
    *_, last = schedule.orders
    assert [str(a) for a in last if a.kind is Kind.REDUCE] == ["7R", "3R"]


def test_what_a_split_tie_costs() -> None:
    """The later stage holds and updates a copy; both sum 8 MiB over a ring of all their replicas."""
    model, small = tied_ends(), cluster(3)
    d0, d1, d2 = small.devices
    chain = price(model, small, [(d0, d1), (d2,)], 1, Job(4, optimizer="adam", zero=(1,), overlap_reduction=False))
    first, last = assemble(chain, small, (0, 2, 4)).stages
    whole = 8 * MIB
    assert first.resident == 2 * (2 * whole + 2 * whole // 2)  # two layers; Adam's state is shared out
    assert last.resident == 2 * (2 * whole + 2 * whole)  # a layer and a copy
    half = LINK.occupancy(whole // 2)  # of a layer's two rounds: the sum of a share, and the gather of the next step
    assert (first.update, last.update) == (2 * 400, 800 + 800)
    assert (first.gather, last.gather) == (2 * half + LINK.latency, 0)
    third = -(-whole // 3)
    together = 4 * LINK.occupancy(third) + 4 * LINK.latency
    assert last.reduce == together
    assert first.reduce == together + half + LINK.latency  # besides, its second layer among its two replicas
    pair = price(model, small, [(d0, d1)], 1, Job(4, optimizer="adam", zero=(1,), overlap_reduction=False))
    alone = assemble(pair, small, (0, 4)).stages
    assert [(stage.reduce, stage.gather) for stage in alone] == [(3 * half + LINK.latency,) * 2]
    assert alone[0].resident == 3 * (2 * whole + whole)


def test_reductions_of_tied_stages_begin_together() -> None:
    """The last stage waits with its reduction for the first one's last backward."""
    model, small = tied_ends(), cluster()
    chain = price(model, small, small.devices, 1, Job(2))
    pipeline = assemble(chain, small, (0, 2, 4))
    assert pipeline.tied == ((0, 1),)
    lists = ["0F0 0F1 0B0 0B1 0R 0U", "1F0 1B0 1F1 1B1 1R 1U"]
    timeline = simulate(Schedule.from_text("x", lists), pipeline)
    begun = {str(span.action): span.start for span in timeline.spans}
    ended = {str(span.action): span.end for span in timeline.spans}
    assert begun["0R"] == begun["1R"] == ended["0B1"] > ended["1B1"]
    with pytest.raises(PlanError, match="missing 1R on device 1"):
        simulate(Schedule.from_text("x", [lists[0], lists[1].replace("1R ", "")]), pipeline)
    with pytest.raises(PlanError, match=r"tied stages \(0, 1\) share a device"):
        shared = replace(pipeline, placement=((0,), (0,)), runtime=(0,), limits=(0,))
        simulate(Schedule.from_text("x", [" ".join(lists)]), shared)


def test_the_validator_wants_the_sum() -> None:
    """A tied stage without a reduction, one that waits in a circle, and a plan that ties other stages are refused."""
    lists = ["0F0 0B0 0U", "1F0 1B0 1R 1U"]
    validate_schedule(Schedule.from_text("x", [lists[0].replace("0U", "0R 0U"), lists[1]]), 2, 1, tied=((0, 1),))
    with pytest.raises(
        PlanError, match="stage 0 shares weights with other stages and no reduction on device 0; add 0R"
    ):
        validate_schedule(Schedule.from_text("x", lists), 2, 1, tied=((0, 1),))
    early = ["0F0 0R 0B0 0U", "1F0 1B0 1R 1U"]
    with pytest.raises(PlanError, match="device 1 waits at 1R for 0R on device 0"):
        validate_schedule(Schedule.from_text("x", early), 2, 1, tied=((0, 1),))
    model, small = tied_ends(), cluster()
    plan = solve(model, small, job=Job(2, depths=(2,))).plan
    with pytest.raises(PlanError, match=r"stages none sum .* ties these are stages 0 and 1"):
        validate_plan(replace(plan, pipeline=replace(plan.pipeline, tied=())), model, small)


def test_wishes_keep_tied_layers_together_or_apart() -> None:
    """Without links worth a sum the option decides: together is one stage, two stages hold 8 MiB twice."""
    model, small = tied_ends(), cluster()
    together = solve(model, small, job=Job(4, together=(("l0", "l3"),)))
    assert together.plan.pipeline.tied == ()
    split = solve(model, small, job=Job(4, depths=(2,)))
    assert split.plan.pipeline.tied == ((0, 1),)
    assert [str(action) for action in split.plan.schedule.orders[1]][-2:] == ["1R", "1U"]
    assert sum(stage.memory.weights for stage in split.plan.stages) == (3 + 1) * 8 * MIB
    assert together.plan.stages[0].memory.weights == 3 * 8 * MIB


def test_a_copy_that_does_not_fit_moves_the_cut() -> None:
    """With room for less than three matrices, the stage with the copy takes one other layer, not two."""
    model = model_of([3 * 10**6, 10**6, 10**6, 10**6], parameters=[8 * MIB, 8 * MIB, 8 * MIB, 0])
    model, job = replace(model, ties=(Tie(("l0", "l3"), 8 * MIB),)), Job(8, depths=(2,))
    assert solve(model, cluster(), job=job).plan.boundaries == (0, 1, 4)
    plan = solve(model, cluster(memory=2 * 3 * 8 * MIB - 1), job=job).plan
    assert plan.boundaries == (0, 2, 4)
    assert [stage.memory.weights for stage in plan.stages] == [2 * 8 * MIB] * 2


def test_divided_layers_do_not_go_with_ties() -> None:
    """Asking for both says so."""
    streaming = replace(cluster(), overlap=Overlap.STREAM)
    with pytest.raises(InputError, match="l0 and l3"):
        solve(tied_ends(), streaming, job=Job(2, intra_layer=True))


def test_the_answer_says_who_shares() -> None:
    """In words, in JSON, and as one reduction of both stages among what may bind."""
    result = solve(tied_ends(), cluster(), job=Job(4, depths=(2,)))
    assert "stages 0 and 1 share weights" in str(result)
    assert as_json(result)["tied_stages"] == [[0, 1]]
    reductions = [
        sensitivity
        for sensitivity in candidates(Setting(result.plan, result.timeline))
        if sensitivity.kind == "reduction"
    ]
    assert [sensitivity.stages for sensitivity in reductions] == [(0, 1)]


def test_a_copy_beside_a_home_is_summed_behind_the_backward_too() -> None:
    """A stage with a copy of one weight and the home of another one pays both sums where its own one is hidden."""
    model = model_of([10, 1000, 10, 10], parameters=[30, 0, 100, 0])
    model = replace(model, ties=(Tie(("l0", "l1"), 30), Tie(("l2", "l3"), 60)))
    own = cluster(4)
    d0, d1, d2, d3 = own.devices
    chain = price(model, own, [(d0,), (d1, d2), (d3,)], 1, Job(4, zero=(0,)))
    copy, home = 4 * (5 + 10), 4 * (5 + 20)  # rings of three: four rounds of a third of 30 and of 60 bytes
    assert [stage.reduce for stage in assemble(chain, own, (0, 1, 3, 4)).stages] == [copy, copy + home, home]


def test_a_stage_waits_for_the_gather_of_a_copy_beside_its_own() -> None:
    """Two replicas send each other half of its 30 bytes in 5 + 15 ns, before the first forward, hidden by nothing."""
    model, own = model_of([10, 1000, 1000], parameters=[30, 0, 100]), cluster(3)
    tied = replace(model, ties=(Tie(("l0", "l1"), 30),))
    d0, *others = own.devices
    waits = [
        assemble(price(each, own, [(d0,), tuple(others)], 1, Job(4, zero=(1,))), own, (0, 1, 3)).stages[1].gather
        for each in (model, tied)
    ]
    assert waits[1] - waits[0] == 5 + 15


def test_copies_on_three_replicas_share_out_state_and_update_rounded_up() -> None:
    """Of 32 bytes of Adam's state each replica keeps 11, and of an update of 10 ns it does 4."""
    model = replace(model_of([10, 10], parameters=[16, 0], update=[10, 0]), ties=(Tie(("l0", "l1"), 16),))
    own = cluster(4)
    d0, *others = own.devices
    chain = price(model, own, [(d0,), tuple(others)], 1, Job(3, zero=(1,), optimizer="adam"))
    copy = assemble(chain, own, (0, 1, 2)).stages[1]
    assert (copy.resident, copy.update) == (16 + 16 + 11, 4)


@pytest.mark.parametrize(("memory", "copies"), [(None, 0), (2 * 3 * 8 * MIB - 1, 1), (2 * 3 * 8 * MIB, 0)])
def test_aggregates_count_copies_that_are_certain(memory: int | None, copies: int) -> None:
    """If no device can hold all layers, the last one's stage holds a copy in every plan."""
    space = Space(tied_ends(), cluster(memory=memory), Job(4))
    layout = next(iter(layouts(space, 4)))
    problem = allocation_problem(space, 1, layout, alternating=True)
    assert problem.resident[0, 0].tolist() == [16 * MIB, 16 * MIB, 16 * MIB, copies * 16 * MIB]
    assert (problem.reduce[0, 0, 0] > 0) == (problem.joint[0, 0] > 0) == bool(copies)  # of the first stage, the last


def test_no_copy_is_certain_where_some_kind_of_device_holds_all_layers() -> None:
    """Devices that are too small for it leave it to the others, whose plans pay for no copy."""
    kinds = {"unit": DeviceKind("unit", memory=2 * 3 * 8 * MIB - 1), "large": DeviceKind("large", timed_as="unit")}
    both = replace(cluster(), kinds=kinds, nodes=(Node(("unit",) * 2 + ("large",) * 2, LINK),))
    space = Space(tied_ends(), both, Job(4))
    problem = allocation_problem(space, 1, next(iter(layouts(space, 4))), alternating=True)
    assert problem.resident[:, 0, 3].tolist() == [0, 0]


@given(st.integers(2, 12), st.integers(0, 5), st.integers(1, 300), st.sampled_from([None, 10**9, 7 * 10**8, 3]))
def test_no_wider_ring_is_faster_than_the_least(replicas: int, more: int, size: int, bandwidth: int | None) -> None:
    """A bound on a sum over some replicas holds for more replicas, also for sizes that rounds do not divide evenly."""
    link = Link(bandwidth, 3)
    assert Ring(replicas, link).lower_bound(size) <= alone(Ring(replicas + more, link), size)


@pytest.mark.happens(0.3)
@given(st.lists(st.integers(1, 2), min_size=2, max_size=4), st.sets(st.integers(0, 3), min_size=2), st.integers(1, 40))
def test_no_set_of_stages_is_faster_than_its_members_least(widths: list[int], wanted: set[int], size: int) -> None:
    """`least_together` bounds `together` of every set of stages, within a node and between nodes that share cards."""
    members = sorted(stage for stage in wanted if stage < len(widths))
    nodes = (Node(("unit",) * 3, Link(10**9, 2)),) * 3
    three = Cluster("three", {"unit": DeviceKind("unit")}, nodes, Link(5 * 10**8, 4), Overlap.COPY)
    edges = [0, *accumulate(widths)]
    groups = [three.devices[a:b] for a, b in pairwise(edges)]
    least = least_together(three, groups, size, ends=False)
    if happens(len(members) > 1):
        assert all(least[s] <= together(three, groups, members, size) for s in members)
        if {0, len(widths) - 1} <= set(members):
            certain = least_together(three, groups, size, ends=True)
            assert all(certain[s] <= together(three, groups, members, size) for s in members)


def test_given_buckets_hold_where_weights_are_shared() -> None:
    """Of random stages: sums in given buckets end as on the clock, also where a part is summed with another stage."""
    draw, overlapped = Random(2), 0
    for _ in range(40):
        n, size = draw.randint(3, 6), 400 * draw.randint(1, 9)
        parameters = [size, *(400 * draw.randint(0, 9) for _ in range(n - 1))]
        model = model_of([draw.randint(1, 4000) for _ in range(n)], parameters=parameters)
        model = replace(model, ties=(Tie(("l0", f"l{n - 1}"), draw.randint(1, size)),))
        devices, job = cluster(4).devices, Job(batch=2, overlap_reduction=True)
        chain = price(model, cluster(4), [devices[:2], devices[2:]], 1, job)
        cut = draw.randint(2, n - 1)
        sizes = draw.choice([*every_cut(cut)])
        stage = assemble(chain, cluster(4), (0, cut, n), buckets=(sizes, (n - cut,))).stages[0]
        joint, hidden = together(cluster(4), chain.groups, (0, 1), model.ties[0].parameters), chain.hides[0].tolist()
        whole, apart = (list(zip(chain.reduce[0].tolist()[:cut], hidden, strict=False)) for _ in range(2))
        reduced, base = int(chain.shared[0].reduced[0]), int(chain.reduce_base[0])
        apart[0] = max(whole[0][0] - reduced, 0), whole[0][1]
        readings = left(whole, sizes, base) + max(joint - reduced, 0), left(apart, sizes, base) + joint
        assert stage.reduce == max(readings)
        given_again = [count for count in layer_counts(stage.buckets) if count]
        assert len(given_again) <= len(sizes) and {*given_again} <= {*sizes}
        overlapped += left(whole, sizes, base) < left(whole, (cut,), base)
    assert overlapped >= 10
