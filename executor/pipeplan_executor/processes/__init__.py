"""Processes of a run: met, watched, ended together, started again; `processes.launcher` is their front door."""
