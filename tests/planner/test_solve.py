"""The main door: what comes out when the search is cut short, and what the answer promises."""

from importlib import import_module
from pathlib import Path

import pytest

from helpers.instances import equal_devices, fat_head, model_of, tiny_chain, two_kinds_of_device
from pipeplan.analysis.explain import explain_plan
from pipeplan.core.errors import InputError
from pipeplan.core.plan import Plan
from pipeplan.solve import solve
from pipeplan_formulations.common.mip import SOLVERS
from pipeplan_formulations.common.report import Status, Stop


def test_ctrl_c_hands_back_the_incumbent() -> None:
    """An interrupt ends the search with the best plan so far, its bound, and the reason."""

    def impatient(incumbent: int | None, bound: int, left: int) -> None:
        if incumbent is not None:
            raise KeyboardInterrupt

    result = solve(fat_head(), equal_devices(3), batch=16, on_progress=impatient)
    assert result.stop is Stop.INTERRUPT
    assert 0 < result.bound <= result.value


def test_an_interrupt_before_heuristics_begin_leaves_them_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """On large clusters they come behind the search, where they would take longer than who interrupts it waits."""
    monkeypatch.setattr(import_module("pipeplan.search.space.space"), "LONG", 0)

    def impatient(incumbent: int | None, bound: int, left: int) -> None:
        raise KeyboardInterrupt

    result = solve(fat_head(), equal_devices(3), batch=16, on_progress=impatient)
    assert result.stop is Stop.INTERRUPT
    assert not result.baselines


def test_no_time_still_gives_the_best_balancers_plan_and_a_bound() -> None:
    """With no time to search, the answer is the best balancer's plan and the bound that costs nothing."""
    result = solve(fat_head(), equal_devices(3), batch=16, time_limit=0.0)
    values = [row.value for row in result.baselines.values() if row.value is not None]
    assert result.stop is Stop.TIME
    assert result.value == min(values)
    assert 0 < result.bound <= result.value


def test_a_gap_that_is_asked_for_stops_the_search() -> None:
    """The answer keeps the gap and says why it stopped."""
    result = solve(fat_head(), equal_devices(3), batch=16, gap=0.5)
    assert result.gap <= 0.5
    assert result.stop in (Stop.GAP, Stop.OPTIMALITY)


def test_unequal_devices_get_unequal_shares() -> None:
    """Two fast and two slow devices: the slow ones hold fewer layers, and the plan is proved best."""
    result = solve(fat_head(), two_kinds_of_device(), batch=16, depths=(4,))
    sizes = [len(stage.layers) for stage in result.plan.stages]
    assert result.status is Status.OPTIMAL
    assert sum(sizes[:2]) > sum(sizes[2:])


def test_both_solvers_give_one_value() -> None:
    """CP-SAT and CBC agree."""
    values = {solve(tiny_chain(), equal_devices(2), batch=8, backend=name).value for name in SOLVERS}
    assert len(values) == 1


def test_in_a_long_run_later_updates_are_hidden(tmp_path: Path) -> None:
    """The period is proved, less than the step of the same plan, and stands in the plan's file beside it."""
    model = model_of([4, 4, 4], parameters=[1, 1, 1], update=[0, 0, 30])
    step, long_run = (
        solve(model, equal_devices(3), batch=4, depths=(3,), objective=objective) for objective in ("step", "period")
    )
    plan = long_run.plan
    assert long_run.status is Status.OPTIMAL
    assert long_run.value == plan.period < plan.step_time
    assert long_run.value < step.value == step.plan.step_time
    assert step.plan.period is None
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").value == long_run.value
    assert "period in a long run" in str(long_run)
    assert long_run.as_json()["period_s"] == long_run.value / 1e9
    with pytest.raises(InputError, match="long run"):
        explain_plan(plan)


def test_a_step_needs_a_batch() -> None:
    """Without a batch there is no step to plan, and the error says so."""
    with pytest.raises(InputError, match="batch"):
        solve(tiny_chain(), equal_devices(2))
    assert solve(tiny_chain(), equal_devices(2), objective="bottleneck").value > 0
