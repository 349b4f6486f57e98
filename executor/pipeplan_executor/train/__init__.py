"""`Pipeline` and the training loop around it: running, saving, verifying, reporting."""
