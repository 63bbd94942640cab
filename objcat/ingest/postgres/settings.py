"""`PostgresSettings`: what `[source]` has for PostgreSQL, next to name and kind."""

from __future__ import annotations

import re

import msgspec

from fileio.errors import InvalidConfig
from objcat.ingest.config import IngestConfig

_SLOT = re.compile(r"[a-z0-9_]{1,63}")


class PostgresSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of PostgreSQL.

    Args:
        connection: a connection string of libpq, such as `${SHOP_URL}`: a URI, or `host=... dbname=...`.
        slot: the replication slot; `objcat_` and the name of the source when it is left out. One ingest reads it.
        publication: the publication; the name of the slot when it is left out. It is created if it is not there.
        numeric_scale: digits after the point of `numeric` columns without a precision, which become decimal(38, scale). Without it they
            become text.
        connect_s: seconds to wait for a connection.
        slot_wait_s: seconds to wait for the slot while the server has not noticed that its last reader is gone.
    """

    connection: str
    slot: str = ""
    publication: str = ""
    numeric_scale: int | None = None
    connect_s: int = 10
    slot_wait_s: float = 60.0

    def __repr__(self) -> str:
        return f"PostgresSettings(slot={self.slot!r})"


def postgres_settings(config: IngestConfig) -> PostgresSettings:
    """The settings with all names filled in. Raises InvalidConfig."""
    found = config.settings(PostgresSettings)
    slot = found.slot or f"objcat_{config.name.lower().replace('-', '_')}"
    where = f"[source] in {config.path}"
    if not _SLOT.fullmatch(slot):
        raise InvalidConfig(f"{where}: the slot {slot!r} may have lower-case letters, digits and _ alone, at most 63. Correct slot.")
    if found.numeric_scale is not None and not 0 <= found.numeric_scale <= 38:
        raise InvalidConfig(f"{where}: numeric_scale has to be from 0 to 38. Correct it.")
    return msgspec.structs.replace(found, slot=slot, publication=found.publication or slot)
