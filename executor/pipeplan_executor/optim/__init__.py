"""Work once per step: gradients summed over replicas and copies, clipped, and used by each stage's optimiser."""
