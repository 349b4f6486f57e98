"""Times and bytes: of layers, memory, links and collectives, and as tables of a chain."""
