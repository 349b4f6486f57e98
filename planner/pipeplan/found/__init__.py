"""Schedules that are found for a fixed pipeline, not chosen from families.

::

    pipeline ──schedule_problem──▶ instance ──solver──▶ orders ──as_schedule──▶ schedule ──simulate──▶ its time
"""

from pipeplan.found.instance import schedule_problem, splittable
from pipeplan.found.lists import as_orders, as_schedule

__all__ = ["as_orders", "as_schedule", "schedule_problem", "splittable"]
