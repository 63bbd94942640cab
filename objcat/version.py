"""The version of this client."""

VERSION = "0.1.0"
"""As in the package's metadata, which an import from a source tree does not have."""


def writer_of(engine: str) -> str:
    """Who writes, as entries say it. engine: its name, and its version where it has one of its own."""
    return f"objcat {VERSION}, {engine}"
