"""Pictures, one kind per file; matplotlib is imported when the first one is drawn."""
