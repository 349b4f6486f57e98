"""Published heuristics: partitioners cut a chain, planners choose replicas and devices too."""
