"""One entry that commits several transactions: what may be in it, and how it is made up. Pure functions.

Only transactions that append log rows and do nothing else share a slot. Such appends never conflict with each other, so the order in which
their rows count is any order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import msgspec

from objcat.errors import CorruptTable
from objcat.timeline.attempt import CommitAttempt
from objcat.timeline.conflicts import find_conflicts
from objcat.timeline.entry import (
    FORMAT_VERSION,
    SHARED_SLOTS,
    Action,
    Digests,
    Entry,
    FileGroupId,
    Footprint,
    SharedCommit,
    Summary,
    Txn,
    data_prefix,
    is_path,
    is_txn,
)
from objcat.timeline.json_objects import NOT_JSON, check_digest, decode_json, encode_object
from objcat.timeline.process_log import only_appends

RULES_VERSION = 1
"""Of the rules of conflicts for appends. Who judges by other rules than the requester leaves its request alone."""
REQUEST_BYTES_MAX = 64 * 1024
"""Of the changes of a transaction that shares a slot."""
SHARED_MAX = 64
"""Transactions that share a slot."""
FOLDER = "requests/"


def request_key(txn: str, until: int) -> str:
    """The key of a request."""
    return f"{FOLDER}{until:020d}/{txn}.json"


def parse_request_key(key: str) -> tuple[int, Txn] | None:
    """The last slot of the request with a key, and its transaction. None for another key."""
    found = _KEY.fullmatch(key)
    return None if found is None or not is_txn(found[2]) else (int(found[1]), Txn(found[2]))


_KEY = re.compile(rf"{FOLDER}(\d{{20}})/([^/]+)\.json")


class CommitRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A transaction that asks to be committed with another one. As an object it is advice: the log says what happened.

    Args:
        base: The slot up to which its writer knew the log when it was planned.
        until: The last slot that may commit it.
        rules: The rules by which its writer judges conflicts.
        changes: By table id: log files, and nothing else.
        appends: By table id, the file groups to which it appends.
    """

    format: Annotated[int, msgspec.Meta(ge=1)]
    txn: Txn
    base: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    until: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    rules: int
    changes: dict[str, msgspec.Raw]
    appends: dict[str, tuple[FileGroupId, ...]]
    writer: str = ""
    summary: Summary | None = None
    metadata: dict[str, str] = {}
    digest: str | None = ""

    @property
    def key(self) -> str:
        """The key of its object."""
        return request_key(self.txn, self.until)

    @property
    def footprint(self) -> dict[str, Footprint]:
        """What it touches."""
        return {table: Footprint(appends=groups) for table, groups in self.appends.items()}


