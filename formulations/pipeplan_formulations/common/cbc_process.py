"""CBC in a separate process; PuLP writes the model and reads the answer.

The process is started here, because CBC may exceed its own time limit, and because only its log has a dual bound.
"""

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.common.signals import received
from pipeplan_formulations.common.solvers import pulp

GRACE, LEAST_GRACE = 0.1, 0.3
"""Time beyond its limit after which CBC is killed: a part of the limit, and at least this many seconds."""
PREFIX = "pipeplan-cbc-"
"""Begin of the names of the folders for a model and its solution."""
NEW = 60.0
"""Age in seconds below which a folder is never removed: its process may be about to lock it."""
INCREMENT = 1e-9
"""Least improvement of a solution on the incumbent, for objectives of about 10^4; CBC's default is too large."""
RESOLUTION = 1e-7
"""Relative accuracy assumed of CBC's bound: its own tolerance for rows."""
_LOWER = re.compile(r"Lower bound:\s*([-+0-9.eE]+)")


@dataclass(frozen=True)
class CbcAnswer:
    """Answer of a CBC process.

    Attributes
    ----------
    optimal, infeasible : bool
    point : list of float or None
        A value for each variable.
    bound : float
        Lower bound on the objective, in the model's units.
    late, interrupted : bool
        True if the time limit or a signal ended it.
    """

    optimal: bool
    infeasible: bool
    point: list[float] | None
    bound: float
    late: bool
    interrupted: bool

    @property
    def crashed(self) -> bool:
        """True if it ended without any answer."""
        return self.point is None and not (self.infeasible or self.late or self.interrupted)


def run_cbc(
    problem: Any, variables: list[Any], seconds: float, limits: Limits, *, preprocess: bool = True
) -> CbcAnswer:
    """Start CBC on a ``pulp.LpProblem``, wait ``seconds``, and kill it if it overruns.

    ``limits`` gives the gap, the threads and the seed. The point lists the values of ``variables``.

    With its integer preprocessing, CBC 2.10.3 has reported feasible models as infeasible. Without it, CBC crashes on
    some infeasible models. So a model without a solution is solved both ways, and the second answer counts.
    ``preprocess`` is the setting of the first run.
    """
    began = time.monotonic()
    first = _answer(problem, variables, seconds, limits, preprocess)
    if first.point is not None or first.late or first.interrupted:
        return first
    second = _answer(problem, variables, max(seconds - (time.monotonic() - began), 0.1), limits, not preprocess)
    return first if second.crashed else second


def _answer(problem: Any, variables: list[Any], seconds: float, limits: Limits, preprocess: bool) -> CbcAnswer:
    """Run CBC once."""
    module = pulp()
    reader = module.COIN_CMD(path=module.PULP_CBC_CMD().path, msg=False)
    with _model_folder() as folder:
        mps, solution = Path(folder) / "model.mps", Path(folder) / "model.sol"
        columns, column_names, row_names, _ = problem.writeMPS(str(mps), rename=1)
        command = [reader.path, str(mps), "-sec", str(seconds), "-timeMode", "elapsed", "-ratio", str(limits.gap)]
        command += ["-threads", str(limits.workers), "-randomCbcSeed", str(limits.seed), "-increment", str(INCREMENT)]
        command += [] if preprocess else ["-preprocess", "off"]
        command += ["-solve", "-printingOptions", "all", "-solution", str(solution)]
        late = interrupted = False
        began = time.monotonic()
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=_patience(seconds),
                check=False,
                stdin=subprocess.DEVNULL,
            )
            log = done.stdout if done.returncode == 0 else ""  # a killed process may leave half a number
        except subprocess.TimeoutExpired:
            late, log = True, ""
        except KeyboardInterrupt:
            interrupted, log = True, ""
        if not _complete(solution, mps):  # killed, or it crashed
            return CbcAnswer(False, False, None, 0.0, late, interrupted)
        status, values, *_, sol_status = reader.readsol_MPS(str(solution), problem, columns, column_names, row_names)
    solved = sol_status in (module.LpSolutionOptimal, module.LpSolutionIntegerFeasible)
    point = None
    if solved and values:  # a variable without rows keeps its least value
        point = [float(values.get(v.name, v.lowBound) or 0.0) for v in variables]
    match = _LOWER.search(log)
    infeasible = status == module.LpStatusInfeasible
    interrupted = interrupted or received()
    late = late or "time" in log.partition("Result - ")[2].partition("\n")[0]
    late = late or (infeasible and time.monotonic() - began >= seconds)  # preprocessing out of time reports infeasible
    return CbcAnswer(
        optimal=sol_status == module.LpSolutionOptimal and not late,
        infeasible=infeasible and not late,
        point=point,
        bound=float(match[1]) if match else 0.0,
        late=late,
        interrupted=interrupted,
    )


@contextmanager
def _model_folder() -> Iterator[str]:
    """Context with a new folder, locked while this process lives; those that killed processes left are removed."""
    _remove_abandoned(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield folder
        finally:
            os.close(handle)


@cache
def _remove_abandoned(root: str) -> None:
    """Remove this user's folders that no process has locked, once in each process."""
    for left in Path(root).glob(f"{PREFIX}*"):
        with suppress(OSError):
            found = left.lstat()
            if found.st_uid != os.getuid() or time.time() - found.st_mtime < NEW:
                continue
            handle = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while its process lives
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(handle)


def _complete(solution: Path, mps: Path) -> bool:
    """Return whether CBC wrote its solution to the end: a whole line for the last column of the model."""
    try:
        lines = solution.read_text(errors="replace").splitlines(keepends=True)
    except FileNotFoundError:
        return False
    section = mps.read_text().partition("\nCOLUMNS\n")[2].partition("\nRHS\n")[0]
    names = [line.split()[0] for line in section.splitlines() if "MARKER" not in line]
    last = lines[-1] if lines else ""
    return last.endswith("\n") and (not names or names[-1] in last.split())


def _patience(seconds: float) -> float:
    """Seconds after which CBC is killed."""
    return seconds + max(GRACE * seconds, LEAST_GRACE)


def proven(value: float, unit: float) -> int:
    """The integer bound from a floating-point one: lowered by its inaccuracy, then rounded up.

    ``value`` is in the problem's units; ``unit`` is the model's unit in the problem's units.
    """
    slack = RESOLUTION * max(value, unit)
    below = int(value - slack)
    return below if value - slack <= below else below + 1
