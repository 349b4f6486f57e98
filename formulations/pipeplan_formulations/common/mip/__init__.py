"""Mixed-integer linear models: one way to write them, and an adapter for each solver."""
