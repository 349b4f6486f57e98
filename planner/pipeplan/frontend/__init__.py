"""From a torch module to a `Model`: capture, profile, split backward."""
