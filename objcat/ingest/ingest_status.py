"""`read_status`: how far an ingest is, from its last commit and, if it can be reached, from its source. It changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pyarrow.compute as pc

from objcat.errors import IngestStopped, TableNotFound
from objcat.ingest.config import IngestConfig
from objcat.ingest.handover import IngestState, TableProgress
from objcat.ingest.model import ChangeSource, SourceReport
from objcat.ingest.requests import PendingSkip, pending_skips, requests_after
from objcat.ingest.routes import Router
from objcat.ingest.sources import position_text
from objcat.lake.lake import Lake
from objcat.timeline.position import StoredPosition

DEAD_SHOWN_MAX = 20


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One table. state: `consistent`, `reading`, `waiting` for the stream to pass its chunks, or `set aside`. why: of the last one."""

    name: str
    state: str
    rows: int
    why: str | None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record in the dead letters."""

    at: str
    position: str | None
    table: str | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestStatus:
    """What `objcat ingest status` shows.

    Args:
        source: its name.
        position: of the last commit, as the source writes it; None before the first one.
        version, slot, committed_at_ms: of the last commit.
        is_consistent: whether all tables are handed over.
        transactions: of the source that were applied.
        dead: records in the dead letters.
        nulled: values that no type of the lake holds, and that became null.
        tables: all tables.
        rewound_at: the slot of a RESTORE that the next run takes notice of.
        report: of the source; None when it was not asked, or could not be reached.
        head: where the source is; None when that is not known, or is told in bytes.
        is_behind: whether the source has more; None when that is not known.
        away: why it could not be reached.
        waiting: what was asked of the ingest and is not done yet, for people.
        skips: transactions that are to be left out and have not come.
        dead_letters: the newest ones.
    """

    source: str
    position: str | None
    version: int
    slot: int | None
    committed_at_ms: int | None
    is_consistent: bool
    transactions: int
    dead: int
    nulled: int
    tables: tuple[TableStatus, ...]
    rewound_at: int | None = None
    report: SourceReport | None = None
    head: str | None = None
    is_behind: bool | None = None
    away: str | None = None
    waiting: tuple[str, ...] = ()
    skips: tuple[PendingSkip, ...] = ()
    dead_letters: tuple[DeadLetter, ...] = ()


def read_status(config: IngestConfig, lake: Lake, source: ChangeSource | None = None, *, away: str | None = None) -> IngestStatus:
    """The status of an ingest.

    Args:
        config: of it.
        lake: the lake.
        source: to ask for its report; None: only the lake is read.
        away: why the source is not asked.

    Raises:
        IngestStopped: another version of objcat wrote the position.
        ObjcatError: errors of reading the lake.
    """
    stored = lake.source_position(config.name, shared_log=config.shared_log)
    report = None
    if source is not None:
        report = source.report()
    if stored is None:
        return IngestStatus(
            source=config.name,
            position=None,
            version=-1,
            slot=None,
            committed_at_ms=None,
            is_consistent=False,
            transactions=0,
            dead=0,
            nulled=0,
            tables=(),
            report=report,
            away=away,
        )
    state = read_state(config, stored)
    head = None
    if source is not None and report is not None and report.behind_bytes is None:
        head = report.head
    asked = [request.text for request in requests_after(lake, config, state.requests)]
    skips = pending_skips(lake, config, state, asks_source=source is not None)
    now_ms = lake.fileio.env.now_ms()
    return IngestStatus(
        source=config.name,
        position=position_text(config, state.position),
        version=stored.version,
        slot=stored.slot,
        committed_at_ms=stored.committed_at_ms,
        is_consistent=state.is_consistent,
        transactions=state.transactions,
        dead=state.dead,
        nulled=state.nulled,
        tables=tuple(_table(name, progress) for name, progress in sorted(state.tables.items())),
        rewound_at=stored.rewound_at,
        report=report,
        head=None if head is None else position_text(config, head),
        is_behind=None if head is None or source is None else not source.is_reached(state.position, head),
        away=away,
        waiting=(*asked, *(skip.text(now_ms, config=config.path) for skip in skips)),
        skips=tuple(skips),
        dead_letters=tuple(_dead_letters(config, lake)) if state.dead else (),
    )


def read_state(config: IngestConfig, stored: StoredPosition) -> IngestState:
    """The state that a commit of the ingest stored. Raises IngestStopped if another version of objcat wrote it."""
    try:
        return msgspec.convert(dict(stored.state), IngestState)
    except msgspec.ValidationError as error:
        raise IngestStopped(
            f"The position of {config.name!r} was written by another version of objcat ({error}). Use that version."
        ) from error


def _table(name: str, progress: TableProgress) -> TableStatus:
    if progress.aside is not None:
        return TableStatus(name, "set aside", progress.rows, progress.aside)
    if progress.unread is not None or progress.is_reading:
        return TableStatus(name, "reading", progress.rows, None)
    return TableStatus(name, "consistent" if progress.is_consistent else "waiting", progress.rows, None)


def _dead_letters(config: IngestConfig, lake: Lake) -> Sequence[DeadLetter]:
    try:
        table = lake.table(Router(config).dead_table())
    except TableNotFound:
        return ()
    found = table.scan(where=pc.field("source") == config.name, columns=["at", "position", "table", "error"]).to_arrow()
    newest = found.sort_by([("at", "descending")]).slice(0, DEAD_SHOWN_MAX).to_pylist()
    return [DeadLetter(row["at"].isoformat(), row["position"], row["table"], row["error"]) for row in newest]
