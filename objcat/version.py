"""The version of this client."""

VERSION = "0.1.0"
"""As in the package's metadata, which an import from a source tree does not have."""
