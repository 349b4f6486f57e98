"""CBC in a process of our own: PuLP writes the model and reads the answer.

The process is ours to start, because CBC may overrun its own time limit and because its log is the only place that
tells a dual bound.
"""

import re
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.common.signals import received
from pipeplan_formulations.common.solvers import pulp

GRACE, LEAST_GRACE = 0.1, 0.3
"""Part of its limit, and seconds at least, that CBC may take beyond it before it is killed."""
INCREMENT = 1e-9
"""By how much a solution must improve on the incumbent, for objectives of about 10^4; CBC's default is too much."""
RESOLUTION = 1e-7
"""Relative accuracy with which CBC's bound is trusted: its own tolerance for rows."""
_LOWER = re.compile(r"Lower bound:\s*([-+0-9.eE]+)")


@dataclass(frozen=True)
class CbcAnswer:
    """What CBC said.

    Attributes
    ----------
    optimal, infeasible : bool
    point : list of float or None
        A value for each variable.
    bound : float
        On the objective, in the model's units.
    late, interrupted : bool
        What ended it early.
    """

    optimal: bool
    infeasible: bool
    point: list[float] | None
    bound: float
    late: bool
    interrupted: bool

    @property
    def crashed(self) -> bool:
        """It said nothing at all."""
        return self.point is None and not (self.infeasible or self.late or self.interrupted)


def run_cbc(
    problem: Any, variables: list[Any], seconds: float, limits: Limits, *, preprocess: bool = True
) -> CbcAnswer:
    """Start CBC on a ``pulp.LpProblem``, wait ``seconds``, and kill it if it overruns.

    ``limits`` gives the gap, the threads and the seed. The point lists the values of ``variables``.

    With its integer preprocessing CBC 2.10.3 has been seen to call models infeasible that are not; without, it crashes
    on some that are. So it is asked both ways about a model without solution, and its second answer counts.
    ``preprocess`` is the first way.
    """
    began = time.monotonic()
    first = _answer(problem, variables, seconds, limits, preprocess)
    if first.point is not None or first.late or first.interrupted:
        return first
    second = _answer(problem, variables, max(seconds - (time.monotonic() - began), 0.1), limits, not preprocess)
    return first if second.crashed else second


def _answer(problem: Any, variables: list[Any], seconds: float, limits: Limits, preprocess: bool) -> CbcAnswer:
    module = pulp()
    reader = module.COIN_CMD(path=module.PULP_CBC_CMD().path, msg=False)
    with tempfile.TemporaryDirectory(prefix="pipeplan-cbc-") as folder:
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
            log = done.stdout
        except subprocess.TimeoutExpired:
            late, log = True, ""
        except KeyboardInterrupt:
            interrupted, log = True, ""
        if not solution.exists() or not solution.stat().st_size:  # killed, or it crashed
            return CbcAnswer(False, False, None, 0.0, late, interrupted)
        status, values, *_, sol_status = reader.readsol_MPS(str(solution), problem, columns, column_names, row_names)
    solved = sol_status in (module.LpSolutionOptimal, module.LpSolutionIntegerFeasible)
    point = None
    if solved and values:  # a variable that no row names keeps its least value
        point = [float(values.get(v.name, v.lowBound) or 0.0) for v in variables]
    told = _LOWER.search(log)
    infeasible = status == module.LpStatusInfeasible
    interrupted = interrupted or received()
    late = late or "time" in log.partition("Result - ")[2].partition("\n")[0]
    late = late or (infeasible and time.monotonic() - began >= seconds)  # preprocessing cut short says so of any model
    return CbcAnswer(
        optimal=sol_status == module.LpSolutionOptimal and not late,
        infeasible=infeasible and not late,
        point=point,
        bound=float(told[1]) if told else 0.0,
        late=late,
        interrupted=interrupted,
    )


def _patience(seconds: float) -> float:
    return seconds + max(GRACE * seconds, LEAST_GRACE)


def proven(value: float, unit: float) -> int:
    """The integer bound that a floating-point one allows: up to the next integer, after giving up its inaccuracy.

    ``value`` counts in the problem's units, ``unit`` is what one of the model's units is worth in them.
    """
    slack = RESOLUTION * max(value, unit)
    below = int(value - slack)
    return below if value - slack <= below else below + 1
