"""Processes of a run: met, watched, ended together, started again; `pipeplan_executor.processes.launcher` is their front door."""
