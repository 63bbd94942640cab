"""The kinds of sources, by the name that `kind` in `[source]` has. A library of a source is imported when one is opened."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING

from fileio.env import Env
from fileio.errors import InvalidConfig
from objcat.errors import InvalidInput
from objcat.ingest.config import IngestConfig, hint
from objcat.ingest.model import ChangeSource, Position

if TYPE_CHECKING:
    from objcat.ingest.routes import Router
    from objcat.lake.lake import Lake

KINDS: Mapping[str, str] = {
    "folder": "objcat.ingest.folder.source",
    "objcat": "objcat.ingest.lake_tables.source",
    "postgres": "objcat.ingest.postgres.source",
    "mariadb": "objcat.ingest.mysql.source",
    "mysql": "objcat.ingest.mysql.source",
    "kafka": "objcat.ingest.kafka.source",
}
"""The module of each kind. Its function `open_source(config, router, env)` opens one; `position_text(position)` and
`transaction_text(config, lake, position, text)` need no source."""


def open_source(config: IngestConfig, router: Router, env: Env) -> ChangeSource:
    """Open the source of a configuration.

    Raises:
        InvalidConfig: its kind is unknown, or a setting does not fit.
        MissingDependency: its library is not installed.
        SourceAway: it cannot be reached.
    """
    opened: ChangeSource = _module(config).open_source(config, router, env)
    return opened


def position_text(config: IngestConfig, position: Position) -> str:
    """A position as its source writes it for people and in messages, see `ChangeSource.position_text`. Raises InvalidConfig."""
    text: str = _module(config).position_text(position)
    return text


def transaction_text(config: IngestConfig, lake: Lake, position: Position, text: str) -> str:
    """A transaction that is to be left out, as its source writes it.

    Args:
        config: of the ingest.
        lake: that it writes.
        position: of the last commit.
        text: as somebody wrote it.

    Raises:
        InvalidInput: no transaction that is to come can have this text.
    """
    try:
        found: str = _module(config).transaction_text(config, lake, position, text)
    except ValueError as error:
        raise InvalidInput(
            f"{text!r} cannot be left out: {error}. {config.name!r} is at {position_text(config, position)}. Nothing was asked. Give the "
            "position that the message of the ingest names."
        ) from error
    return found


def keeps_left_out(config: IngestConfig) -> bool:
    """Whether a source records what was left out of a table, so that it alone can be read later. Raises InvalidConfig."""
    return bool(getattr(_module(config), "KEEPS_LEFT_OUT", False))


def _module(config: IngestConfig) -> ModuleType:
    if config.kind not in KINDS:
        raise InvalidConfig(f"[source] in {config.path} has the kind {config.kind!r}, which is not known: {hint(config.kind, KINDS)}")
    return importlib.import_module(KINDS[config.kind])
