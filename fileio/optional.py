"""Optional libraries, imported on first use. An error names the extra that installs a missing one."""

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
"""The package of a module, where its name differs."""

_NO_MEMORY = "failed to map segment"
"""How the loader of libraries says that memory, or the process's share of it, has ended."""


def library(module: str, *, needed_by: str, extra: str) -> Any:
    """Import a module of an optional library.

    Args:
        module: The module.
        needed_by: The subject and verb of the message, such as "to_pandas() needs".
        extra: The extra of objcat that installs the library.

    Raises:
        MissingDependency: The library is not installed, or it cannot be imported. The message has the command that installs it.
        ImportError: There is no memory to load it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if _NO_MEMORY in str(error):
            raise
        package = _PACKAGES.get(module, module)
        absent = isinstance(error, ModuleNotFoundError) and (error.name is None or f"{module}.".startswith(f"{error.name}."))
        why = "is not installed" if absent else f"cannot be imported ({error})"
        raise MissingDependency(f"{needed_by} {package}, which {why}. Run pip install 'objcat[{extra}]'.") from error
