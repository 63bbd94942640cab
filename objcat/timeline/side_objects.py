"""Side objects: large changes, key digests and states of positions of an entry, stored outside of its slot."""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import msgspec

from fileio.contract import Create, require_written
from fileio.errors import NotFound
from fileio.store import FileIO
from objcat.errors import CorruptTable
from objcat.timeline.entry import Digests, Entry, SideObject, Txn, data_prefix, inline_digests
from objcat.timeline.error_location import says_where
from objcat.timeline.json_objects import RESTORE

INLINE_BYTES_MAX = 64 * 1024
"""Encoded changes of an entry that are larger than this go into a side object."""
INLINE_DIGESTS_MAX = 512
"""Digests beyond this number go into a side object."""

StoredChanges: TypeAlias = tuple[dict[str, msgspec.Raw], SideObject | None]
"""Changes as an entry holds them: inline, or in a side object."""


def put_side(fileio: FileIO, txn: Txn, kind: str, data: bytes) -> SideObject:
    """Write a side object of `txn`. kind: a word for people. Raises NotWritten and storage errors."""
    path = f"{data_prefix(txn)}{kind}-{fileio.env.new_id()}"
    require_written(fileio.put(path, data, Create()), path)
    return side_object(path, data)


def side_object(path: str, data: bytes) -> SideObject:
    """The reference by which an entry names an object with these bytes."""
    return SideObject(path, len(data), hashlib.sha256(data).hexdigest())


@says_where
def get_side(fileio: FileIO, side: SideObject) -> bytes:
    """The bytes of a side object. Raises CorruptTable when it is missing or not what the entry says."""
    try:
        return read_intact(fileio, side.path, side.sha256, named_by="commit")
    except NotFound as error:
        raise CorruptTable(f"{side.path} is missing although a commit names it. {RESTORE}") from error


@says_where
def read_intact(fileio: FileIO, path: str, sha256: str, *, named_by: str) -> bytes:
    """The bytes of an immutable object, checked against the hash by which something names it. One GET.

    Args:
        named_by: A word for what names it.

    Raises:
        NotFound: The caller knows what this means.
        CorruptTable: The bytes differ.
    """
    data = fileio.read(path)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise CorruptTable(f"{path} is not what the {named_by} that names it wrote. {RESTORE}")
    return data


def sides_of(entry: Entry) -> Iterator[SideObject]:
    """The side objects that an entry names."""
    if entry.side is not None:
        yield entry.side
    yield from (change.side for change in entry.positions.values() if change.side is not None)
    for footprint in entry.footprint.values():
        if footprint.keys is not None:
            yield from (digests.side for digests in (footprint.keys.placed, footprint.keys.updated) if digests.side is not None)


def write_large_changes(fileio: FileIO, txn: Txn, changes: Mapping[str, msgspec.Raw]) -> StoredChanges:
    """Changes as an entry holds them. Large ones go into a side object, which this writes."""
    if sum(len(bytes(raw)) for raw in changes.values()) <= INLINE_BYTES_MAX:
        return dict(changes), None
    return {}, put_side(fileio, txn, "changes.json", msgspec.json.encode(changes))


def put_digests(fileio: FileIO, txn: Txn, data: bytes) -> Digests:
    """A set of 64-bit digests as an entry holds it. Writes a side object when there are many. data: ascending, little endian."""
    count = len(data) // 8
    if count <= INLINE_DIGESTS_MAX:
        return Digests(count, inline=base64.b64encode(data).decode())
    return Digests(count, side=put_side(fileio, txn, "keys", data))


@says_where
def get_digests(fileio: FileIO, digests: Digests) -> frozenset[int] | None:
    """The digests. None when their object is gone, so that nobody can say which keys they were."""
    if digests.side is None:
        data = inline_digests(digests)
    else:
        try:
            data = get_side(fileio, digests.side)
        except CorruptTable:
            data = None
    if data is None:
        return None
    return frozenset(struct.unpack(f"<{len(data) // 8}Q", data))
