"""The step engine: a schedule as sends, receives and computations, and what runs them."""
