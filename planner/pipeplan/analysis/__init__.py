"""Analyses built on `pipeplan.solve`: explain, compare, frontier, sweep."""
