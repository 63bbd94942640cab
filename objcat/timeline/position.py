"""Positions of sources: how far the reader of a source has come, in the commit of what it read.

A source is whatever changes are read from: a database, topics, a folder. Its position has a version, which counts its commits, and a state,
where its reader goes on. A commit says on which version it builds (`SourcePosition`). The slot decides: of two readers that build on one
version, the second one finds the other version in the log when it judges the entries before its slot, and is refused. So rows and position
are there together, once. `LogState` has the newest position of each source, and checkpoints hold it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from fileio.store import FileIO
from objcat.common.validation import shown, text, whole_number
from objcat.errors import CorruptTable, InvalidInput, PositionConflict, SnapshotExpired, StreamRewound
from objcat.timeline.entry import Count, Entry, PositionChange, SideObject, TimeMs, Txn
from objcat.timeline.json_objects import decode_json
from objcat.timeline.side_objects import get_side, put_side

STATE_BYTES_MAX = 1024 * 1024
"""The most bytes of a state as JSON."""
STATE_INLINE_BYTES_MAX = 4 * 1024
"""A larger state goes into an object of its own, so that entries and checkpoints stay small."""
SOURCE_CHARACTERS_MAX = 255
SIDE_KIND = "position.json"
"""The beginning of the name of an object that holds a state."""

_STATES = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePosition:
    """Where the reader of a source has come with a transaction: the commit of the rows is the commit of the position.

    Args:
        source: Name of the source, one in its shared log, e.g. "mysql-eu".
        state: Where the reader goes on, and what it must know there: values of JSON, at most 1 MiB of it. It is copied.
        since: The version that this builds on, -1 for none. The commit brings version `since` + 1. If the log has another one, it is
            refused with PositionConflict.
        resumed_after: Slot of the RESTORE that the reader has taken notice of, after `StreamRewound`.
    """

    source: str
    state: Mapping[str, Any]
    since: int
    resumed_after: int | None = None

    def __post_init__(self) -> None:
        """Check the values. Raises InvalidInput."""
        text(self.source, what="source")
        if len(self.source) > SOURCE_CHARACTERS_MAX:
            raise InvalidInput(f"source={shown(self.source)} has {len(self.source)} characters. Use at most {SOURCE_CHARACTERS_MAX}.")
        whole_number(self.since, what=f"since of the source {self.source!r}", least=-1)
        if self.resumed_after is not None:
            whole_number(self.resumed_after, what=f"resumed_after of the source {self.source!r}")
        object.__setattr__(self, "state", _copied(self.state, self.source))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPosition:
    """The position of a source, as a log has it.

    Attributes:
        source: its name.
        version: the next commit says `since=version`.
        state: where the reader goes on.
        slot: of the commit that has it.
        txn: the transaction id of that commit.
        committed_at_ms: its commit time, in milliseconds since 1970 UTC.
        rewound_at: slot of a RESTORE that may have taken back what the source wrote, None for none. The next commit says
            `resumed_after=rewound_at`.
    """

    source: str
    version: int
    state: Mapping[str, Any]
    slot: int
    txn: str
    committed_at_ms: int
    rewound_at: int | None = None


class PositionProgress(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The newest position of a source in a log.

    Args:
        slot: Of the commit that has it, like `txn` and `committed_at_ms`.
        state, side: As in `PositionChange`.
        rewound_at: Slot of a RESTORE to a slot below `slot`.
    """

    version: Count
    slot: Count
    txn: Txn
    committed_at_ms: TimeMs
    state: dict[str, Any] | None = None
    side: SideObject | None = None
    rewound_at: Count | None = None


@dataclass(frozen=True, slots=True)
class PositionWrite:
    """A position that a transaction wants to commit, and as its entry holds it."""

    asked: SourcePosition
    change: PositionChange


def advance_positions(known: Mapping[str, PositionProgress], entry: Entry) -> Mapping[str, PositionProgress]:
    """The positions after one more entry.

    A RESTORE of any table may take back rows of every source whose newest commit is above the restored slot, so it marks these.
    """
    restored = [footprint.restores for footprint in entry.footprint.values() if footprint.restores is not None]
    if restored and known:
        known = {source: _marked(progress, min(restored), entry.slot) for source, progress in known.items()}
    if not entry.positions:
        return known
    new = {
        source: PositionProgress(
            version=change.version,
            slot=entry.slot,
            txn=entry.txn,
            committed_at_ms=entry.committed_at_ms,
            state=change.state,
            side=change.side,
        )
        for source, change in entry.positions.items()
    }
    return {**known, **new}


