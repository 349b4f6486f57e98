"""Teams: devices that share every layer of a stage, and how they split its operators.

`signatures` has the ways to split an operator, `problem` the choice of them for one layer, `splits` the choices worth
searching, and `question` the model and the cluster as teams see them.
"""