class _Appends(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Changes of a table that only add log files."""

    logs: tuple[msgspec.Raw, ...]


# As in `objcat.timeline.entry`: types must be known before threads meet them.
_REQUESTS = msgspec.json.Decoder(CommitRequest)
_APPENDS = msgspec.json.Decoder(_Appends)


def request_of(candidate: CommitAttempt, *, until: int) -> CommitRequest | None:
    """What an attempt asks for. None when it cannot share a slot: it does more than append, or appends very many files.

    until: the last slot that may commit it.
    """
    if candidate.action is not Action.DELTA_COMMIT or not only_appends(candidate) or candidate.base.slot < 0:
        return None
    if candidate.app is not None or candidate.apps or candidate.position is not None or candidate.features or candidate.writer_features:
        return None
    if candidate.changes.keys() != candidate.footprint.keys() or sum(map(len, map(bytes, candidate.changes.values()))) > REQUEST_BYTES_MAX:
        return None
    if any(_appends(raw) is None for raw in candidate.changes.values()):
        return None
    return CommitRequest(
        format=FORMAT_VERSION,
        txn=candidate.txn,
        base=candidate.base.slot,
        until=until,
        rules=RULES_VERSION,
        changes=dict(candidate.changes),
        appends={table: footprint.appends for table, footprint in candidate.footprint.items()},
        writer=candidate.writer,
        summary=candidate.summary,
        metadata=dict(candidate.metadata),
    )


def encode_request(request: CommitRequest) -> bytes:
    """The bytes of a request's object."""
    return encode_object(request)


def decode_request(data: bytes, *, key: str) -> CommitRequest | None:
    """The request of an object. None for one that this objcat must leave alone: it is damaged, or of other rules or another format."""
    try:
        request = decode_json(data, _REQUESTS, where=key, what="a request of objcat")
        check_digest(data, request.digest, key=key)
    except CorruptTable:
        return None
    if request.format > FORMAT_VERSION or request.rules != RULES_VERSION or request.key != key or not is_txn(request.txn):
        return None
    if request.changes.keys() != request.appends.keys() or not request.changes:
        return None
    own = data_prefix(request.txn)
    for raw in request.changes.values():
        added = _appends(raw)
        if added is None or not added.logs or not all(_is_own(log, own) for log in added.logs):
            return None
    return request


def may_commit(request: CommitRequest, later: Iterable[Entry], *, slot: int) -> bool:
    """Whether a slot may commit a request.

    Args:
        later: Every entry above the base of the request and below the slot.
        slot: The one to be claimed.
    """
    if not request.base < slot <= request.until:
        return False
    for entry in later:
        if request.txn in entry.txns or entry.rollback_of == request.txn:
            return False
        if find_conflicts(Action.DELTA_COMMIT, request.footprint, entry, _no_digests):
            return False
    return True


def with_requests(entry: Entry, requests: Sequence[CommitRequest]) -> Entry:
    """The entry that commits requests too. entry: of an attempt that could ask itself, with its changes."""
    if not requests:
        return entry
    changes, footprint = dict(entry.changes), dict(entry.footprint)
    logs: dict[str, list[msgspec.Raw]] = {}
    for of_one in (entry.changes, *(request.changes for request in requests)):
        for table, raw in of_one.items():
            added = _appends(raw)
            assert added is not None, "a request holds log files and nothing else"
            logs.setdefault(table, []).extend(added.logs)
    for table, files in logs.items():
        changes[table] = msgspec.Raw(msgspec.json.encode(_Appends(tuple(files))))
    for request in requests:
        for table, groups in request.appends.items():
            before = footprint.get(table, Footprint()).appends
            footprint[table] = Footprint(appends=tuple(dict.fromkeys((*before, *groups))))
    also = tuple(
        SharedCommit(txn=one.txn, base=one.base, writer=one.writer, summary=one.summary, metadata=one.metadata) for one in requests
    )
    return msgspec.structs.replace(
        entry,
        changes=changes,
        footprint=footprint,
        also=also,
        features={**entry.features, **SHARED_SLOTS},
        writer_features={**entry.writer_features, **SHARED_SLOTS},
    )


def holds(entry: Entry, changes: Mapping[str, msgspec.Raw]) -> bool:
    """Whether an entry that commits several transactions adds all files of one of them."""
    for table, raw in changes.items():
        own, found = _appends(raw), _appends(entry.changes.get(table, msgspec.Raw(b"{}")))
        if own is None or found is None:
            return False
        there = [msgspec.json.decode(log) for log in found.logs]
        if not all(msgspec.json.decode(log) in there for log in own.logs):
            return False
    return True


def _appends(raw: msgspec.Raw) -> _Appends | None:
    try:
        return _APPENDS.decode(raw)
    except NOT_JSON:
        return None


def _is_own(log: msgspec.Raw, prefix: str) -> bool:
    path = msgspec.json.decode(log).get("path") if bytes(log).lstrip()[:1] == b"{" else None
    return isinstance(path, str) and path.startswith(prefix) and is_path(path)


def _no_digests(digests: Digests) -> frozenset[int] | None:  # noqa: ARG001 - a request names no keys
    return None
