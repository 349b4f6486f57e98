"""Models that are graphs: cut into stages along any downsets, not only along the listed order."""
