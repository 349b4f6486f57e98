"""Teams of one axis with whole tensors or parts of the tokens between layers, and questions that teams are part of.

`signatures` has the ways to split an operator, `problem` the choice of them for one layer, `splits` the choices worth
searching, and `question` the model and the cluster as teams see them. What teams share with meshes of several axes is
in `pipeplan.costs.sharding`, which imports nothing from here.
"""
