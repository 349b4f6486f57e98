"""Every heuristic is judged, whatever the time limit; only what computes for long itself may be left out."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from helpers.instances import equal_devices, fat_head, two_kinds_of_device
from pipeplan.analysis.sweep.cells import Cell, Question
from pipeplan.analysis.sweep.experiment import NamedModel
from pipeplan.analysis.sweep.work import record
from pipeplan.baselines.deadline import OutOfTime, check_deadline, ending
from pipeplan.baselines.partitioners import PARTITIONERS
from pipeplan.baselines.partitioners.partitioner import Partitioner
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job
from pipeplan.search import heuristics, proposals, turns
from pipeplan.search.evaluate import EvaluatedPlan
from pipeplan.search.heuristics import Heuristics
from pipeplan.search.proposals import Proposals
from pipeplan.search.space.spaces import Spaces
from pipeplan.search.turns import LATE, SHORT, Baseline
from pipeplan.solve import solve

SLOW = "slow"
"""The name of a partitioner that says that it computes for hours, and does not."""


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the layers on the first stage, the others one by one."""

    def balance(chain: Any, _: int) -> tuple[int, ...]:
        rest = chain.stages - 1
        return (0, *range(chain.layers - rest, chain.layers + 1))

    partitioner = Partitioner(SLOW, "slow", "drawn", balance, effort=lambda layers, stages: 10**13)
    for module in (heuristics, proposals, turns):
        monkeypatch.setattr(module, "PARTITIONERS", {**PARTITIONERS, SLOW: partitioner})


def judged(rows: Mapping[str, Baseline]) -> bool:
    """Whether something is known of each."""
    return bool(rows) and not any(row.untried for row in rows.values())


@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.3])
def test_the_answer_is_the_best_of_all_heuristics(seconds: float) -> None:
    """None reads "not tried", and none within what was asked is faster, though the search has no time."""
    for job in (Job(8), Job(8, replicas=(1,)), Job(8, depths=(2,))):
        found = solve(fat_head(), two_kinds_of_device(), job=job, time_limit=seconds, workers=1)
        assert judged(found.baselines)
        values = [row.value for row in found.baselines.values() if row.value is not None and not row.outside]
        assert found.value <= min(values)
        assert "not tried" not in str(found)


def test_what_the_search_leaves_goes_to_heuristics() -> None:
    """Those without a plan get one first; with time enough all of them are as without any limit."""
    spaces = Spaces(fat_head(), two_kinds_of_device(), Job(8))
    best = Heuristics(spaces)
    best.begin(1e6)
    short = Heuristics(spaces, incumbent=lambda: 10**9)
    short.begin(0.0)
    assert {row.why for row in short.rows().values()} == {LATE}
    assert short.needed(1e6) > 0 == short.needed(0.0)
    short.finish(0.0)
    assert judged(short.rows())
    short.finish(1e6)
    for name, row in best.rows().items():
        assert (short.rows()[name].value, short.rows()[name].why) == (row.value, row.why)
    assert short.needed(1e6) == 0


def test_what_is_left_goes_to_them_on_large_clusters_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no plan is quick to make or to simulate, none exceeds the time, but all are tried while some is left."""
    monkeypatch.setattr(heuristics, "SMALL", 0)
    monkeypatch.setattr(heuristics, "QUICK", 0.0)
    result = solve(fat_head(), equal_devices(4), Job(batch=8), time_limit=600.0, gap=1.0)
    assert judged(result.baselines)
    assert not any(row.why in turns.NOT_ASKED for row in result.baselines.values())


def test_a_plan_found_behind_the_search_is_reported() -> None:
    """So that the answer is no slower than it."""
    reported: list[EvaluatedPlan] = []
    late = Heuristics(Spaces(fat_head(), equal_devices(3), Job(8)), reported.append, incumbent=lambda: 10**9)
    late.begin(0.0)
    assert not reported
    late.finish(0.0)
    assert {row.value for row in late.rows().values() if row.value} <= {plan.value for plan in reported}


def test_a_busy_machine_leaves_none_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What heuristics may take beyond the limit is time of the processor, of which they get a twentieth here."""
    monkeypatch.setattr(time, "monotonic", lambda: 20 * time.thread_time())
    late = Heuristics(Spaces(fat_head(), equal_devices(3), Job(8)), incumbent=lambda: 10**9)
    late.begin(0.0)
    late.finish(0.0)
    assert judged(late.rows())


@pytest.mark.usefixtures("slow")
def test_only_a_long_computation_may_be_left_out_and_not_if_it_is_named() -> None:
    """Then the answer says why; named, the heuristic has its plan."""
    left_out = solve(fat_head(), equal_devices(3), 8, time_limit=0.5, workers=1)
    assert [name for name, row in left_out.baselines.items() if row.untried] == [SLOW]
    assert f"not tried ({SHORT}): {SLOW}" in str(left_out)
    named = solve(fat_head(), equal_devices(3), 8, time_limit=0.5, workers=1, beside=(SLOW,))
    assert judged(named.baselines) and named.baselines[SLOW].value is not None


@pytest.mark.parametrize("named", [False, True])
def test_a_computation_that_takes_longer_than_estimated_is_ended(named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it is named, the heuristic is not tried, with the reason, and its next estimate is no less than that."""
    seconds = 2.0

    def balance(chain: Any, _: int) -> tuple[int, ...]:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            check_deadline()
            time.sleep(0.01)
        return (0, *range(chain.layers - chain.stages + 1, chain.layers + 1))

    partitioner = Partitioner(SLOW, "slow", "drawn", balance, effort=lambda layers, stages: 1)
    for module in (heuristics, proposals, turns):
        monkeypatch.setattr(module, "PARTITIONERS", {**PARTITIONERS, SLOW: partitioner})
    job, known = Job(8, micro_batches=(8,)), Proposals()
    judged_by = {"time_limit": 0.5, "workers": 1, "beside": (SLOW,) * named}
    row = solve(fat_head(), equal_devices(3), job=job, proposals=known, **judged_by).baselines[SLOW]
    assert (row.untried, row.why if row.untried else "") == (not named, "" if named else SHORT)
    spaces = Spaces(fat_head(), equal_devices(3), job)
    assert (known.seconds(spaces, SLOW, spaces.lowest.sizes[0]) > 1e-6) is not named


def test_a_deadline_holds_inside_only() -> None:
    """Outside there is none."""
    with pytest.raises(OutOfTime), ending(time.monotonic() - 1):
        check_deadline()
    check_deadline()
    with ending(time.monotonic() + 60):
        check_deadline()


@pytest.mark.usefixtures("slow")
def test_a_sweep_judges_what_its_table_shows(tmp_path: Path) -> None:
    """The names beside the answer are those of the search."""
    question = Question(fat_head(), equal_devices(3), Job(8), beside=(SLOW,))
    assert question.fingerprint == Question(fat_head(), equal_devices(3), Job(8)).fingerprint
    found = record(Cell(NamedModel("head"), "3 devices", Job(8)), question, tmp_path / "plan.json")
    assert found.beside[SLOW].value is not None


def test_unknown_names_are_refused() -> None:
    """With those that are known, before anything is searched."""
    with pytest.raises(InputError, match=r"beside\[1\]: 'alpha' is no partitioner or baseline planner"):
        solve(fat_head(), equal_devices(3), 8, beside=("alpa", "alpha"))
    with pytest.raises(InputError, match="beside lists names of heuristics"):
        solve(fat_head(), equal_devices(3), 8, beside="alpa")
