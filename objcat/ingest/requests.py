"""Requests to a running ingest: `objcat ingest resnapshot` and `skip`. They wait in the shared log of the source until it takes them.

They have a position of their own, `NAME/requests`, so they conflict with no commit of the ingest.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from objcat.errors import IngestStopped, InvalidInput, PositionConflict
from objcat.ingest.config import IngestConfig
from objcat.ingest.model import Position
from objcat.ingest.sources import transaction_text
from objcat.lake.lake import Lake
from objcat.timeline.position import SourcePosition

logger = logging.getLogger("objcat")

RequestKind: TypeAlias = Literal["resnapshot", "resnapshot_all", "left_out", "skip"]
KEPT_MAX = 200
"""Older requests are forgotten. All of them were taken long ago, or the ingest does not run."""
ATTEMPTS_MAX = 10


class IngestRequest(msgspec.Struct, kw_only=True):
    """A request.

    Args:
        number: they are taken in this order, each once.
        kind: read a table again, read all tables again from a new position, read what was left out of a table, or leave a transaction out.
        what: the table at the source, or the position of the transaction.
    """

    number: int
    kind: RequestKind
    what: str = ""

    @property
    def text(self) -> str:
        """What is asked, for people."""
        if self.kind == "skip":
            return f"leave out the transaction at {self.what}"
        if self.kind == "left_out":
            return f"read what was left out of {self.what}"
        return f"read {'all tables' if self.kind == 'resnapshot_all' else self.what} again"


@dataclass(frozen=True, slots=True)
class _Requests:
    version: int
    found: list[IngestRequest]


def add_request(lake: Lake, config: IngestConfig, kind: RequestKind, what: str = "") -> IngestRequest:
    """Leave a request. Raises IngestStopped when too many others do so at the same time."""
    for _ in range(ATTEMPTS_MAX):
        known = _read(lake, config)
        request = IngestRequest(number=known.version + 1, kind=kind, what=what)
        state = {"requests": [msgspec.to_builtins(one) for one in [*known.found, request][-KEPT_MAX:]]}
        position = SourcePosition(source=_name(config), state=state, since=known.version)
        try:
            with lake.transaction(shared_log=config.shared_log, position=position):
                pass
        except PositionConflict:
            continue
        return request
    raise IngestStopped(f"The request for {config.name!r} was refused {ATTEMPTS_MAX} times by others. Nothing was asked. Ask again.")


def requests_after(lake: Lake, config: IngestConfig, number: int) -> list[IngestRequest]:
    """Requests that came after one, in order."""
    return [request for request in _read(lake, config).found if request.number > number]


def transactions_to_skip(lake: Lake, config: IngestConfig, position: Position, request: IngestRequest) -> list[str]:
    """The transaction that a request leaves out, as its source writes it. None, with a warning, where it has come since somebody asked."""
    try:
        return [transaction_text(config, lake, position, request.what)]
    except InvalidInput as error:
        logger.warning("%s: request %d is not done: %s", config.name, request.number, error)
        return []


def _read(lake: Lake, config: IngestConfig) -> _Requests:
    stored = lake.source_position(_name(config), shared_log=config.shared_log)
    if stored is None:
        return _Requests(-1, [])
    found: Any = stored.state.get("requests", [])
    return _Requests(stored.version, msgspec.convert(found, list[IngestRequest]))


def _name(config: IngestConfig) -> str:
    return f"{config.name}/requests"
