"""Meshes: teams whose devices have several axes, along each of which operators are split by themselves.

`redistributions` moves tensors between layouts, `words` has the ways to split an operator, `volumes` what a linear map
sends under each of them, `named` those that have names, and `lower_bound` what it sends at least.
"""
