"""What a worker needs, imported once in the process that workers are copies of."""

import ortools.sat.python.cp_model  # noqa: F401

import pipeplan.analysis.sweep.work
import pipeplan.solve  # noqa: F401
