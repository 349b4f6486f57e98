"""How a plan is proved: pure mathematics. Integers and arrays in, a solution with a bound out.

Every problem is a folder of the same shape: ``problem.py`` states it, each other file solves it one way, and all
solve with the same call: ``solve(problem, limits, hint=None, progress=None) -> Report``.
"""
