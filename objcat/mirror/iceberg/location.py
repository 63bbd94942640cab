"""Where Iceberg's readers find a mirror: full URIs, as engines write them."""

from __future__ import annotations

import os
import re
from urllib.parse import urlsplit

from fileio.errors import Unsupported
from fileio.options import Secret, unquote_path
from fileio.store import FileIO
from objcat.mirror.model import MirrorHeld

_CUT = re.compile(r"[?#]")
"""Characters at which some readers cut a URI off, although they are percent-encoded nowhere in Iceberg's metadata."""


def root_of(fileio: FileIO, url: str | None = None) -> str:
    """The URI of a store, with a slash at its end. url: of another prefix of the same store, instead of its own.

    Iceberg's metadata holds paths as they are, so nothing is percent-encoded. Azure's container is named as engines want it:
    `abfss://<container>@<account>.dfs.core.windows.net/`.
    """
    url = (url or fileio.url).rstrip("/")
    if url.startswith("az://"):
        container, _, path = url.removeprefix("az://").partition("/")
        account = _azure_account(fileio)
        if account is not None:
            url = f"abfss://{container}@{account}.dfs.core.windows.net" + (f"/{path}" if path else "")
    return unquote_path(url) + "/"


def check_location(uri: str, *, name: str) -> None:
    """Check that every reader finds what is below a URI. Raises MirrorHeld."""
    found = _CUT.search(uri)
    if found is not None:
        raise MirrorHeld(
            f"The table {name!r} is at {uri!r}. Iceberg's readers cut a path off at {found[0]!r}, so no mirror is written. Copy the table "
            "to a prefix without this character."
        )


def _azure_account(fileio: FileIO) -> str | None:
    """The name of the storage account, from the options of the store or else from the environment."""
    try:
        options = fileio.describe().options
    except Unsupported:
        return None
    account, endpoint, connection = (options.get(name) for name in ("account", "endpoint", "connection_string"))
    if isinstance(account, str):
        return account
    if isinstance(endpoint, str):
        return _account_in(endpoint)
    text = connection.reveal() if isinstance(connection, Secret) else connection
    if text is None:
        text = os.environ.get("AZURE_STORAGE_CONNECTION_STRING")
    if text is not None:
        found = re.search(r"(?:^|;)AccountName=([^;]+)", text)
        return None if found is None else found[1]
    return os.environ.get("AZURE_STORAGE_ACCOUNT")


def _account_in(endpoint: str) -> str:
    """The account in an endpoint: the first label of the host. For emulators on an IP address or localhost, the path."""
    parts = urlsplit(endpoint)
    return parts.path.strip("/") or (parts.hostname or "").split(".", 1)[0]
