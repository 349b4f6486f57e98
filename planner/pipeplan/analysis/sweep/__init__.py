"""Experiments over a grid of models, clusters and jobs: every cell through `pipeplan.solve`, every cell a row.

::

    experiment ─▶ cells ─▶ run ─▶ crew: a process a cell ─▶ work: solve ─▶ record, a file of its own ─▶ table ─▶ formats

`pipeplan.analysis.sweep.run.sweep` is the door.
"""
