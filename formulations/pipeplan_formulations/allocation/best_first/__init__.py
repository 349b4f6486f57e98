"""Best-first search for the allocation problem."""
