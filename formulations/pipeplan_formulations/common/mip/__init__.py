"""Mixed-integer linear models, and an adapter for each solver."""
