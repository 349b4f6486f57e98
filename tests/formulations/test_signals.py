"""Handling of signals while a search listens for them."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from pipeplan_formulations.common import signals
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Stop
from pipeplan_formulations.common.signals import interruptible, listening, nearly_done, received
from pipeplan_formulations.common.solvers import cp_model, cpsat_solver, why_stopped


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_interrupts_and_is_remembered(number: signal.Signals) -> None:
    """It raises KeyboardInterrupt, is recorded until listening ends, and then the handlers are restored."""
    before = [signal.getsignal(each) for each in signals.HANDLED]
    with listening():
        assert not received()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        assert received()
    assert not received()
    assert [signal.getsignal(each) for each in signals.HANDLED] == before


def test_the_second_signal_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers of KeyboardInterrupt do not catch it; a signal at the same moment is a duplicate of the first."""
    reached = []
    with pytest.raises(KeyboardInterrupt), listening():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            signal.raise_signal(signal.SIGTERM)  # the same one, passed on by a wrapper
            reached.append("answer")
        monkeypatch.setattr(signals, "DUPLICATE", -1.0)
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            reached.append("another answer")
    assert reached == ["answer"]


def test_what_is_nearly_done_is_finished() -> None:
    """While the answer is written the first signal is only recorded; afterwards a signal raises again."""
    with listening():
        with nearly_done():
            signal.raise_signal(signal.SIGTERM)
        assert received()
    with listening():
        with nearly_done():
            pass
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


def test_an_outer_listener_goes_on() -> None:
    """If one search is part of another, the outer one records the inner one's signal."""
    with listening():
        with pytest.raises(KeyboardInterrupt), listening():
            signal.raise_signal(signal.SIGINT)
        assert received()


def test_foreign_and_ignoring_handlers_stay() -> None:
    """Handlers of the host for SIGTERM, and an ignored SIGINT, are kept."""
    heard: list[int] = []
    before = [signal.getsignal(each) for each in signals.HANDLED]
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
        with listening():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            assert not received()
        assert heard == [signal.SIGTERM]
    finally:
        for number, handler in zip(signals.HANDLED, before, strict=True):
            signal.signal(number, handler)


def test_other_threads_leave_handlers_alone() -> None:
    """Python allows handlers in the main thread only; elsewhere listening does nothing."""
    found: list[object] = []

    def run() -> None:
        with listening():
            found.extend([signal.getsignal(signal.SIGTERM), received()])

    thread = threading.Thread(target=run)
    before = signal.getsignal(signal.SIGTERM)
    thread.start()
    thread.join()
    assert found == [before, False]


def test_a_solver_that_stops_early_is_not_interrupted() -> None:
    """A search stopped long before its limit without a signal is exhausted."""
    solver, clock = _stopped_at_the_first_solution(), Clock(Limits(time=60))
    assert clock.left > 50
    assert why_stopped(solver, clock) is Stop.EXHAUSTED
    assert why_stopped(solver, Clock(Limits(time=0))) is Stop.TIME


def _stopped_at_the_first_solution() -> object:
    cp = cp_model()
    model = cp.CpModel()
    x = [model.new_int_var(0, 1000, "") for _ in range(20)]
    model.add(sum(x) >= 100)
    model.minimize(sum(i * each for i, each in enumerate(x)))
    solver = cpsat_solver(Limits(time=60, workers=1))
    solver.parameters.stop_after_first_solution = True
    solver.solve(model)
    return solver


HARD = """
import sys, time
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.common.signals import listening
from pipeplan_formulations.common.solvers import cp_model, cpsat_solver, why_stopped

model = cp_model().CpModel()
starts = [model.new_int_var(0, 5000, "") for _ in range(60)]
for k in (0, 1):
    line = [model.new_fixed_size_interval_var(s, 7 + (i * 37 + k * 11) % 50, "") for i, s in enumerate(starts)]
    model.add_cumulative(line, [1 + i % 5 for i in range(60)], 7)
end = model.new_int_var(0, 6000, "")
model.add_max_equality(end, [s + 40 for s in starts])
model.minimize(end)

class Watcher(cp_model().CpSolverSolutionCallback):
    def on_solution_callback(self):
        print("found", flush=True)

limits = Limits(time=120, workers=2)
with listening():
    solver, clock = cpsat_solver(limits), Clock(limits)
    status = solver.solve(model, Watcher())
    print(solver.status_name(status), why_stopped(solver, clock).value, clock.wall < 60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_cp_sat_returns_its_best_solution_after_a_signal(number: signal.Signals) -> None:
    """A signal during a solve ends it with the best solution so far, and stop reason interrupt."""
    running = subprocess.Popen([sys.executable, "-c", HARD], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert running.stdout.readline() == "found\n"
    os.kill(running.pid, number)
    said = running.communicate(timeout=300)[0].splitlines()
    assert said[-1] == "FEASIBLE interrupt True"


def test_an_error_after_a_signal_is_the_interruption() -> None:
    """Libraries may turn the KeyboardInterrupt into errors of their own; without a signal an error stays what it is."""
    with pytest.raises(TypeError), listening(), interruptible():
        raise TypeError
    with pytest.raises(KeyboardInterrupt), listening(), interruptible():
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise TypeError from None
