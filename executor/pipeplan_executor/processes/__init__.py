"""Processes of a run: rendezvous, watching, ending together, restart; `processes.launcher` uses them."""
