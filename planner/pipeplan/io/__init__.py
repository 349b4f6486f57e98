"""Files in and out. The only place that knows YAML, JSON and pydantic; everything behind it sees plain dataclasses."""