def _marked(progress: PositionProgress, restored: int, slot: int) -> PositionProgress:
    is_rewound = progress.slot > restored or progress.rewound_at is not None
    return msgspec.structs.replace(progress, rewound_at=slot) if is_rewound else progress


def check_position(own: SourcePosition | None, known: Mapping[str, PositionProgress]) -> None:
    """Check that a log, as far as it is known, lets the reader commit this position.

    Raises:
        PositionConflict: The position builds on another version than the log has.
        StreamRewound: A RESTORE may have taken back rows of the source.
    """
    if own is None:
        return
    found = known.get(own.source)
    version = -1 if found is None else found.version
    if own.since != version:
        has = "has no position of it" if found is None else f"has version {version} of it, since slot {found.slot}"
        raise PositionConflict(
            f"The commit builds on version {own.since} of the position of {own.source!r}, but the log {has}. Another reader of the source "
            "is at work, or an earlier commit of this one landed. Nothing was written. Let one process read the source, and go on from "
            "lake.source_position().",
            winner_slot=-1 if found is None else found.slot,
            version=version,
        )
    if found is not None and found.rewound_at is not None and (own.resumed_after or -1) < found.rewound_at:
        raise StreamRewound(
            f"The RESTORE at slot {found.rewound_at} took a table back to a slot below {found.slot}, which has version {version} of the "
            f"position of {own.source!r}. Rows that it wrote may be gone. Nothing was written. Read the missing rows again, and commit "
            f"with resumed_after={found.rewound_at}.",
            winner_slot=found.rewound_at,
        )


def write_position(fileio: FileIO, txn: Txn, asked: SourcePosition) -> PositionWrite:
    """A position as the entry of a transaction holds it. A large state goes into an object, which this writes. Raises storage errors."""
    data = msgspec.json.encode(asked.state)
    version = asked.since + 1
    if len(data) <= STATE_INLINE_BYTES_MAX:
        return PositionWrite(asked, PositionChange(version, state=dict(asked.state)))
    return PositionWrite(asked, PositionChange(version, side=put_side(fileio, txn, SIDE_KIND, data)))


def read_position(fileio: FileIO, source: str, progress: PositionProgress) -> StoredPosition:
    """A position with its state. One GET where that is in an object.

    Raises SnapshotExpired when an erasure removed the state, CorruptTable when its object is missing or damaged.
    """
    state = progress.state
    if progress.side is not None:
        data = get_side(fileio, progress.side)
        state = decode_json(data, _STATES, where=progress.side.path, what=f"the state of the position of {source!r}")
    if state is None:
        raise SnapshotExpired(
            f"An erasure removed the state of version {progress.version} of the position of {source!r}. The newest version has one."
        )
    return StoredPosition(
        source=source,
        version=progress.version,
        state=state,
        slot=progress.slot,
        txn=progress.txn,
        committed_at_ms=progress.committed_at_ms,
        rewound_at=progress.rewound_at,
    )


def _copied(state: Any, source: str) -> dict[str, Any]:
    """The state as it reads back from JSON. Raises InvalidInput where that would be another one, or a large one."""
    what = f"The state of the position of {source!r}"
    if not isinstance(state, Mapping):
        raise InvalidInput(f"{what} is {shown(state)}. Give a dict.")
    try:
        data = msgspec.json.encode(dict(state))
        copied = _STATES.decode(data)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidInput(
            f"{what} is not JSON ({error}). Use dicts with texts as keys, lists, texts, numbers, booleans and None."
        ) from error
    if copied != dict(state):
        changed = next((key for key, value in state.items() if key not in copied or copied[key] != value), None)
        raise InvalidInput(
            f"{what} would not read back as it is: JSON has no form for {shown(changed)}: {shown(state.get(changed))}. "
            "Use dicts with texts as keys, lists, texts, finite numbers, booleans and None."
        )
    if len(data) > STATE_BYTES_MAX:
        raise InvalidInput(f"{what} is {len(data):,} bytes of JSON. Use at most {STATE_BYTES_MAX:,}, and put the rest into a table.")
    return copied


def check_intact(fileio: FileIO, source: str, progress: PositionProgress) -> str | None:
    """What is wrong with the stored state of a position. None when nothing is."""
    try:
        read_position(fileio, source, progress)
    except (CorruptTable, SnapshotExpired) as error:
        return str(error)
    return None
