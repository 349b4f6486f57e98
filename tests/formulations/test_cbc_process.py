"""CBC's answer when its process ends early."""

import fcntl
import itertools
import os
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.quick import QUICK, rarely
from pipeplan_formulations.common import cbc_process
from pipeplan_formulations.common.cbc_process import CbcAnswer, run_cbc
from pipeplan_formulations.common.mip.cbc import solve_cbc
from pipeplan_formulations.common.mip.cpsat import CPSAT
from pipeplan_formulations.common.mip.model import Expression, LinearModel
from pipeplan_formulations.common.report import Limits, Status
from pipeplan_formulations.common.solvers import pulp

KILLS = 200


def problem(integers: int = 6) -> tuple[Any, list[Any]]:
    """A small problem with an unused variable, and its variables."""
    module = pulp()
    written = module.LpProblem("model", module.LpMinimize)
    variables = [written.add_variable(f"v{i}", 0, 9, module.LpInteger) for i in range(integers)]
    unused = written.add_variable("unused", 2, 9)
    for left, right in itertools.pairwise(variables):
        written += 3 * left + 2 * right >= 5
    written.setObjective(module.lpSum(variables) + 0.5 * variables[0])
    return written, [*variables, unused]


def looking(look: Callable[[Path], None]) -> Callable[..., Any]:
    """Stand-in for ``subprocess.run`` that looks at the solution's file afterwards."""
    real = subprocess.run

    def run(command: list[str], **more: Any) -> Any:
        done = real(command, **more)
        look(Path(command[-1]))
        return done

    return run


@pytest.mark.parametrize("infeasible", [False, True])
def test_a_solution_cut_at_any_byte_is_none(infeasible: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The solution is read whole or not at all, wherever its file ends; infeasible is no verdict of a part either."""
    written, variables = problem()
    if infeasible:
        written += variables[0] + variables[1] <= 0
    expected = run_cbc(written, variables, 10.0, Limits())
    kept: list[bytes] = []
    with monkeypatch.context() as patch:
        patch.setattr(cbc_process.subprocess, "run", looking(lambda path: kept.append(path.read_bytes())))
        run_cbc(written, variables, 10.0, Limits())
    content = kept[0]

    def instead(command: list[str], **_: Any) -> Any:
        Path(command[-1]).write_bytes(content[:length])
        return subprocess.CompletedProcess(command, -9, "", "")

    monkeypatch.setattr(cbc_process.subprocess, "run", instead)
    for length in range(0, len(content), 3 if QUICK else 1):
        answer = run_cbc(written, variables, 10.0, Limits())
        assert answer == CbcAnswer(False, False, None, 0.0, False, False), content[:length]
        assert answer.crashed
    length = len(content)
    answer = run_cbc(written, variables, 10.0, Limits())
    assert (answer.point, answer.infeasible) == (expected.point, infeasible)


def test_half_a_bound_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of a process that was killed gives no bound, since its last number may lack digits."""
    written, variables = problem()

    def killed(command: list[str], **_: Any) -> Any:
        return subprocess.CompletedProcess(command, -9, "Lower bound:   12", "")

    monkeypatch.setattr(cbc_process.subprocess, "run", killed)
    assert run_cbc(written, variables, 10.0, Limits()).bound == 0


def knapsack() -> tuple[LinearModel, int]:
    """A model of which CBC needs some hundredths of a second, and its least objective."""
    generator = random.Random(3)
    model = LinearModel()
    items = [model.boolean() for _ in range(25)]
    value = model.integer(0, 10_000)
    model.at_least(Expression({item: generator.randrange(20, 90) for item in items}), 700)
    model.at_least(Expression({value: 1, **{item: -generator.randrange(20, 90) for item in items}}), 0)
    model.minimize(value)
    exact = CPSAT.solve(model, Limits())
    assert exact.status == Status.OPTIMAL
    assert exact.point is not None
    return model, round(exact.point[value])


@pytest.mark.parametrize("kills", [10, rarely(KILLS)])
def test_a_killed_process_is_no_answer(kills: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever CBC is killed: no error, no false bound, no verdict, and a point only if it is one."""
    generator = random.Random(kills)
    model, least = knapsack()
    killed = 0

    def run(command: list[str], **_: Any) -> Any:
        nonlocal killed
        began = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            while process.poll() is None and time.monotonic() < began + delay:
                time.sleep(0.0005)
            killed += process.poll() is None
            process.kill()
            log, _ = process.communicate()
        spans.append(time.monotonic() - began)
        return subprocess.CompletedProcess(command, process.returncode, log, "")

    monkeypatch.setattr(cbc_process.subprocess, "run", run)
    delay, spans = 60.0, list[float]()
    assert solve_cbc(model, Limits()).bound == least
    longest = spans[0]
    while killed < kills:
        delay = generator.uniform(0, longest)
        answer = solve_cbc(model, Limits())
        assert answer.status in (Status.UNKNOWN, Status.FEASIBLE, Status.OPTIMAL)
        assert answer.bound <= least
        assert answer.point is None or answer.point[model.objective] >= least


def test_folders_of_killed_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed process left goes with the next one; what a living one has locked, or is new, stays."""
    monkeypatch.setattr(cbc_process.tempfile, "gettempdir", lambda: str(tmp_path))
    for name in ("left", "locked", "new"):
        folder = tmp_path / f"{cbc_process.PREFIX}{name}"
        folder.mkdir()
        (folder / "model.mps").touch()
        if name != "new":
            os.utime(folder, (0, 0))
    handle = os.open(tmp_path / f"{cbc_process.PREFIX}locked", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        with cbc_process._model_folder() as folder:
            assert Path(folder).parent == tmp_path
    finally:
        os.close(handle)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipeplan-cbc-locked", "pipeplan-cbc-new"]
