"""Optimisation problems of pipeline planning: integers and arrays in, a solution with a proven bound out.

Each problem is a folder: ``instance.py`` states its equations, and ``BACKENDS`` of the package lists its solvers by
name. All of them are called the same way: ``solve(problem, limits, hint=None, on_progress=None) -> Report``. Parts that
several problems share are in ``common``.
"""
