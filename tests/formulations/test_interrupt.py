"""Ctrl-C after CP-SAT has run."""

import subprocess
import sys

AFTER_A_SOLVE = """
import signal
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.common.solvers import cp_model, cpsat_solver

model = cp_model().CpModel()
x, y = (model.new_int_var(0, 9, name) for name in "xy")
model.add(x + y >= 7)
model.minimize(x + 2 * y)
cpsat_solver(Limits(time=5)).solve(model)
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("heard")
"""


def test_python_receives_an_interrupt_after_a_solve() -> None:
    """A search that runs CP-SAT repeatedly can be interrupted in between, and returns its best solution."""
    done = subprocess.run([sys.executable, "-c", AFTER_A_SOLVE], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "heard", done.stderr
