"""Splitting operators over the devices of a team: a mesh of one or several axes, along each of which they are split.

`teams` has what is asked, `places` the nodes of a team, and `shapes` its meshes. `placements` has the placements of an
operator's tensors along one axis, `exchanges` the collectives between them, and `redistributions` the ways over several
axes. `strategies` has the ways to split an operator, `rooflines` and `prices` what these cost, `problem` the choice of
them for a layer or a model in `coordinates`, and `frontiers` that of the mesh too. `device_costs` is what a device has
of a layer then. `ways` has the ways worth searching along one axis, from those of each layer (`layer_ways`), and
`splits` those along several; `question` makes them questions in which teams are devices, `mixed` with teams of unlike
sizes. `ties` has the weights that layers share. `joined` makes one graph of a model's layers, `clusters` the meshes of
a cluster's devices; `unsplit` is what cannot be split, `left_whole` what a plan leaves whole, and `least` what each
device computes at least. `volumes` is what a linear map sends under each strategy, `named` has those with names,
`lower_bound` is what it sends at least, and `products` compares both for a choice.
"""
