"""Checkpoint roots and the hint: what a reader needs to open a log without its first entries.

A root is `checkpoints/<slot>/root.json`. It is put if absent, after every object that it names. Root slots are multiples of `SPACING_SLOTS`
and nothing else. So an expiry can fence every slot in which a slow publisher could still put a root: it puts a *void* root there.
`head.json` is the hint: where the log was, and the root and the entries up to there, so that a reader need not ask for each of them. It may
be missing, stale, ahead or garbage; what is read after it decides. `hints` writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from fileio.contract import Create, GetResult, PutOutcome, Update, Version
from fileio.env import map_io
from fileio.errors import NotFound
from fileio.store import FileIO
from objcat.errors import CorruptTable
from objcat.timeline.entry import (
    FORMAT_VERSION,
    POSITIONS,
    Count,
    Entry,
    Txn,
    check_format,
    decode_entry,
    is_path,
    is_txn,
    log_key,
)
from objcat.timeline.error_location import says_where
from objcat.timeline.json_objects import NOT_JSON, RESTORE, check_digest, decode_json, encode_object
from objcat.timeline.log_state import LogState
from objcat.timeline.txn_outcomes import OutcomeSegment, TxnOutcome, TxnOutcomes

SPACING_SLOTS = 16
"""Checkpoint slots are multiples of this, beginning with it."""
TAIL_SLOTS_MAX = 32
"""A writer that has replayed this many slots above its checkpoint publishes a newer one."""
PROBE_WINDOW_MAX = 32

HINT_KEY = "head.json"
NULL = msgspec.Raw(b"null")
"""In the place of JSON that is not there."""


class Root(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A log as of `slot`.

    Args:
        features: What a reader must understand, each with the first version of objcat that does.
        payload: What the reducer saved.
        outcomes: The newest outcomes of transactions.
        segments: The older outcomes.
    """

    format: int
    slot: int
    log: LogState
    features: dict[str, str] = {}
    payload: msgspec.Raw = NULL
    outcomes: tuple[TxnOutcome, ...] = ()
    segments: tuple[OutcomeSegment, ...] = ()

    def all_outcomes(self) -> TxnOutcomes:
        """The outcomes of all transactions up to the slot."""
        return TxnOutcomes(self.segments, self.outcomes)


class VoidRoot(msgspec.Struct, frozen=True, kw_only=True):
    """No checkpoint is here, and none will be.

    All multiples of the spacing between `older` and this slot are void too.

    Args:
        older: The newest slot below it that had a root when this was put, -1 for none.
    """

    format: int
    slot: int
    older: int
    void: bool = True


AnyRoot: TypeAlias = Root | VoidRoot
"""What an object at the key of a root may hold."""


@dataclass(frozen=True, slots=True)
class BrokenRoot:
    """An unreadable root. why: what is wrong with it. A checkpoint is a cache, so readers skip it."""

    slot: int
    why: str


class _RootVersion(msgspec.Struct):
    """What every format of a root must say, now and later."""

    format: int
    min_client: str | None = ""
    features: dict[str, str] | None = None
    void: bool | None = False
    digest: str | None = ""


class TurnRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A writer that loses slot after slot asks the others to stand back. Advice only, see `objcat.timeline.turns`.

    Args:
        slot: The last slot that it had lost when it asked.
        wait_ms: How long another writer may wait for it.
    """

    txn: Txn
    slot: Count
    wait_ms: Count


class Hint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the log was when a writer last noted it, and who asks for a turn.

    Args:
        checkpoint: The slot of a root, -1 for none. Without a root the hint carries the log from its first entry on.
        nonce: Makes the bytes of two hints differ.
        turns: The newest requests for a turn.
        carried: The root and the entries above it up to `slot`. Null in hints of older writers, and where they are too large.
    """

    slot: int
    checkpoint: int
    nonce: str = ""
    turns: tuple[TurnRequest, ...] = ()
    carried: msgspec.Raw = NULL


