"""Profiles of a torch module, layer by layer. Light to import: torch is loaded when something is measured.

::

    module ──capture──▶ sequence of layers ──▶ segments in memory at once ──measure──▶ times, bytes ──▶ Model
"""

from pipeplan.frontend.profile.profiling import profile, profile_workload

__all__ = ["profile", "profile_workload"]
