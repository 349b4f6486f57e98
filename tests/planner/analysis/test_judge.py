"""Hand-written plans: their time, their memory, and the proved plan beside them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from helpers.instances import equal_devices, fat_head, model_of
from helpers.quick import part, rarely
from pipeplan.analysis import judge as judge_module
from pipeplan.analysis.judge import Judgement, judge
from pipeplan.analysis.judge.hand_written import HandWritten
from pipeplan.analysis.judge.priced import Priced, least_rank, priced
from pipeplan.analysis.judge.settings import Setting
from pipeplan.cli.main import main
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.plan import Plan
from pipeplan.core.validate import validate_plan
from pipeplan.core.validate.memory import validate_memory
from pipeplan.costs.sharding.places import team_cluster
from pipeplan.io.load import load_cluster, load_model
from pipeplan.schedules import PLACED
from pipeplan.simulate import period, simulate
from pipeplan.solve import solve

MODEL = fat_head()
CLUSTER = Cluster.uniform(3, DeviceKind("unit"))


def _judged(cluster: int = 3, **how: Any) -> Judgement:
    devices = Cluster.uniform(cluster, DeviceKind("unit"))
    return judge(MODEL, devices, **({"batch": 8, "stages": (4, 4, 1), "micro_batches": 4, "time_limit": 10} | how))


def test_a_hand_written_plan_is_simulated_as_it_stands() -> None:
    """Layers, devices, micro-batches and schedule are the given ones; the time is the simulator's."""
    found = _judged(schedule="gpipe")
    plan = found.plan
    assert [len(stage.layers) for stage in plan.stages] == [4, 4, 1]
    assert [stage.devices for stage in plan.stages] == [(0,), (1,), (2,)]
    assert (plan.micro_batches, plan.micro_batch, plan.schedule.family) == (4, 2, "gpipe")
    assert found.value == plan.step_time == simulate(plan.schedule, plan.pipeline).makespan
    assert not found.overflows and not found.outside
    assert found.result is not None and found.excess == found.value / found.result.value - 1 >= 0


@pytest.mark.parametrize(("replicas", "overlap"), [(1, Overlap.COPY), (2, Overlap.STREAM), rarely(1, Overlap.NONE)])
def test_the_best_order_of_the_stages_is_found(replicas: int, overlap: Overlap) -> None:
    """It is no worse than any family, nothing goes below its bound, and it is valid where cards are shared."""
    nodes = (Node(("unit",) * 2, Link(10**9)),) * 2
    devices = Cluster("2x2", {"unit": DeviceKind("unit")}, nodes, Link(10**8), overlap)
    layers = model_of([3, 3, 1, 4], output=[4, 4, 4, 4], parameters=[1, 1, 1, 1])
    plan: dict[str, Any] = {"stages": (2, 2) if replicas == 2 else (1, 1, 1, 1), "replicas": replicas}
    ask: dict[str, Any] = {"batch": 4, "micro_batches": 4, "optimizer": "sgd", "time_limit": 5} | plan
    found = judge(layers, devices, schedule="found", **ask)
    validate_plan(found.plan, layers, devices)
    assert 0 < found.order_bound <= found.value == simulate(found.plan.schedule, found.plan.pipeline).makespan
    assert all(found.value <= judge(layers, devices, schedule=name, **ask).value for name in ("gpipe", "1f1b", "zb-h1"))
    assert "no order of these stages takes less" in str(found)
    assert found.as_json()["order_bound_s"] == found.order_bound / 1e9
    assert not found.outside or "--schedules any" in found.outside


def test_an_order_that_no_stage_has_room_for_is_not_searched() -> None:
    """The plan is the leanest family's, with what it lacks."""
    tight = Cluster.uniform(1, DeviceKind("unit", memory=4))
    found = judge(MODEL, tight, 8, stages=(9,), micro_batches=8, schedule="found", time_limit=5)
    assert found.overflows and not found.order_bound


@pytest.mark.parametrize("count", [2, 8])
def test_the_answer_of_the_search_is_judged_to_be_the_proved_one(count: int) -> None:
    """The solver's own plan, written by hand, takes as long as it says."""
    result = solve(MODEL, CLUSTER, batch=8, schedules=("gpipe", "1f1b-sno"), recompute="none", micro_batches=(count,))
    plan = result.plan
    found = _judged(
        stages=[len(stage.layers) for stage in plan.stages],
        replicas=[stage.replicas for stage in plan.stages],
        micro_batches=plan.micro_batches,
        schedule=plan.schedule.family,
        zero=plan.zero,
    )
    assert found.value == result.value
    assert found.result is not None and found.result.value <= result.value


