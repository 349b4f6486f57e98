"""Pictures, one kind a file. matplotlib is imported when the first one is drawn, never before."""
