"""The errors pipeplan raises on purpose. Each says what was wrong, with numbers, and what to change."""


class PipeplanError(Exception):
    """Base of every error that a user's input can cause."""


class InputError(PipeplanError):
    """A file, a name or an argument is wrong (command-line exit code 2)."""


class InfeasibleError(PipeplanError):
    """No plan fits the limits; the text says what would (command-line exit code 1)."""


class PlanError(PipeplanError):
    """A plan breaks a rule that every plan must keep."""
