"""Commands that the executor adds to the ``pipeplan`` program; torch is imported when one runs."""
