"""Requests to a running ingest: `objcat ingest resnapshot` and `skip`. They wait in the shared log of the source until it takes them.

They have a position of their own, `NAME/requests`, so they conflict with no commit of the ingest.
"""

from __future__ import annotations

import logging
import shlex
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from objcat.errors import IngestStopped, InvalidInput, PositionConflict
from objcat.ingest.config import IngestConfig
from objcat.ingest.handover import IngestState
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
        asked_at_ms: when it was left, by the clock of who asked; 0 in requests of earlier versions.
        is_withdrawn: whether a `skip` takes an earlier one back.
    """

    number: int
    kind: RequestKind
    what: str = ""
    asked_at_ms: int = 0
    is_withdrawn: bool = False

    @property
    def text(self) -> str:
        """What is asked, for people."""
        if self.kind == "skip":
            return f"{'do not ' if self.is_withdrawn else ''}leave out the transaction at {self.what}"
        if self.kind == "left_out":
            return f"read what was left out of {self.what}"
        return f"read {'all tables' if self.kind == 'resnapshot_all' else self.what} again"


@dataclass(frozen=True, slots=True)
class _Requests:
    version: int
    found: list[IngestRequest]


@dataclass(frozen=True, slots=True)
class PendingSkip:
    """A transaction that is to be left out and has not come.

    Args:
        position: of it, as its source writes it.
        asked_at_ms: when somebody asked; None where that is not known.
        passed: why it cannot come any more, such as that the lake has what ends there; None where it may come.
    """

    position: str
    asked_at_ms: int | None
    passed: str | None

    def text(self, now_ms: int, *, config: str) -> str:
        """What it waits for, for people. config: the file of the ingest."""
        age = "" if self.asked_at_ms is None else f", asked {_age(now_ms - self.asked_at_ms)} ago,"
        if self.passed is None:
            return f"leave out the transaction at {self.position}{age or ','} which has not come so far"
        back = f"objcat ingest skip {shlex.join((config, self.position))} --withdraw"
        return f"leave out the transaction at {self.position}{age} and it will not come: {self.passed}. Take it back by `{back}`"


def add_request(lake: Lake, config: IngestConfig, kind: RequestKind, what: str = "", *, is_withdrawn: bool = False) -> IngestRequest:
    """Leave a request. Raises IngestStopped when too many others do so at the same time."""
    for _ in range(ATTEMPTS_MAX):
        known = _read(lake, config)
        now_ms = lake.fileio.env.now_ms()
        request = IngestRequest(number=known.version + 1, kind=kind, what=what, asked_at_ms=now_ms, is_withdrawn=is_withdrawn)
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


def take_skip(lake: Lake, config: IngestConfig, state: IngestState, request: IngestRequest) -> None:
    """Note in the state which transaction is left out, or is not any more. A warning says where it has come since somebody asked."""
    if request.is_withdrawn:
        state.skips = [one for one in state.skips if one != request.what]
        return
    try:
        wanted = transaction_text(config, lake, state.position, request.what)
    except InvalidInput as error:
        logger.warning("%s: request %d is not done: %s", config.name, request.number, error)
        return
    if wanted not in state.skips:
        state.skips.append(wanted)


def pending_skips(lake: Lake, config: IngestConfig, state: IngestState, *, asks_source: bool = True) -> list[PendingSkip]:
    """The transactions that were asked to be left out, and that the ingest knows of.

    Args:
        lake: of the ingest.
        config: of the ingest.
        state: of its last commit.
        asks_source: whether a folder may be asked if it still has a file.
    """
    asked = {one.what: one.asked_at_ms for one in _read(lake, config).found if one.kind == "skip" and not one.is_withdrawn}
    return [PendingSkip(one, asked.get(one) or None, _passed(lake, config, state, one, asks_source=asks_source)) for one in state.skips]


def _passed(lake: Lake, config: IngestConfig, state: IngestState, position: str, *, asks_source: bool) -> str | None:
    if config.kind == "folder" and not asks_source:
        return None
    try:
        transaction_text(config, lake, state.position, position)
    except InvalidInput as error:
        return str(error.__cause__ or error)
    return None


def withdraw_skip(lake: Lake, config: IngestConfig, state: IngestState, position: str) -> IngestRequest:
    """Take back that a transaction is left out. position: as `pending_skips` or the request names it.

    Raises InvalidInput when nobody asked for that, or it was left out already.
    """
    waiting = list(state.skips)
    for request in requests_after(lake, config, state.requests):
        if request.kind == "skip":
            waiting = [one for one in waiting if one != request.what] + ([] if request.is_withdrawn else [request.what])
    if position not in waiting:
        known = f"These wait: {', '.join(waiting)}." if waiting else "None waits to be left out."
        raise InvalidInput(
            f"{config.name!r} was not asked to leave out {position!r}, or has left it out. {known} Nothing was asked. Give the position as "
            "`objcat ingest status` names it."
        )
    return add_request(lake, config, "skip", position, is_withdrawn=True)


def _age(span_ms: int) -> str:
    minutes = max(0, span_ms) // 60_000
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 48 * 60 else f"{minutes // (24 * 60)} days"


def _read(lake: Lake, config: IngestConfig) -> _Requests:
    stored = lake.source_position(_name(config), shared_log=config.shared_log)
    if stored is None:
        return _Requests(-1, [])
    found: Any = stored.state.get("requests", [])
    return _Requests(stored.version, msgspec.convert(found, list[IngestRequest]))


def _name(config: IngestConfig) -> str:
    return f"{config.name}/requests"
