"""A referee: what a plan costs and which plan is best, from the documented rules, with the standard library only.

::

    questions ──▶ documents ──▶ planner (bridge) ──▶ answer ──┐
                      │                                       ▼
                      └──▶ costs ─▶ schedules ─▶ simulate ─▶ verdict ◀── best ◀── space

No file here but `bridge.py`, `collectives.py`, `placed.py` and `__main__.py` imports anything of the project, so that a
mistake in a rule has to be made twice to go unnoticed. Times are integers of nanoseconds, sizes integers of bytes.
"""
