"""Pictures and traces."""
