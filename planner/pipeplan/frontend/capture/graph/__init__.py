"""Front end for any module: capture with torch.export, then cut the graph.

::

    module ──export──▶ one graph: regions opened, writes in place made functional, training and evaluation in one
      sorts     classification of nodes: work, or possible to recompute anywhere
      crossing  the fewest bytes that must pass a cut
      cuts      useful places to cut, from the modules that the nodes belong to
      layer     the nodes between two cuts as a module
"""
