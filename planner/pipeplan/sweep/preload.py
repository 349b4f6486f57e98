"""What a worker needs, imported once in the process that workers are copies of."""

import ortools.sat.python.cp_model  # noqa: F401

import pipeplan.solve
import pipeplan.sweep.work  # noqa: F401
