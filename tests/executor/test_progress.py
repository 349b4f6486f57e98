"""Progress lines of a run."""

import io
import sys

import pytest

from helpers.instances import equal_devices, model_of
from pipeplan import Plan, solve
from pipeplan_executor.train.progress import line, running


@pytest.fixture(scope="module")
def plan() -> Plan:
    """One layer, whose step is 3 ns."""
    return solve(model_of([1], [2]), equal_devices(1), batch=1).plan


def test_a_line_sets_the_step_beside_its_prediction(plan: Plan) -> None:
    """Step, loss, time, how far it is off, and every rank's peak stand in one line."""
    text = line(plan, 7, 3, 2.302585, 6, [2**20, 2**21])
    assert text == "step 3 of 7   loss 2.3026   6 ns (+100.0% of 3 ns)   peaks 1.00 MiB, 2.00 MiB"


def test_files_get_few_lines(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """If standard error is no terminal, the first and the last of many short steps are shown."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with running(plan, 500) as tell:
        for step in range(1, 501):
            tell(step, 1.0, 3, [0])
    shown = sys.stderr.getvalue().splitlines()  # type: ignore[attr-defined]
    assert shown[0].startswith("step 1 of 500")
    assert shown[-1].startswith("step 500 of 500")
    assert len(shown) <= 10


def test_terminals_get_one_line_that_renews_itself(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal every step is drawn, and no thread draws between steps."""
    import threading

    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    before = threading.active_count()
    with running(plan, 3) as tell:
        for step in range(1, 4):
            tell(step, 1.0, 3, [0])
            assert threading.active_count() == before
            assert f"step {step} of 3" in screen.getvalue()


def test_quiet_runs_say_nothing(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    """Ranks other than the first, and --json, print nothing."""
    with running(plan, 1, quiet=True) as tell:
        tell(1, 1.0, 3, [0])
    assert capsys.readouterr() == ("", "")
