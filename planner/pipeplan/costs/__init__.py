"""Cost models: times and bytes of layers, memory, links and collectives, and tables of them for a chain."""
