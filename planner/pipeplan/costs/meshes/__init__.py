"""Meshes: teams whose devices have several axes, along each of which operators are split by themselves.

`shapes` has the meshes of a team, `redistributions` moves tensors between layouts, `words` has the ways to split an
operator, and `problem` the choice of them for a layer. `volumes` is what a linear map sends under each word, `named`
has those with names, and `lower_bound` is what it sends at least.
"""
