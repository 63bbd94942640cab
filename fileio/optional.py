"""Libraries that not everybody has, imported when they are first needed; the extra that brings one is named where it is missing."""

from __future__ import annotations

import importlib
from typing import Any

from fileio.errors import MissingDependency

_PACKAGES = {
    "google.cloud.storage": "google-cloud-storage",
    "azure.storage.blob": "azure-storage-blob",
    "azure.identity": "azure-identity",
    "grpc": "grpcio",
    "grpc_status": "grpcio-status",
    "google.rpc": "googleapis-common-protos",
}
"""What the packages of modules are called, where they are called otherwise."""


def library(module: str, *, needed_by: str, extra: str) -> Any:
    """A module of an optional library.

    needed_by: whoever needs it, and the verb, for the sentence: "to_pandas() needs". extra: that brings the library. Raises
    MissingDependency with the command that installs it; or with the reason, where it is installed and cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = _PACKAGES.get(module, module)
        absent = isinstance(error, ModuleNotFoundError) and (error.name is None or f"{module}.".startswith(f"{error.name}."))
        why = "is not installed" if absent else f"cannot be imported ({error})"
        raise MissingDependency(f"{needed_by} {package}, which {why}: pip install 'objcat[{extra}]'") from error
