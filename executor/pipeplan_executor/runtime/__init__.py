"""The step engine: lowering of a schedule to sends, receives and computations, and their execution."""
