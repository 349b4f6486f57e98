"""Schedules that are found for a fixed pipeline, not chosen from families.

::

    pipeline ──schedule_problem──▶ instance ──solver──▶ orders ──as_schedule──▶ schedule ──simulate──▶ its time
"""

from pipeplan.search.scheduling.floor import floor, floor_problem
from pipeplan.search.scheduling.instance import schedule_problem, splittable
from pipeplan.search.scheduling.lists import as_orders, as_schedule
from pipeplan.search.scheduling.search import Found, find

__all__ = ["Found", "as_orders", "as_schedule", "find", "floor", "floor_problem", "schedule_problem", "splittable"]
