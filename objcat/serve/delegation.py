"""`TableCredentials`: credentials of the store for clients that ask for them, by the store's own delegation. Off by default."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from fileio.delegation import DelegatedCredentials, delegate_reading
from fileio.errors import InvalidConfig
from fileio.options import Secret
from fileio.schemes import scheme_of
from fileio.store import FileIO
from objcat.lake.context import LakeContext
from objcat.mirror.iceberg.location import root_of
from objcat.serve.served_names import ServedTable

KEPT_MAX = 10_000
"""The most tables whose credentials a process keeps."""
VENDED = "vended-credentials"
ASKED_BY = "x-iceberg-access-delegation"
"""The header by which clients say that they want credentials."""
AZURE = "az"


class TableCredentials:
    """Credentials that read the files of one table. Each is given out until half of its time is over. Safe for many threads.

    They count below the prefix of the log, so for all tables of a shared log. Files that a table adopted are elsewhere, and stay closed:
    who may write to the log says where they are, and must not widen what others may read.

    Args:
        lake: opened from a URL, with credentials that may delegate.
        others: where mirrors of other tables are, if anywhere.
        lifetime_s: how long credentials are valid.
        role: see `delegate_reading`.

    Raises:
        Unsupported: the lake was not opened from a URL.
        InvalidConfig: `others` lies outside the lake, where one credential cannot read both, or is on Azure.
    """

    def __init__(self, lake: LakeContext, others: FileIO | None, *, lifetime_s: int, role: str | None) -> None:
        self._lake = lake
        self._store = lake.fileio.describe()
        self._scheme, _ = scheme_of(self._store.url)
        self._lifetime_s = lifetime_s
        self._role = role
        self._others = None if others is None else others.url.rstrip("/").removeprefix(f"{self._store.url.rstrip('/')}/")
        if others is not None and (self._scheme == AZURE or self._others == others.url.rstrip("/")):
            raise InvalidConfig(
                f"Credentials for a table would not read its mirror at {others.url}. Choose a prefix below the lake for mirrors of other "
                "tables, or give out no credentials. On Azure credentials are for one folder, so the two exclude each other."
            )
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[DelegatedCredentials, int]] = OrderedDict()

    def of(self, served: ServedTable, *, location: str) -> list[dict[str, Any]]:
        """Credentials for a table, as answers list them: for each location below which they count.

        location: of its metadata, which may be apart from the table. Raises as `delegate_reading`.
        """
        binding = served.entry.binding
        root = root_of(self._lake.fileio)
        prefixes = [binding.prefix]
        if self._others is not None and location.startswith(f"{root}{self._others}/"):
            prefixes.append(f"{self._others}/{binding.table}")
        properties = properties_of(self._scheme, self._for_prefixes(prefixes))
        return [{"prefix": f"{root}{prefix}/", "config": properties} for prefix in prefixes]

    def _for_prefixes(self, prefixes: Sequence[str]) -> DelegatedCredentials:
        key = "\n".join(prefixes)
        now_ms = self._lake.fileio.env.now_ms()
        with self._lock:
            kept = self._kept.get(key)
        if kept is None or now_ms >= kept[1]:
            found = delegate_reading(self._store, prefixes, lifetime_s=self._lifetime_s, role=self._role)
            kept = (found, (now_ms + found.expires_ms) // 2)
            with self._lock:
                self._kept[key] = kept
                self._kept.move_to_end(key)
                while len(self._kept) > KEPT_MAX:
                    self._kept.popitem(last=False)
        return kept[0]


def properties_of(scheme: str, credentials: DelegatedCredentials) -> dict[str, str]:
    """Credentials as Iceberg's clients take them."""
    values = {name: value.reveal() if isinstance(value, Secret) else value for name, value in credentials.options.items()}
    ends = str(credentials.expires_ms)
    match scheme:
        case "s3":
            return {
                "s3.access-key-id": values["access_key"],
                "s3.secret-access-key": values["secret_key"],
                "s3.session-token": values["session_token"],
                "s3.session-token-expires-at-ms": ends,
            }
        case "gs":
            return {"gcs.oauth2.token": values["access_token"], "gcs.oauth2.token-expires-at": ends}
    host = f"{values['account']}.dfs.core.windows.net"
    return {f"adls.sas-token.{host}": values["sas_token"], f"adls.sas-token-expires-at-ms.{host}": ends}


def is_asked(header: str) -> bool:
    """Whether the header `ASKED_BY` asks for credentials."""
    return VENDED in {mode.strip().lower() for mode in header.split(",")}
