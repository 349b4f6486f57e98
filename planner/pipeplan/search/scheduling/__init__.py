"""Schedules that are found for a fixed pipeline, not chosen from families.

::

    pipeline ──schedule_problem──▶ instance ──solver──▶ orders ──as_schedule──▶ schedule ──simulate──▶ its time
"""

from pipeplan.search.scheduling.instance import schedule_problem, splittable
from pipeplan.search.scheduling.lists import as_orders, as_schedule
from pipeplan.search.scheduling.lower_bound import relaxed_problem, schedule_lower_bound
from pipeplan.search.scheduling.search import Found, find

__all__ = [
    "Found",
    "as_orders",
    "as_schedule",
    "find",
    "relaxed_problem",
    "schedule_lower_bound",
    "schedule_problem",
    "splittable",
]
