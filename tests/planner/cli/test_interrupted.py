"""Interrupted commands, which return the best plan so far."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from helpers.quick import rarely

TELLING = """
import sys
from pipeplan.search.branch_and_bound import PlanSearch
submit, found = PlanSearch.submit, []

def tell(self, judged, *rest):
    submit(self, judged, *rest)
    if not found:
        found.append(judged)
        print("a plan", file=sys.stderr, flush=True)

PlanSearch.submit = tell
from pipeplan.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
QUESTION = ("gpt2-xl", "4-v100-4-p100", "--batch", "64", "--time", "60", "--json")
SOON = 20.0
"""Processor seconds allowed after the signal; the search itself would take three times as long."""


def interrupted(number: signal.Signals, *command: str, folder: Path | None = None) -> tuple[int, str, float]:
    """Exit code, output and processor seconds since the signal, which is sent after the first plan."""
    running = subprocess.Popen(
        [sys.executable, "-c", TELLING, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **({} if folder is None else {"TMPDIR": str(folder)})},
    )
    assert running.stderr is not None
    while "a plan" not in running.stderr.readline():
        assert running.poll() is None
    time.sleep(0.5)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = _processor_seconds(running.pid)
    os.kill(running.pid, number)
    try:
        output = running.communicate(timeout=240)[0]
    finally:
        running.kill()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime - spent
    return running.returncode, output, seconds


def _processor_seconds(process: int) -> float:
    """Processor seconds of a running process; 0 where the system does not say them."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("number", [signal.SIGINT, rarely(signal.SIGTERM)])
def test_solve_hands_back_the_best_plan(number: signal.Signals) -> None:
    """SIGTERM does what Ctrl-C does: exit code 0, a plan, and ``"stop": "interrupt"``, soon."""
    code, output, seconds = interrupted(number, "solve", *QUESTION)
    answer = json.loads(output)
    assert code == 0
    assert answer["stop"] == "interrupt"
    assert answer["stages"]
    assert 0 < answer["bound_s"] < answer["step_time_s"]
    assert seconds < SOON


def test_compare_asks_no_further_family() -> None:
    """The solved families are in the table, and the others have a reason."""
    code, output, seconds = interrupted(signal.SIGTERM, "compare", *QUESTION)
    rows = json.loads(output)["rows"]
    assert code == 0
    assert any(row["method"] == "pipeplan" and row["step_time_s"] for row in rows)
    assert any("stopped before its turn" in row["why"] for row in rows)
    assert seconds < SOON


@pytest.mark.slow
@pytest.mark.parametrize("command", ["frontier", "explain", "solve"])
def test_other_commands_and_cbc(command: str, tmp_path: Path) -> None:
    """A frontier's first point, an explanation, and a search with CBC end likewise, and no CBC process is left."""
    code, output, seconds = interrupted(signal.SIGTERM, command, *QUESTION, "--backend", "cbc", folder=tmp_path)
    assert code == 0
    assert json.loads(output)
    assert seconds < SOON
    assert not any(str(tmp_path) in line for line in _command_lines())


def _command_lines() -> list[str]:
    """Command lines of all running processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just ended
            found.append(path.read_bytes().decode(errors="replace"))
    return found
