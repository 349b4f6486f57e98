"""Heuristics that are short of time, or whose plans lie outside the searched space."""

import sys
from dataclasses import replace

import pytest

from helpers.instances import equal_devices, fat_head, tiny_chain
from helpers.judged import baselines
from pipeplan.analysis.compare import SOLVER, compare
from pipeplan.cli.compare import as_json, show
from pipeplan.core.job import Job
from pipeplan.search.result import Result
from pipeplan.search.space.spaces import Spaces
from pipeplan.search.turns import LATE, Baseline
from pipeplan.solve import solve

SPACE = Spaces(fat_head(), equal_devices(3), Job(2))
"""Three devices for two micro-batches: data parallelism, which runs first, has no plan."""


def test_turns_go_on_until_a_plan_is_known() -> None:
    """Without time, heuristics run until one of them has a plan, and no further."""
    found = list(baselines(SPACE, 0.0).values())
    first = next(n for n, one in enumerate(found) if one.evaluated)
    assert first > 0
    assert all(one.why != LATE for one in found[:first])
    assert {one.why for one in found[first + 1 :]} == {LATE}
    one = found[first].value
    assert one is not None and solve(fat_head(), equal_devices(3), batch=2, time_limit=0.0).value <= one


def test_a_plan_that_is_known_already_ends_the_turns() -> None:
    """With a known plan no heuristic runs once the time is over."""
    assert {one.why for one in baselines(SPACE, 0.0, incumbent=lambda: 1).values()} == {LATE}


def test_a_plan_outside_what_was_asked_is_marked() -> None:
    """Such a plan may be below the answer, with a reason; without a reason it would contradict the proof."""
    model, cluster = tiny_chain(), equal_devices(2)
    asked, free = (solve(model, cluster, job=Job(4, depths=depths, replicas=(1,))) for depths in ((1,), ()))
    evaluated = free.baselines["chain-minmax"].evaluated
    assert evaluated is not None
    assert evaluated.value < asked.value
    why = "it has 2 stages, the job asks for 1"
    rows = {"chain-minmax": Baseline("chain-minmax", evaluated, outside=why)}
    marked = replace(asked, baselines=rows)
    assert f"outside what was asked: {why}" in str(marked)
    assert marked.as_json()["balancers"]["chain-minmax"]["outside"] == why  # type: ignore[index, call-overload]
    with pytest.raises(ValueError, match="beats the answer"):
        replace(asked, baselines={"chain-minmax": Baseline("chain-minmax", evaluated)})


def test_a_comparison_marks_it_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The table and its data carry the reason."""
    why = "no such depth"

    def marked(*question: object, **how: object) -> Result:
        result = solve(*question, **how)  # type: ignore[arg-type]
        return replace(result, baselines={n: replace(row, outside=why) for n, row in result.baselines.items()})

    monkeypatch.setattr(sys.modules["pipeplan.analysis.compare"], "solve", marked)
    comparison = compare(tiny_chain(), equal_devices(2), Job(4, schedules=("gpipe",)), time_limit=10)
    rows = [row for row in as_json(comparison)["rows"] if row["method"] != SOLVER]  # type: ignore[attr-defined]
    assert rows
    assert all(row["outside"] == why for row in rows)
    show(comparison)
    assert "outside what was asked: no such depth" in " ".join(capsys.readouterr().out.split())


def test_the_table_has_one_line_per_method(capsys: pytest.CaptureFixture[str]) -> None:
    """By default each method has its best row; ``every`` has all rows, and ``top`` the fastest of them."""
    found = compare(tiny_chain(), equal_devices(2), Job(4, schedules=("gpipe", "1f1b-sno")))
    lines = found.lines()
    assert len(lines) == len({row.method for row in found.rows}) < len(found.rows)
    for line in lines:
        values = [row.value for row in found.rows if row.method == line.method and row.value is not None]
        assert line.value == min(values, default=None)
    assert found.lines(every=True) == found.rows
    assert found.lines(3) == lines[:3]
    show(found, 3)
    assert f"{len(found.rows) - 3} more lines" in capsys.readouterr().out


@pytest.mark.parametrize("levels", [(3,), (0, 3)])
def test_a_family_that_no_level_of_zero_runs_is_left_out(levels: tuple[int, ...]) -> None:
    """Of what `solve` answers there is a comparison too, with its bound; a family's row has the levels that run it."""
    job = Job(4, schedules=("gpipe", "fbp-as"), zero=levels)
    asked = tiny_chain(), equal_devices(2, overlap="stream"), job
    table, answer = compare(*asked, time_limit=10), solve(asked[0], asked[1], job=job, time_limit=10)
    assert table.bound == answer.bound == answer.value == table.best.value
    assert ("fbp-as" in table.results) == (0 in levels)
