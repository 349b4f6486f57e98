"""Experiments over models, clusters, jobs and searches: `pipeplan.solve` for every cell, one table row per cell.

::

    experiment ─▶ faults ─▶ cells ─▶ run ─▶ workers: a process per cell ─▶ work: solve ─▶ record and plan: files
                                                                                                │ folder
                              formats ◀─ sheets: tables in words ◀─ spread: over seeds ◀─ table ◀┘

The entry point is `pipeplan.analysis.sweep.run.sweep`.
"""
