"""Processes of a run: rendezvous, watching, ending together, restart; `pipeplan_executor.processes.launcher` uses them."""