def test_a_stage_without_room_is_named_with_what_it_lacks() -> None:
    """The plan is timed nevertheless; the text has the device, the bytes and the difference."""
    roomy = _judged()
    needs = [stage.memory.total for stage in roomy.plan.stages]
    least = min(needs)
    tight = _judged(memory=least)
    assert [each.stage for each in tight.overflows] == [s for s, need in enumerate(needs) if need > least]
    assert all(each.needed == needs[each.stage] and each.limit == least for each in tight.overflows)
    assert tight.value == roomy.value
    assert "does not fit" in str(tight) and "too much" in str(tight)
    assert tight.as_json()["fits"] is False


def test_recomputation_makes_room() -> None:
    """Where some layers' activations are recomputed, the plan holds less and takes longer."""
    model, cluster = load_model("gpt2-small"), load_cluster("4-v100-nvlink")
    how: dict[str, Any] = {"batch": 64, "stages": (4, 3, 3, 4), "micro_batches": 16, "time_limit": 1}
    plain, full = judge(model, cluster, **how), judge(model, cluster, recompute="full", **how)
    assert full.plan.stages[0].memory.total < plain.plan.stages[0].memory.total
    assert full.value > plain.value


def test_no_proved_plan_leaves_the_judgement() -> None:
    """Where nothing fits, the hand-written plan is still judged, and the reason given."""
    found = _judged(memory=1)
    assert found.result is None and found.excess is None
    assert "No plan fits" in found.why and found.why in str(found)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"stages": (4, 4)}, r"4 \+ 4 = 8 layers, and chain has 9"),
        ({"stages": (9, 0)}, "number of layers of a stage must be at least 1"),
        ({"replicas": (1, 1)}, "replicas: 3 stages have 2 numbers; give one number for each stage"),
        ({"replicas": (2, 1, 1)}, r"2 \+ 1 \+ 1 = 4 devices, and 3 x unit has 3"),
        ({"micro_batches": 3}, "3 micro-batches do not divide the batch of 8"),
        ({"stages": (9,), "replicas": (3,), "micro_batches": 2}, "3 replicas of a stage share 2 micro-batches"),
        ({"schedule": "gpip"}, "'gpip' is not known"),
        ({"zero": 2, "stages": (4, 5), "replicas": (1, 2)}, "no such plan can be run"),
        ({"recompute": "some"}, "recompute 'some' is not known"),
        ({"schedule": "found", "stages": (4, 5), "replicas": (1, 2)}, "give all stages as many replicas"),
        ({"schedule": "found", "zero": 2}, "level 2 of ZeRO has no orders to search"),
        ({"schedule": "found", "objective": "period"}, "judged by the time of a step"),
    ],
)
def test_what_is_no_plan_is_refused(how: dict[str, Any], says: str) -> None:
    """The message has the numbers, and comes before any search."""
    with pytest.raises(InputError, match=says):
        _judged(**how)


def test_many_devices_are_abbreviated() -> None:
    """The table names the ends of a long row of devices, and counts them."""
    found = _judged(stages=(9,), replicas=(16,), micro_batches=16, batch=16, cluster=16)
    assert "d0 … d15 (16 devices)" in str(found)
    assert max(map(len, str(found).splitlines())) < 200


def test_more_time_is_advised_only_where_it_helps() -> None:
    """A faster plan that does not fit needs the missing bytes, whatever the time; what makes it fit is named."""
    saved = model_of([10, 10], saved=[40, 40], output=[4, 4], parameters=[8, 8])
    two = Cluster.uniform(2, DeviceKind("unit", memory=90), Link(10**7, 0))
    found = judge(saved, two, 2, stages=(2,), micro_batches=2, optimizer="sgd", time_limit=10)
    assert found.overflows and found.result is not None and found.result.gap == 0
    assert found.excess is not None and found.excess < 0
    text = str(found)
    assert "more time" not in text
    assert "22 B more on a device (--memory, where that is the limit)" in text
    assert "with --recompute choose it fits" in text and "or --recompute choose" in text


def test_split_backwards_are_named_as_the_reason() -> None:
    """ZB-H1 has one stage per device; it is not searched since it splits backwards, until it or any order is."""
    plan: dict[str, Any] = {"stages": (3, 3, 3), "micro_batches": 4, "schedule": "zb-h1"}
    assert "schedule is zb-h1, which splits backwards" in (text := _judged(**plan).outside)
    assert "--schedules zb-h1 searches it" in text
    assert not _judged(**plan, schedules="any").outside and not _judged(**plan, schedules="zb-h1").outside


