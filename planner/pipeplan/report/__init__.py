"""Pictures and traces of plans, time lines and frontiers."""
