"""Search for the best schedule of a fixed pipeline, over orders outside the schedule families too.

::

    pipeline ──schedule_problem──▶ instance ──solver──▶ orders ──as_schedule──▶ schedule ──simulate──▶ step time
"""

from pipeplan.search.scheduling.instance import schedule_problem, splittable
from pipeplan.search.scheduling.lists import as_orders, as_schedule
from pipeplan.search.scheduling.lower_bound import relaxed_problem, schedule_lower_bound
from pipeplan.search.scheduling.search import ScheduleResult, find_schedule

__all__ = [
    "ScheduleResult",
    "as_orders",
    "as_schedule",
    "find_schedule",
    "relaxed_problem",
    "schedule_lower_bound",
    "schedule_problem",
    "splittable",
]
