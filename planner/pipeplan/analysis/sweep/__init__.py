"""Experiments over a grid of models, clusters and jobs: `pipeplan.solve` for every cell, one table row per cell.

::

    experiment ─▶ cells ─▶ run ─▶ crew: a process per cell ─▶ work: solve ─▶ record: a file per cell ─▶ table ─▶ formats

The entry point is `pipeplan.analysis.sweep.run.sweep`.
"""
