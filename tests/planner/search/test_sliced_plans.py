"""Plans with token slices: equal to every choice tried one by one, saved, validated and judged."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from random import Random

import pytest

from helpers.sliced_models import sliced_chain, token_operators, unit_cluster
from pipeplan import Plan, compare, judge, load_cluster, load_model
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Overlap
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job, Objective
from pipeplan.core.layers import Layer, LayerCost
from pipeplan.core.model import Model, Profile
from pipeplan.core.pipeline import Pipeline, Stage, Transfer
from pipeplan.core.schedule import Kind
from pipeplan.core.validate import validate_plan, validate_schedule
from pipeplan.core.validate.memory import most_in_flight
from pipeplan.costs.assembly import assemble
from pipeplan.costs.slices import sliced
from pipeplan.schedules import SLICED, sliced_families
from pipeplan.search.evaluate import evaluate
from pipeplan.search.space.space import Space
from pipeplan.search.space.spaces import Spaces
from pipeplan.simulate import makespan
from pipeplan.simulate.claims import validate_claims
from pipeplan.solve import solve
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits

QUICK = {"time_limit": 20.0, "workers": 1}


def every_value(model: Model, cluster: Cluster, job: Job) -> list[int]:
    """The values of all plans that fit, of every space, device groups, family and partition."""
    found = []
    layers = len(model.layers)
    for space in Spaces(model, cluster, job):
        for size in space.sizes:
            for groups in space.all_groups(space.job, job.batch // size):
                for candidate in space.candidates(groups, size):
                    for cuts in combinations(range(1, layers), len(groups) - 1):
                        boundaries = (0, *cuts, layers)
                        if candidate.fits(boundaries):
                            found.append(evaluate(cluster, candidate, boundaries).value)
    return found


def drawn(seed: int, split: bool = False) -> tuple[Model, Cluster, Job]:
    """A small question with slices; ``split``: mostly also with split backwards."""
    random = Random(f"sliced {seed}")
    model = sliced_chain(random, random.randint(2, 4))
    memory = random.choice((None, None, 4000))
    job = Job(
        random.choice((1, 2, 4)), slices=random.choice(((2,), (1, 3), (1, 4), (2, 4))), optimizer="sgd", teams=(1,),
        objective=random.choice((Objective.STEP, Objective.STEP, Objective.PERIOD)),
    )  # fmt: skip
    if split and job.objective is Objective.STEP:
        job = replace(job, schedules=random.choice((("zb-h1-slices",), ("gpipe", *SLICED), tuple(SLICED))))
    return model, unit_cluster(random.randint(2, 3), memory), job


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 200))])
@pytest.mark.parametrize("split", [False, True])
def test_the_best_plan_is_that_of_every_choice_tried(seed: int, split: bool) -> None:
    """The optimum with slices is proved, and no other plan that fits is better."""
    model, cluster, job = drawn(seed, split)
    values = every_value(model, cluster, job)
    result = solve(model, cluster, job=job, **QUICK)  # type: ignore[arg-type]
    assert result.value == result.bound == min(values)


@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(n, marks=pytest.mark.slow) for n in range(20, 500))])
def test_bounds_are_never_beaten(seed: int) -> None:
    """The bound of a partition is at most its simulated value, and the closed form at most every bound."""
    model, cluster, job = drawn(1000 + seed, split=seed % 2 == 1)
    for space in Spaces(model, cluster, job):
        for size in space.sizes:
            for groups, least in space.device_groups(size):
                for candidate in space.candidates(groups, size):
                    for cuts in combinations(range(1, len(model.layers)), len(groups) - 1):
                        boundaries = (0, *cuts, len(model.layers))
                        if candidate.fits(boundaries):
                            value = evaluate(cluster, candidate, boundaries).value
                            bound = candidate.problem.evaluate(boundaries)
                            assert max(candidate.lower_bound, least) <= bound <= value


def test_families_run_and_hold_what_they_say() -> None:
    """Lists of equal stages take (M S + p − 1) (F + B), or fill the bubble, hold what is said, and never deadlock."""
    for stages in (1, 2, 4):
        for many in (1, 2, 5):
            for count in (2, 3, 7):
                link = ((Transfer(),),) * (stages - 1)
                homes = tuple((s,) for s in range(stages))
                equal = Pipeline(
                    (Stage(4, 4, 4, 4),) * stages, homes, link, link, Overlap.COPY, (0,) * stages, (10,) * stages
                )
                for family in sliced_families(count):
                    schedule = family.write((1,) * stages, many)
                    validate_schedule(schedule, stages, many)
                    held = [most_in_flight(order, s) for s, order in enumerate(schedule.orders)]
                    assert tuple(held) == family.in_flight((1,) * stages, many)
                    if family.splits and (many == 1 or count >= stages):  # F = I = W: they fill the bubble
                        idle = 2 * (stages - 1) if many == 1 else stages - 1
                        assert makespan(schedule, equal) == 4 * (3 * many * count + idle)
                    elif family.name == "terapipe" or (many * count >= stages and not family.splits):
                        assert makespan(schedule, equal) == (many * count + stages - 1) * 8
                    pairs = tuple((2 * s, 2 * s + 1) for s in range(stages))
                    validate_schedule(family.write((2,) * stages, 2 * many), stages, 2 * many, pairs)


def test_a_plan_is_saved_read_and_valid(tmp_path: Path) -> None:
    """A plan file with slices is read as it was written, and its claims hold."""
    model, cluster, job = load_model("gpt2-small"), "4-v100-nvlink", {"slices": (1, 4), "replicas": 1, "depths": 4}
    result = solve(model, cluster, batch=1, gap=0.02, **QUICK, **job)  # type: ignore[arg-type]
    plan = result.plan
    assert plan.slices == (256,) * 4
    assert "1 micro-batch of 1 in 4 slices of 256 tokens" in plan.headline
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again == plan
    validate_claims(again)
    validate_plan(again, model, load_cluster(cluster))
    assert "--slices" not in " ".join(result.searched.not_searched)
    assert "in 1 or 4 token slices" in result.searched.as_text()


def test_a_hand_written_plan_with_slices_is_judged() -> None:
    """Its value is that of the plan which the search finds there, and it lies in the compared space."""
    model, cluster = sliced_chain(Random(3), 4), unit_cluster(2)
    judgement = judge(
        model, cluster, 2, stages=(2, 2), micro_batches=2, token_slices=3, schedule="terapipe", optimizer="sgd"
    )
    assert judgement.outside == "" and judgement.result is not None
    assert judgement.value >= judgement.result.bound
    assert judgement.plan.slices == (4, 4, 4)
    space = Space(sliced(model, 3), cluster, Job(2, slices=(3,), optimizer="sgd"))
    terapipe = space.candidates(((cluster.devices[0],), (cluster.devices[1],)), 1)[1]
    assert evaluate(cluster, terapipe, (0, 2, 4)).value == judgement.value


def test_split_backwards_need_times_of_their_parts() -> None:
    """Refused with the layer if a profile lacks them, and in a long run; the answer without them names the option."""
    model, cluster = equal_stages(2), unit_cluster(2)
    asked = {"batch": 1, "slices": (3,), "optimizer": "sgd"}
    whole = replace(model.profiles[0].costs[1], input_gradient=0, weight_gradient=0)
    profile = replace(model.profiles[0], costs=(model.profiles[0].costs[0], whole))
    with pytest.raises(InputError, match=r"no times of the two parts of layer 'l1'"):
        solve(replace(model, profiles=(profile,)), cluster, schedules=("zb-h1-slices",), **asked)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="is searched for the least step"):
        solve(model, cluster, schedules=("zb-h1-slices",), objective="period", **asked)  # type: ignore[arg-type]
    joined = solve(model, cluster, **asked)  # type: ignore[arg-type]
    split = solve(model, cluster, schedules=("1f1b-slices", "zb-h1-slices"), **asked)  # type: ignore[arg-type]
    assert split.plan.schedule.family == "zb-h1-slices" and split.value < joined.value
    assert "zb-h1-slices" in " ".join(joined.searched.not_searched)
    assert "zb-h1-slices" not in " ".join(split.searched.not_searched)


@pytest.mark.parametrize("teams", [1, 2, (1, 2)])
def test_families_of_whole_sequences_run_no_slices(teams: int | tuple[int, ...]) -> None:
    """They are refused at once, also where all plans have teams, which may never be opened."""
    job = Job(8, teams=(teams,) if isinstance(teams, int) else teams, slices=(1, 4), schedules=("gpipe",))
    with pytest.raises(InputError, match="schedules gpipe run whole sequences, and 4 token slices"):
        Spaces(load_model("gpt2-small"), load_cluster("4-v100-nvlink"), job, opening=Clock(Limits()))


def equal_stages(layers: int) -> Model:
    """Equal layers, of which attention is half."""
    model = sliced_chain(Random(0), layers)
    cost = LayerCost(1200, 2400, 1200, 1200, 8, 0, 0, 0)
    rows = tuple(Layer(f"l{i}", 0, (f"l{i - 1}",) if i else (), operators="g") for i in range(layers))
    profile = Profile("unit", 1, (cost,) * layers, model.profiles[0].provenance)
    return Model("equal", rows, (profile,), operators={"g": token_operators(6, 6)})


def test_the_way_through_is_the_step_of_one_micro_batch() -> None:
    """On equal stages with free links the bound of one micro-batch is its step: the last slice takes longest."""
    model = equal_stages(4)
    cluster = Cluster.uniform(4, DeviceKind("unit"), Link())
    space = Space(sliced(model, 6), cluster, Job(1, slices=(6,), optimizer="sgd"))
    candidate = space.candidates(tuple((device,) for device in cluster.devices), 1)[0]
    value = evaluate(cluster, candidate, (0, 1, 2, 3, 4)).value
    assert candidate.problem.evaluate((0, 1, 2, 3, 4)) == value
    stages = assemble(candidate.chain, cluster, (0, 1, 2, 3, 4)).stages
    assert value == 3600 + sum(each.duration(Kind.FORWARD, 5) + each.duration(Kind.BACKWARD, 5) for each in stages[1:])


@pytest.mark.slow
def test_families_of_slices_are_compared() -> None:
    """A comparison has a row of each family, of whole sequences and of slices, each under its own numbers."""
    job = Job(1, slices=(1, 3), optimizer="sgd", depths=(2,), replicas=(1,))
    found = compare(sliced_chain(Random(3), 2), unit_cluster(2), job=job, time_limit=20)
    assert {"gpipe", "1f1b-sno", "1f1b-slices", "terapipe"} <= {*found.results}
    assert found.results["terapipe"].plan.slices == (4, 4, 4) and not found.results["gpipe"].plan.slices
