"""Experiments over a grid of models, clusters and jobs: `pipeplan.solve` for every cell, one table row per cell.

::

    experiment ─▶ cells ─▶ run ─▶ workers: a process per cell ─▶ work: solve ─▶ record: a file per cell ─▶ table

The entry point is `pipeplan.analysis.sweep.run.sweep`.
"""
