"""Published heuristics: partitioners choose stage boundaries, planners choose replicas and devices too."""
