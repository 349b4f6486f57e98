"""What the formulations share: brackets, Pareto filters, sentinels."""
