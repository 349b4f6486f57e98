"""The searched space: device groups, candidates, constraints, in-flight counts."""
