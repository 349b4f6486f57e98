"""What the problems share: reports, limits, solvers, recomputation, spans."""
