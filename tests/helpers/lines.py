"""Schedules on a line of devices, as `benchmarks/schedule_scale.py` draws them."""

from helpers.scripts import script

line = script("benchmarks/schedule_scale.py").line
