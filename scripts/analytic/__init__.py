"""Layers of well-known models, computed from their published hyper-parameters."""
