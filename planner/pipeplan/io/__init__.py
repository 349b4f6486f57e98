"""Reading and writing of files, the only users of YAML, JSON and pydantic; the rest sees plain dataclasses."""
