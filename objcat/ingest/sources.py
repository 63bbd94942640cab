"""The kinds of sources, by the name that `kind` in `[source]` has. A library of a source is imported when one is opened."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING

from fileio.env import Env
from fileio.errors import InvalidConfig
from objcat.ingest.config import IngestConfig, hint
from objcat.ingest.model import ChangeSource, Position

if TYPE_CHECKING:
    from objcat.ingest.routes import Router

KINDS: Mapping[str, str] = {
    "folder": "objcat.ingest.folder.source",
    "objcat": "objcat.ingest.lake_tables.source",
    "postgres": "objcat.ingest.postgres.source",
    "mariadb": "objcat.ingest.mysql.source",
    "mysql": "objcat.ingest.mysql.source",
    "kafka": "objcat.ingest.kafka.source",
}
"""The module of each kind. Its function `open_source(config, router, env)` opens one; `position_text(position)` needs no source."""


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


def _module(config: IngestConfig) -> ModuleType:
    if config.kind not in KINDS:
        raise InvalidConfig(f"[source] in {config.path} has the kind {config.kind!r}, which is not known: {hint(config.kind, KINDS)}")
    return importlib.import_module(KINDS[config.kind])
