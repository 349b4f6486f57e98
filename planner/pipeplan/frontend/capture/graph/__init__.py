"""The front end that captures any module with torch.export and cuts its graph.

::

    module ──export──▶ one graph: regions opened, writes in place made functional, training and evaluation in one
      sorts     which nodes are work, and which can be computed again anywhere
      crossing  the fewest bytes that must pass a cut
      cuts      the places that a planner wants, from the modules that the nodes belong to
      layer     the nodes between two cuts as a module
"""
