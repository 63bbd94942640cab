"""The version of this client."""

VERSION = "0.1.0"
"""The same as in the package's metadata, which an import from a source tree does not have."""


def writer_of(engine: str) -> str:
    """The writer in an entry. engine: its name, and its version if it has one of its own."""
    return f"objcat {VERSION}, {engine}"
