"""Meshes: teams whose devices have several axes, along each of which operators are split by themselves.

`shapes` has the meshes of a team, `redistributions` moves tensors between layouts, `words` has the ways to split an
operator, `problem` the choice of them for a layer or a model, and `frontiers` that of the mesh too. `joined` makes one
graph of a model's layers, `clusters` the meshes of a cluster's devices, `unsplit` what cannot be split. `volumes` is
what a linear map sends under each word, `named` has those with names, `lower_bound` is what it sends at least, and
`products` compares both for a choice.
"""
