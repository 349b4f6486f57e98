"""Search over models that are graphs: stages are differences of any downsets, not only of the listed order.

`reach` says where that covers a whole space, `node` searches it there.
"""