class Carried(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a hint carries, as JSON with a digest.

    Args:
        slot: Of the last entry.
        root: As in its own object. Null without a checkpoint.
        entries: Those above the root, as in their slots.
    """

    slot: int
    root: msgspec.Raw = NULL
    entries: tuple[msgspec.Raw, ...] = ()


class _CarriedVersion(msgspec.Struct):
    """The digest of what a hint carries."""

    digest: str | None = ""


# As in `objcat.timeline.entry`: types must be known before threads meet them.
_VERSIONS = msgspec.json.Decoder(_RootVersion)
_ROOTS = msgspec.json.Decoder(Root)
_VOID_ROOTS = msgspec.json.Decoder(VoidRoot)
_HINTS = msgspec.json.Decoder(Hint)
_CARRIED = msgspec.json.Decoder(Carried)
_CARRIED_VERSIONS = msgspec.json.Decoder(_CarriedVersion)


@dataclass(frozen=True, slots=True)
class FoundRoot:
    """A root and its version in the store."""

    root: AnyRoot | BrokenRoot
    version: Version


def folder_of(slot: int) -> str:
    """The folder of all objects of the checkpoint of a slot."""
    return f"checkpoints/{slot:020d}/"


def root_key(slot: int) -> str:
    """The key of a root."""
    return f"{folder_of(slot)}root.json"


def floor_slot(slot: int) -> int:
    """The newest slot up to `slot` that may have a root; less than `SPACING_SLOTS` when none may."""
    return slot // SPACING_SLOTS * SPACING_SLOTS


def encode_root(root: AnyRoot) -> bytes:
    """The bytes of a root object."""
    return encode_object(root)


def decode_root(data: bytes, *, slot: int) -> AnyRoot:
    """The root in an object. Raises UnsupportedFormat for a newer format, CorruptTable for anything but a root of that slot."""
    key = root_key(slot)
    what = "the root of a checkpoint"
    version = decode_json(data, _VERSIONS, where=key, what=what)
    check_format(version.format, version.features or {}, min_client=version.min_client or "", where=key)
    check_digest(data, version.digest, key=key)
    root: AnyRoot = (
        decode_json(data, _VOID_ROOTS, where=key, what=what) if version.void else decode_json(data, _ROOTS, where=key, what=what)
    )
    if root.slot != slot or (isinstance(root, Root) and root.log.slot != slot):
        raise CorruptTable(f"{key} holds the root of slot {root.slot}. {RESTORE}")
    if isinstance(root, Root):
        _check_root(root, key)
    elif not -1 <= root.older < slot:
        raise CorruptTable(f"{key} says older = {root.older}. It must be a slot below its own. {RESTORE}")
    return root


def _check_root(root: Root, key: str) -> None:
    """Check that a root agrees with itself. Raises CorruptTable."""
    log = root.log
    slots = {"root_bound": [log.root_bound], "pins": log.pins, "restores": [at for pair in log.restores for at in pair]}
    for table, marks in log.tables.items():
        slots[f"tables.{table}.bound"] = [marks.bound]
        slots[f"tables.{table}.saved"] = marks.saved
        slots[f"tables.{table}.closed_at"] = [] if marks.closed_at is None else [marks.closed_at]
        slots[f"tables.{table}.apps"] = [at for app in marks.apps.values() for at in (app.slot, app.rewound_at or 0)]
    slots["positions"] = [at for progress in log.sources.values() for at in (progress.slot, progress.rewound_at or 0)]
    _check_positions(log, key)
    for field, found in slots.items():
        for slot in found:
            if not 0 <= slot <= root.slot:
                raise CorruptTable(f"{key} says log.{field} = {slot}. It must be a slot up to its own. {RESTORE}")
    for segment in root.segments:
        if not is_path(segment.path) or segment.first_txn > segment.last_txn or not segment.first_slot <= segment.last_slot <= root.slot:
            raise CorruptTable(f"{key} names the segment {segment.path!r}. It contradicts itself, or leaves the log's prefix. {RESTORE}")
    for outcome in root.outcomes:
        if not is_txn(outcome.txn) or not 0 <= outcome.slot <= root.slot:
            raise CorruptTable(
                f"{key} says outcomes: {outcome.txn!r} at slot {outcome.slot}. No slot up to its own can say that. {RESTORE}"
            )


def _check_positions(log: LogState, key: str) -> None:
    """Check that a root has positions where its log has them, and that their objects are of the log. Raises CorruptTable."""
    if POSITIONS.keys() & log.writer_features.keys() and not log.sources:
        raise CorruptTable(f"{key} lacks the positions of its log. A writer put it that does not know positions. Delete that object.")
    for source, progress in log.sources.items():
        if progress.side is not None and not is_path(progress.side.path):
            raise CorruptTable(f"{key} says log.positions.{source}.side = {progress.side}. It must be below the log's prefix. {RESTORE}")


@says_where
def read_root(fileio: FileIO, slot: int) -> FoundRoot | None:
    """The root of a slot, a `BrokenRoot` if it cannot be read, None if there is none. One GET. Raises UnsupportedFormat."""
    try:
        result = fileio.get(root_key(slot))
    except NotFound:
        return None
    assert isinstance(result, GetResult)
    root: AnyRoot | BrokenRoot
    try:
        root = decode_root(result.data, slot=slot)
    except CorruptTable as error:
        root = BrokenRoot(slot, str(error))
    return FoundRoot(root, result.meta.version)


def put_root(fileio: FileIO, root: AnyRoot, mode: Create | Update) -> PutOutcome:
    """Put a root under a condition."""
    return fileio.put(root_key(root.slot), encode_root(root), mode)


def void_root(slot: int, *, older: int) -> VoidRoot:
    """The void root of a slot."""
    return VoidRoot(format=FORMAT_VERSION, slot=slot, older=older)


@says_where
def newest_root(fileio: FileIO, slot: int, usable: Callable[[Root | BrokenRoot], bool] | None = None) -> Root | None:
    """The newest root at or below a slot; None when there is none.

    Roots are about two spacings apart, so a few GETs find it. Void roots lead across deleted ones.

    Args:
        usable: Whether a reader can use a root. None: every readable one. An unusable root is skipped for an older one.
    """
    below = floor_slot(slot)
    window = 1
    while below >= SPACING_SLOTS:
        slots = range(below, max(0, below - window * SPACING_SLOTS), -SPACING_SLOTS)
        for probed, found in zip(slots, map_io(fileio.env, lambda at: read_root(fileio, at), slots), strict=True):
            below = probed - SPACING_SLOTS
            if found is not None and not isinstance(found.root, VoidRoot):
                good = isinstance(found.root, Root) if usable is None else usable(found.root)
                if good and isinstance(found.root, Root):
                    return found.root
            if found is not None and isinstance(found.root, VoidRoot):
                below = floor_slot(found.root.older)
                break
        window = min(PROBE_WINDOW_MAX, window * 2)
    return None


def find_head(fileio: FileIO, slot: int) -> int:
    """The newest slot, or one less than `SPACING_SLOTS` above it, by O(log n) requests. slot: an existing slot, or -1."""
    low, step = slot, TAIL_SLOTS_MAX
    while fileio.exists(log_key(low + step)):
        low += step
        step *= 2
    high = low + step
    while high - low > SPACING_SLOTS:
        middle = (low + high) // 2
        if fileio.exists(log_key(middle)):
            low = middle
        else:
            high = middle
    return high - 1


# ---- the hint ----------------------------------------------------------------------------------------------------


@says_where
def read_hint(fileio: FileIO) -> tuple[Hint | None, Version | None]:
    """The hint and the version of its object.

    The hint is None when there is none or it makes no sense. The version is None when there is no object.
    """
    try:
        result = fileio.get(HINT_KEY)
    except NotFound:
        return None, None
    assert isinstance(result, GetResult)
    try:
        hint = _HINTS.decode(result.data)
    except NOT_JSON:
        return None, result.meta.version
    is_rooted = hint.checkpoint >= SPACING_SLOTS and hint.checkpoint % SPACING_SLOTS == 0
    sensible = hint.checkpoint <= hint.slot < 10**20 and (is_rooted or hint.checkpoint == -1)
    return (hint if sensible else None), result.meta.version


def encode_carried(root: Root | None, entries: Sequence[Entry], *, slot: int) -> bytes:
    """What a hint carries."""
    raw = NULL if root is None else msgspec.Raw(msgspec.json.encode(root))
    return encode_object(Carried(slot=slot, root=raw, entries=tuple(msgspec.Raw(msgspec.json.encode(entry)) for entry in entries)))


def decode_carried(hint: Hint) -> tuple[Root | None, list[Entry]] | None:
    """The root that a hint carries, and the entries above it. None if it carries nothing.

    Raises UnsupportedFormat, and CorruptTable for anything else than a root and the entries after it.
    """
    if hint.carried == NULL:
        return None
    data, what = bytes(hint.carried), "what a hint carries"
    digest = decode_json(data, _CARRIED_VERSIONS, where=HINT_KEY, what=what).digest
    if not digest:
        raise CorruptTable(f"{HINT_KEY} carries entries without a digest. {RESTORE}")
    check_digest(data, digest, key=HINT_KEY)
    carried = decode_json(data, _CARRIED, where=HINT_KEY, what=what)
    root = None if carried.root == NULL else decode_root(bytes(carried.root), slot=hint.checkpoint)
    entries = [
        decode_entry(bytes(raw), key=f"{HINT_KEY} about {log_key(slot)}") for slot, raw in enumerate(carried.entries, hint.checkpoint + 1)
    ]
    slots = [entry.slot for entry in entries]
    if (
        isinstance(root, VoidRoot)
        or (root is None) != (hint.checkpoint == -1)
        or slots != list(range(hint.checkpoint + 1, hint.slot + 1))
        or hint.slot != carried.slot
    ):
        raise CorruptTable(f"{HINT_KEY} carries other entries than those up to slot {hint.slot}. {RESTORE}")
    return root, entries
