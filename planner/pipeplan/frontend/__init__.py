"""Front end for torch: capture and profile a module as a `Model`, and split its backward."""
