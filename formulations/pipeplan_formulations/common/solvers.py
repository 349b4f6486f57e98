"""Late imports of the solver libraries, in the one order that works, and their versions.

OR-Tools is imported before PuLP: PuLP loads ``highspy`` if it is installed, whose library conflicts with the one in
OR-Tools when loaded first.
"""

from importlib import import_module
from threading import Event, Thread, current_thread, main_thread
from typing import Any

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Stop
from pipeplan_formulations.common.signals import received

WORKERS = 8
"""Largest number of threads of CP-SAT."""
POLL = 0.05
"""Seconds after which signals are looked for, and between two requests to stop."""


def cp_model() -> Any:
    """``ortools.sat.python.cp_model``."""
    return import_module("ortools.sat.python.cp_model")


def cpsat_solver(limits: Limits) -> Any:
    """A ``CpSolver`` within the limits.

    Presolve is off. In OR-Tools 9.15 some of its rules can remove every optimal solution, and CP-SAT then proves a
    wrong optimum or reports a feasible model as infeasible (google/or-tools#5293 and #5274). Of 32,000 small chain
    partitions solved without a hint, it got about 30 wrong with presolve, and as many with the rules that #5293 names
    switched off. It got none wrong without presolve, which costs these models no time. Wrong results without presolve
    have been reported for more than ten workers (#5295), so there are at most `WORKERS`.

    Ctrl-C stops a solve, which then returns its best solution, with ``interrupted`` set. CP-SAT's own handler of the
    signal is switched off, because it hides the signal from Python. Instead the solve runs in a separate thread, so
    that Python's handlers run in the main thread.
    """
    cp = cp_model()

    class Solver(cp.CpSolver):  # type: ignore[misc, name-defined]
        interrupted = False

        def solve(self, *arguments: Any) -> Any:
            if current_thread() is not main_thread():
                return super().solve(*arguments)
            ended = Event()  # Thread.join may treat a running thread as ended if a signal arrives at the wrong moment
            answers: list[Any] = []
            errors: list[BaseException] = []
            solve = super().solve

            def run() -> None:
                try:
                    answers.append(solve(*arguments))
                except BaseException as error:
                    errors.append(error)
                finally:
                    ended.set()

            Thread(target=run, name="cp-sat", daemon=True).start()
            while not ended.is_set():
                try:
                    ended.wait(POLL)  # not for ever: a signal may be delivered to another thread, and wake no one here
                except KeyboardInterrupt:
                    self.interrupted = True
                if self.interrupted:  # repeatedly, because a search that has not begun ignores the request
                    self.stop_search()
            if errors:
                raise errors[0]
            return answers[0]

    solver = Solver()
    solver.parameters.max_time_in_seconds = max(limits.time, 0.05)
    solver.parameters.num_workers = min(limits.workers, WORKERS)
    solver.parameters.random_seed = limits.seed
    solver.parameters.relative_gap_limit = limits.gap
    solver.parameters.cp_model_presolve = False
    solver.parameters.catch_sigint_signal = False
    return solver


def why_stopped(solver: Any, clock: Clock) -> Stop:
    """Reason why a solver of `cpsat_solver` ended without a proof: a signal, the time limit, or unknown (exhausted)."""
    if solver.interrupted or received():
        return Stop.INTERRUPT
    return Stop.TIME if clock.over else Stop.EXHAUSTED


def pulp() -> Any:
    """``pulp``, with OR-Tools loaded before it."""
    cp_model()
    return import_module("pulp")


def cpsat_version() -> str:
    """``'ortools 9.15.6755'``."""
    return _version("ortools")


def cbc_version() -> str:
    """``'pulp 3.3.0'``; the version of PuLP determines that of the bundled CBC."""
    return _version("pulp")


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version  # slow to import, seldom needed

    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} (not installed)"
