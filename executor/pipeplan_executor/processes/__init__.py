"""Processes of a run: met, watched, ended together, started again; `pipeplan_executor.launcher` is their front door."""
