"""Processes of a run: start, rendezvous, heartbeats, common end, restart. `processes.launcher` is the entry."""
