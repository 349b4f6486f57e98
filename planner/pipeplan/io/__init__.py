"""Reading and writing of files. Only this package uses YAML, JSON and pydantic; it returns plain dataclasses."""
