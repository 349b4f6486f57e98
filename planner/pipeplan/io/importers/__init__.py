"""Parsers of other projects' workload files."""
