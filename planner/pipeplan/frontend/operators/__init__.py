"""Operators of each layer, with the loops along which a team of devices may split them.

::

    layer, its inputs ──record──▶ calls of aten ──follow──▶ operators, views folded away ──find──▶ equal ones once
      record    the operations of a forward on tensors without values, and what they keep for the backward
      factors   which part of which axis of an operator each axis of a view is
      views     operations that only view or copy
      rules     axes of all other operations: products, attention, norms, elementwise operations
      alignment the axes of an operation as those of the operators that it reads
      follow    operators from recorded calls
      find      the operators of all layers of a model
      names     names of weights within layers and in the unsplit model
"""
