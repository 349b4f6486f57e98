"""Choice of plans where times vary: by mean or quantile, among all plans found, checked by separate samples."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from helpers.instances import BY_HAND, equal_devices, fat_head, model_of, two_kinds_of_device
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.errors import InputError
from pipeplan.core.model import Layer, LayerCost, Model, Profile
from pipeplan.core.perturbation import Robust
from pipeplan.search.result import Result
from pipeplan.simulate.perturbed.sample import step_times
from pipeplan.solve import solve
from pipeplan.solve.robust import choice as comparison
from pipeplan_formulations.common.report import Stop


def two_sizes() -> Model:
    """One layer; a micro-batch of four samples is 1 % faster than four micro-batches of one."""

    def profile(size: int, forward: int) -> Profile:
        return Profile("unit", size, (LayerCost(forward, 2 * forward, 0, 0, 0, 0, update=100),), BY_HAND)

    return Model("two sizes", (Layer("l0", 4, ()),), (profile(1, 1010), profile(4, 4000)))


def by_hand(micro_batch: int, micro_batches: int, spread: float) -> float:
    """The mean step of two replicas of `two_sizes`, from random numbers of its own: the slower one decides."""
    sigma = np.sqrt(np.log(1 + spread**2))
    draw = np.random.default_rng(77)
    count = micro_batches // 2
    time = micro_batch * 1000 + (10 if micro_batch == 1 else 0)
    factors = draw.lognormal(-(sigma**2) / 2, sigma, (2, 2 * count, 40_000))
    passes = factors * np.array([time, 2 * time] * count)[:, None]
    return float(passes.sum(axis=1).max(axis=0).mean())


def test_small_micro_batches_even_out_what_varies() -> None:
    """Nominal, few large micro-batches are 1 % faster; where passes vary by 30 %, many small ones are faster on
    average, and a sample drawn without any of our code agrees."""
    options: dict[str, Any] = {"batch": 16, "depths": (1,), "replicas": (2,), "zero": (0, 1)}
    plain = solve(two_sizes(), equal_devices(2), **options)
    chosen = solve(two_sizes(), equal_devices(2), robust="30%", **options)
    assert (plain.plan.micro_batch, chosen.plan.micro_batch) == (4, 1)
    assert chosen.value > plain.value == chosen.bound
    assert chosen.robust is not None
    means = {row.evaluated.candidate.chain.micro_batch: row.mean for row in chosen.robust.compared}
    for size, mean in means.items():  # gradients are summed and parameters updated in next to no time
        assert mean.value == pytest.approx(by_hand(size, 16 // size, 0.3), rel=0.02)
    assert by_hand(1, 16, 0.3) < by_hand(4, 4, 0.3)


def test_plans_of_several_levels_are_compared() -> None:
    """The fastest nominal step is one of whole copies; sharded ones stand beside it."""
    result = solve(model_of([10_000] * 6), equal_devices(3, None, Link(10**9, 0)), 12, optimizer="adam", robust="20%")
    assert result.robust is not None
    assert len({row.evaluated.candidate.chain.zero for row in result.robust.compared}) > 1


def test_the_robust_choice_is_right_by_a_separate_large_sample() -> None:
    """The chosen plan has the least mean of all compared in 20,000 other steps, within three standard errors."""
    result = solve(model_of([10_000] * 6), equal_devices(3), batch=12, depths=(3,), replicas=(1,), robust="20%")
    assert result.robust is not None
    assert len(result.robust.compared) > 2
    found = []
    for row in result.robust.compared:
        candidate, pipeline = row.evaluated.candidate, row.evaluated.pipeline
        found.append(step_times(candidate.schedule(pipeline), pipeline, Robust(0.2), samples=20_000, seed=12345))
    first, *others = found
    for other in others:
        apart = other - first
        assert apart.mean() > -3 * apart.std() / len(apart) ** 0.5


def test_more_in_flight_waits_less_where_times_vary() -> None:
    """Without transfers all 1F1B counts take equally long nominal; the one that holds more is chosen, and it is
    truly faster."""
    model = model_of([10_000] * 4)
    plain = solve(model, equal_devices(4), batch=16, depths=(4,), replicas=(1,), schedules=("1f1b-sno", "1f1b-so"))
    robust = solve(
        model, equal_devices(4), batch=16, depths=(4,), replicas=(1,), schedules=("1f1b-sno", "1f1b-so"), robust=0.2
    )
    assert plain.value == robust.value
    assert plain.plan.schedule.family == "1f1b-sno"
    assert robust.plan.schedule.family == "1f1b-so"
    assert robust.robust is not None
    gain = robust.robust.compared[1].behind
    assert gain.value > 5 * gain.error > 0


def test_where_any_order_is_searched_orders_with_slack_take_part() -> None:
    """Orders with equal nominal steps are compared with the one that was found, and one of them is truly faster
    where times vary."""
    model = model_of([10_000, 12_000, 9_000, 11_000, 13_000, 8_000], saved=[10] * 6, output=[1] * 6)
    options: dict[str, Any] = {"batch": 12, "depths": (3,), "replicas": (1,), "schedules": ("any",), "time_limit": 10}
    result = solve(model, equal_devices(3, link=Link(10**6)), robust="10%", **options)
    assert result.robust is not None
    assert len({row.evaluated.candidate.schedule(row.evaluated.pipeline).orders for row in result.robust.compared}) > 1
    chosen, plain = result.robust.chosen, result.robust.nominal.evaluated
    steps = [
        step_times(each.candidate.schedule(each.pipeline), each.pipeline, Robust(0.1), samples=4000, seed=99)
        for each in (chosen, plain)
    ]
    assert (steps[1] - steps[0]).mean() >= 0
    limits = result.plan.pipeline.limits
    assert all(peak <= limit for peak, limit in zip(result.timeline.peaks, limits, strict=True))


def answers(**how: Any) -> Result:
    """The result for the model with the large head."""
    return solve(fat_head(), two_kinds_of_device(), batch=16, **how)


def test_a_seed_repeats_the_choice() -> None:
    """The same seed gives the same table to the last digit, another seed another one."""

    def table(seed: int) -> object:
        choice = answers(robust="10%", seed=seed).robust
        assert choice is not None
        return [(row.evaluated.label, row.mean, row.quantile, row.behind) for row in choice.compared]

    assert table(1) == table(1)
    assert table(1) != table(2)


def test_without_a_spread_the_choice_is_the_nominal_one() -> None:
    """Spread 0: value, plan and bound are those of the plain answer, and every estimate is the value without error."""
    plain, still = answers(), answers(robust=0.0)
    assert (plain.value, plain.bound, plain.status) == (still.value, still.bound, still.status)
    assert still.robust is not None
    assert still.robust.chosen.value == plain.value
    for row in still.robust.compared:
        assert (row.mean.value, row.mean.error, row.quantile.value) == (row.value, 0, row.value)


@pytest.mark.parametrize("how", [{"robust": Robust(0.2)}, {"robust": Robust(0.2, 0.1, quantile=0.9)}])
def test_the_first_row_is_the_best_of_those_with_most_samples(how: dict[str, Any]) -> None:
    """The chosen plan has the least mean or quantile, every plan is within the nominal limit, and all are listed."""
    result = answers(**how)
    choice = result.robust
    assert choice is not None
    kind: Callable[[Any], float] = (
        (lambda row: row.mean.value) if choice.question.quantile is None else (lambda row: row.quantile.value)
    )
    finalists = [row for row in choice.compared if row.samples == choice.samples]
    assert choice.compared[0] == min(finalists, key=kind)
    assert choice.nominal in finalists
    assert all(row.value <= choice.limit for row in choice.compared)
    assert result.value == choice.compared[0].value == result.timeline.makespan == result.plan.step_time
    assert choice.mean_bound == result.bound
    text = str(result)
    assert choice.question.statistic in text
    assert "on average" in text


def test_no_mean_of_any_plan_lies_below_the_bound() -> None:
    """All sampled means lie above the proven bound, within five standard errors."""
    choice = answers(robust=Robust(0.3, 0.2)).robust
    assert choice is not None
    assert choice.mean_bound is not None
    assert all(row.mean.value + 5 * row.mean.error >= choice.mean_bound for row in choice.compared)
    assert all(row.mean.value + 5 * row.mean.error >= row.value for row in choice.compared)


def test_no_bound_on_means_is_claimed_where_cards_are_shared() -> None:
    """Three devices in two nodes share a card; the answer says that no bound is proved."""
    kinds = {"unit": DeviceKind("unit")}
    nodes = (Node(("unit", "unit"), Link(10**9)), Node(("unit",), Link(10**9)))
    cluster = Cluster("2 + 1", kinds, nodes, Link(10**8, 5), Overlap.COPY)
    result = solve(fat_head(), cluster, batch=16, robust="10%")
    assert result.robust is not None
    assert result.robust.mean_bound is None
    assert "no bound on means" in str(result)


def test_clearly_slower_plans_run_the_first_round_only() -> None:
    """Finalists run all samples; a plan that is many errors behind does not, and ranks behind them."""
    choice = answers(robust=Robust(0.05, samples=2000)).robust
    assert choice is not None
    few = comparison.first_round(choice.question, 2000)
    assert {row.samples for row in choice.compared} <= {few, 2000}
    for row in choice.compared:
        if row.samples == few:
            assert row.behind.value > 0
            assert row.mean.value > choice.compared[0].mean.value


def test_an_interrupt_keeps_what_was_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C during the comparison: the best of what was compared so far; at once: the nominal answer."""
    original, calls = comparison.steps, iter(range(100))

    def impatient(last: int) -> Callable[..., Any]:
        def steps(*args: Any, **how: Any) -> Any:
            if next(calls) >= last:
                raise KeyboardInterrupt
            return original(*args, **how)

        return steps

    for last, expected in ((2, 2), (0, None)):
        calls = iter(range(100))
        patched = impatient(last)
        monkeypatch.setattr(comparison, "steps", patched)
        result = answers(robust="10%")
        assert result.stop is (Stop.INTERRUPT if expected is None else Stop.OPTIMALITY)
        assert (None if result.robust is None else len(result.robust.compared)) == expected


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"robust": "five"}, "write it like 5% or 0.05"),
        ({"robust": "5"}, "write 5%"),
        ({"robust": -0.1}, "share"),
        ({"robust": 1.5}, "150%"),
        ({"robust": "5%", "objective": "bottleneck"}, "objective 'step'"),
        ({"robust": "5%", "intra_layer": True}, "whole layers"),
    ],
)
def test_bad_spreads_and_jobs_without_steps_are_refused(how: dict[str, Any], match: str) -> None:
    """The errors name valid values."""
    with pytest.raises(InputError, match=match):
        answers(**how)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"spread": 2.0}, "between 0% and 100%"),
        ({"spread": 0.1, "device_spread": -1}, "device_spread"),
        ({"spread": 0.1, "quantile": 95}, "0.95 chooses"),
        ({"spread": 0.1, "quantile": 0.99, "samples": 100}, "1000 or more"),
    ],
)
def test_a_question_checks_itself(fields: dict[str, Any], match: str) -> None:
    """Every field has a range, and a quantile needs samples beyond it."""
    with pytest.raises(InputError, match=match):
        Robust(**fields)


def test_far_quantiles_draw_more_samples() -> None:
    """By default at least ten samples lie beyond the quantile."""
    assert Robust(0.1, quantile=0.999).wanted == 10_000
    assert Robust(0.1).wanted == 1000
