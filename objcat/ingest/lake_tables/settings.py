"""`LakeTablesSettings`: what `[source]` has for the tables of a lake, next to name and kind."""

from __future__ import annotations

import msgspec

from fileio.errors import InvalidConfig
from objcat.ingest.config import IngestConfig


class LakeTablesSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a lake whose tables are followed.

    Args:
        url: of that lake. A relative path counts from the file of the configuration.
        options: of its store.
        poll_s: seconds between two looks at its logs.
        range_slots: so many slots of a log are read at once, at most.
    """

    url: str
    options: dict[str, str | int | float | bool] = msgspec.field(default_factory=dict)
    poll_s: float = 1.0
    range_slots: int = 32


def lake_tables_settings(config: IngestConfig) -> LakeTablesSettings:
    """The settings. Raises InvalidConfig."""
    found = config.settings(LakeTablesSettings)
    found = msgspec.structs.replace(found, url=config.place(found.url))
    if not 0 < found.poll_s <= 86_400:
        raise InvalidConfig(f"[source] in {config.path}: poll_s has to be more than 0 and at most 86,400. Correct it.")
    if not 1 <= found.range_slots <= 10_000:
        raise InvalidConfig(f"[source] in {config.path}: range_slots has to be from 1 to 10,000. Correct it.")
    return found