def test_a_way_that_the_search_leaves_out_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequence parallelism is judged also where the search leaves it out, and is then none of the plans searched."""
    model, cluster = load_model("gpt2-small"), load_cluster("4-v100-nvlink")
    how: dict[str, Any] = {"stages": (7, 7), "micro_batches": 4, "team": 2, "time_limit": 0.1}
    searched = judge(model, cluster, 16, way="sequence", **how)
    monkeypatch.setattr("pipeplan.costs.sharding.together.MOST", 1)  # of many ways to split layers few are searched
    monkeypatch.setattr("pipeplan.costs.sharding.ways.PREFERRED", (0, 0))
    found = judge(model, cluster, 16, way="sequence", **how)
    assert found.plan.parallelism[:1] == ("sequence",) and "context" not in found.plan.parallelism
    assert found.value >= searched.value and not found.plan.bound
    assert "the search leaves its way to split layers out" in found.outside and not searched.outside


def test_unlike_replicas_are_refused() -> None:
    """Replicas of one stage are of one kind."""
    kinds = {name: DeviceKind(name, timed_as="unit") for name in ("fast", "slow")}
    mixed = Cluster("mixed", kinds, (Node(("fast", "slow"), Link()),))
    with pytest.raises(InputError, match="replicas of stage 0, d0 to d1, are of unlike kinds"):
        judge(MODEL, mixed, 8, stages=(9,), replicas=(2,), micro_batches=4)


def test_constraints_of_the_job_are_checked() -> None:
    """A plan that breaks a constraint is judged, and the text says what it breaks."""
    found = _judged(no_cut_after=("l3",))
    assert "it cuts the model where that is not allowed" in str(found)


def test_the_command_prints_saves_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``judge`` prints one object, and saves a plan that fits, which can be loaded; not one that does not."""
    path = tmp_path / "plan.json"
    ask = ["judge", "vgg-16", "4-v100-nvlink", "--batch", "64", "--stages", "10,11", "--micro-batches", "8"]
    ask += ["--replicas", "2,1", "--time", "2", "--json", "-o", str(path)]
    assert main(ask) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["fits"] and answer["over_proved"] > 0
    assert [stage.replicas for stage in Plan.load(path).stages] == [2, 1]
    path.unlink()
    assert main([*ask, "--memory", "1GiB"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["overflows"]
    assert "not saved, as it does not fit" in printed.err and not path.exists()


def test_a_relative_bound_is_shown_where_a_gap_is_left() -> None:
    """Without a proof the other plan is the best one found, and the text has the distance to its bound."""
    found = _judged()
    assert found.result is not None
    open_ = replace(found.result, bound=found.result.value // 2)
    assert "best plan found: " in str(replace(found, result=open_))
    assert "more than its bound" in str(replace(found, result=open_))


def test_teams_are_judged_in_the_ways_of_the_search() -> None:
    """The solver's own plan of teams, written by hand, takes as long as it says; a named way is kept."""
    model, cluster = load_model("gpt2-small"), load_cluster("4-v100-nvlink")
    how: dict[str, Any] = {"batch": 16, "recompute": "none", "zero": 0, "time_limit": 20, "workers": 1}
    result = solve(model, cluster, teams=(2,), depths=2, replicas=1, micro_batches=4, schedules="1f1b-sno", **how)
    stages = [len(stage.layers) for stage in result.plan.stages]
    own = {"stages": stages, "micro_batches": 4, "team": 2, "schedule": "1f1b-sno"} | how | {"time_limit": 0.1}
    best = judge(model, cluster, teams=(2,), **own)
    assert best.value == result.value
    assert best.plan.teams == (2, 2)
    validate_plan(best.plan, model, team_cluster(cluster, 2))
    plain = judge(model, cluster, teams=(2,), way="plain", **own)
    assert not plain.plan.sequence and not plain.plan.context
    assert plain.value >= best.value
    with pytest.raises(InputError, match=r"way 'sequense' is none of these teams.*did you mean 'sequence'"):
        judge(model, cluster, way="sequense", **own)
    assert "asked for are teams of 1" in judge(model, cluster, teams=(1,), **own).outside


MEMORIES = (2**30, 1800 * 2**20, 3 * 2**30, None)
SCHEDULES = ("1f1b-sno", "interleaved", "zb-v")


@pytest.mark.parametrize(("schedule", "memory"), part([*product(SCHEDULES, MEMORIES)], 3))
def test_no_way_is_left_out_that_may_be_the_best(schedule: str, memory: int | None) -> None:
    """Each is at least as bad as its bound, and the best of those that are simulated is the best of all."""
    stages, many = (4, 4, 4, 2) if schedule != "1f1b-sno" else (7, 7), 3
    seen: list[tuple[Priced, tuple[int, int]]] = []

    def every(model: Model, job: Job, each: Sequence[Setting], written: HandWritten) -> list[Priced]:
        seen.extend((priced(model, job, own, written), least_rank(model, own, written)) for own in each)
        return of_judge(model, job, each, written)

    of_judge = judge_module._priced
    with mock.patch.object(judge_module, "_priced", every):
        found = judge(
            "gpt2-small",
            "4-v100-nvlink",
            many,
            stages=stages,
            micro_batches=many,
            team=2,
            schedule=schedule,
            recompute="none",
            memory=memory,
            time_limit=0.1,
        )
    assert len(seen) > 10
    assert all(own.rank >= least for own, least in seen)
    best, _ = min(seen, key=lambda pair: pair[0].rank)
    assert (found.value, found.overflows) == (best.evaluated.value, best.overflows)


def test_teams_of_unlike_sizes_lie_side_by_side() -> None:
    """Each stage has its own team; weights that teams of unlike sizes would share are refused."""
    model, cluster = load_model("gpt2-small"), load_cluster("4-v100-nvlink")
    how: dict[str, Any] = {"batch": 16, "micro_batches": 4, "time_limit": 0.1}
    with pytest.raises(InputError, match="embedding, head share weights, of which teams of 1 and 2"):
        judge(model, cluster, stages=(7, 4, 3), team=(2, 1, 1), **how)
    found = judge("llama3-8b", cluster, stages=(16, 9, 9), team=(2, 1, 1), **how)
    assert found.plan.teams == (2, 1, 1)
    assert found.value == simulate(found.plan.schedule, found.plan.pipeline).makespan


@pytest.mark.parametrize("schedule", [name for name, family in PLACED.items() if name != "chimera"])
def test_devices_may_have_several_stages(schedule: str, tmp_path: Path) -> None:
    """Families that place stages are simulated as they stand; their plans are valid, and can be saved and loaded."""
    chunks = PLACED[schedule].chunks or 2
    stages = (3, 3, 3) if chunks == 1 else (2, 2, 1, 2, 1, 1)
    found = _judged(stages=stages, schedule=schedule)
    plan = found.plan
    assert [len(own) for own in plan.pipeline.stages_on] == [chunks] * 3
    assert found.value == simulate(plan.schedule, plan.pipeline).makespan == plan.step_time
    assert found.timeline.peaks == validate_memory(plan.schedule, plan.pipeline)
    assert ("cut unlike" if schedule == "interleaved" else f"schedule is {schedule}") in found.outside
    validate_plan(plan, MODEL, CLUSTER)
    plan.save(tmp_path / "plan.json")
    assert replace(Plan.load(tmp_path / "plan.json"), yardstick=plan.yardstick) == plan


def test_several_stages_per_device_may_run_without_a_barrier() -> None:
    """From step to step a plan takes what the simulator says; of whole backwards the search has it, with a bound."""
    reasons = {"interleaved": "", "zb-v": "which splits backwards; searched are gpipe, 1f1b-sno, 1f1b-so, 1f1b"}
    for schedule, why in reasons.items():
        found = _judged(stages=(2, 1, 1, 2, 1, 2), schedule=schedule, objective="period", chunks=2)
        assert found.value == period(found.plan.schedule, found.plan.pipeline) == found.plan.period
        assert found.value <= found.plan.step_time
        assert found.result is not None
        assert found.result.job.objective == "period"
        assert found.outside.endswith(why) and bool(found.outside) == bool(why)


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("schedule", ["interleaved", "zb-h1", "zb-v", "chimera"])
def test_pipelines_of_several_stages_per_device_have_replicas(schedule: str, zero: int, tmp_path: Path) -> None:
    """Each copy takes as long as one alone with its share of the micro-batches; sums and gathers come on top."""
    stages = (5, 4) if schedule == "zb-h1" else (3, 6) if schedule == "chimera" else (2, 2, 2, 3)
    model = model_of([10] * 9, saved=[8] * 9, output=[2] * 9, parameters=[100] * 9)
    boxes = Cluster.uniform(4, DeviceKind("unit"), Link(10**9, 1))
    plan: dict[str, Any] = {"stages": stages, "schedule": schedule, "optimizer": "adam", "time_limit": 1, "gap": 0.9}
    alone = judge(model, boxes, 4, micro_batches=4, **plan)
    found = judge(model, boxes, 8, micro_batches=8, replicas=2, zero=zero, **plan)
    copies = found.plan.pipeline
    assert all(
        len(homes) == 2 * len(one) for homes, one in zip(copies.placement, alone.plan.pipeline.placement, strict=True)
    )
    assert copies.devices == 2 * alone.plan.pipeline.devices == 4
    sums = sum(stage.reduce + stage.gather for stage in copies.stages)
    assert alone.value <= found.value <= alone.value + sums
    validate_plan(found.plan, model, boxes)
    found.plan.save(tmp_path / "plan.json")
    assert replace(Plan.load(tmp_path / "plan.json"), yardstick=found.plan.yardstick) == found.plan


def test_a_v_on_copies_over_nodes_sends_nothing_between_its_halves() -> None:
    """Both stages are on the same devices, whose links between nodes carry sums alone."""
    kind, own = DeviceKind("unit"), Node(("unit",), Link(10**10, 0))
    boxes = Cluster("boxes", {"unit": kind}, (own, own), Link(10**9, 1))
    model = model_of([10] * 4, saved=[8] * 4, output=[2] * 4, parameters=[100] * 4)
    found = judge(model, boxes, 8, stages=(2, 2), schedule="zb-v", micro_batches=8, replicas=2, time_limit=1)
    assert found.plan.pipeline.devices == 2
    assert found.value >= 8 * 4 * (10 + 20) // 2


def test_stages_of_one_device_share_its_memory() -> None:
    """Where a device lacks room for its stages together, it is named with both."""
    stages = {"stages": (2, 2, 1, 2, 1, 1), "schedule": "interleaved"}
    peaks = _judged(**stages).timeline.peaks
    tight = _judged(**stages, memory=max(peaks) - 1)
    assert [(each.stages, each.needed) for each in tight.overflows] == [
        ((rank, rank + 3), peak) for rank, peak in enumerate(peaks) if peak == max(peaks)
    ]
    assert f"stages {tight.overflows[0].stage} and" in str(tight)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"stages": (3, 3, 3), "schedule": "interleaved"}, "gives every device 2 stages, and there are 3 stages"),
        ({"schedule": "interleaved", "replicas": (2, 1, 1)}, "replicas are those of whole pipelines; give one number"),
        (
            {"schedule": "interleaved", "replicas": 5, "stages": (5, 4)},
            "5 replicas of the pipeline share 4 micro-batches",
        ),
        ({"schedule": "gpipe", "chunks": 2}, "2 chunks: schedule gpipe gives a device one stage"),
        ({"schedule": "interleaved", "recompute": "choose", "stages": (5, 4)}, "recompute none of the layers, or full"),
        ({"schedule": "interleaved", "zero": 2, "stages": (5, 4)}, "level 2 of ZeRO runs one stage per device"),
        ({"way": "plain"}, "is how teams split layers, and there are none"),
        ({"team": 2}, "operators of 'chain' are not known"),
    ],
)
def test_what_no_such_plan_has_is_refused(how: dict[str, Any], says: str) -> None:
    """The message says what goes together, before any search."""
    with pytest.raises(InputError, match=says):
        _judged(**how)


@pytest.mark.parametrize("schedule", ["found", "zb-h1"])
def test_a_backward_whose_parts_are_not_known_is_whole_in_the_first(schedule: str) -> None:
    """A split stage takes all of it, for an order of `judge` and of the search: else 30 ns would cost nothing."""
    model = model_of([10, 10, 10], [20, 30, 20])
    parts = ((10, 10), (0, 0), (5, 15))
    costs = model.profiles[0].costs
    known = (replace(own, input_gradient=i, weight_gradient=w) for own, (i, w) in zip(costs, parts, strict=True))
    model = replace(model, profiles=(replace(model.profiles[0], costs=tuple(known)),))
    job = Job(1, schedules=("any",), depths=(2,), replicas=(1,), no_cut_after=("l1",))
    judged = judge(model, equal_devices(2), job=job, stages=(1, 2), micro_batches=1, schedule=schedule, workers=1)
    stage = judged.plan.pipeline.stages[1]
    assert (stage.input_gradient, stage.weight_gradient, judged.value) == (35, 15, 85)
    assert judged.result is not None and judged.result.value == judged.result.bound == 85
