"""Versions of installed packages, pipeplan's own among them."""

from importlib.metadata import PackageNotFoundError, version


def installed_version(package: str) -> str:
    """Version of a package; empty if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


__version__ = installed_version("pipeplan") or "0"  # a checkout that was never installed
