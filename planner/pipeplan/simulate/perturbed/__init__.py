"""Monte Carlo simulation with perturbed times."""
