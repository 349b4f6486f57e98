"""The ``pipeplan`` command line, one file per command."""
