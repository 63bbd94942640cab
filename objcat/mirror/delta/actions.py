"""The actions of a Delta log: what one line of a commit holds, and the keys of its objects. Values only.

The format is Delta's own: https://github.com/delta-io/delta/blob/master/PROTOCOL.md. Only what a mirror writes is here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

import msgspec

from objcat.metadata.files import OUTER
from objcat.mirror.adopted_files import is_of_lake, key_in_lake
from objcat.mirror.model import CorruptMirror, ForeignMetadata, MirrorFolder, encoded_path

LOG = "_delta_log/"
APP = "objcat"
"""The application whose version, in `txn` actions, is the slot."""
ENGINE = "objcat"
HINT = f"{LOG}_last_checkpoint"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")

RESTART = "Mirror the table afresh with `table.maintenance.mirror()`."
"""The next step of a CorruptMirror."""


class DeltaVector(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Where the deletion vector of a file is. cardinality: how many rows it masks."""

    storage_type: str
    path_or_inline_dv: str
    offset: int | None = None
    size_in_bytes: int
    cardinality: int


class DeltaAdd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A live file. path: relative to the mirror, encoded as in a URL. stats: JSON text."""

    path: str
    partition_values: dict[str, str | None]
    size: int
    modification_time: int
    data_change: bool
    stats: str | None = None
    deletion_vector: DeltaVector | None = None


class DeltaRemove(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A file, with one vector, that is not live any more."""

    path: str
    deletion_timestamp: int | None = None
    data_change: bool
    extended_file_metadata: bool | None = None
    partition_values: dict[str, str | None] | None = None
    size: int | None = None
    deletion_vector: DeltaVector | None = None


class DeltaProtocol(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What readers and writers must understand."""

    min_reader_version: int
    min_writer_version: int
    reader_features: tuple[str, ...] | None = None
    writer_features: tuple[str, ...] | None = None


class DeltaFormat(msgspec.Struct, frozen=True):
    """The format of data files."""

    provider: str
    options: dict[str, str]


class DeltaMetadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The schema and the settings of a table. schema_string: JSON text."""

    id: str
    name: str | None = None
    description: str | None = None
    format: DeltaFormat
    schema_string: str
    partition_columns: tuple[str, ...]
    configuration: dict[str, str]
    created_time: int | None = None


class DeltaTxn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The newest version of an application."""

    app_id: str
    version: int
    last_updated: int | None = None


class DeltaCommitInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Who wrote a commit. It is the first action.

    Args:
        in_commit_timestamp: The commit time. It strictly increases.
        attempt: Tells apart processes that write the same slot.
        since: The slot from which on the log is complete by itself: the last restart.
        oldest: Slots below it may be unreadable, except saved ones.
    """

    operation_parameters: dict[str, Any] | None = None
    in_commit_timestamp: int | None = None
    timestamp: int | None = None
    operation: str | None = None
    is_blind_append: bool | None = None
    engine_info: str | None = None
    txn_id: str | None = None
    slot: int | None = msgspec.field(name="objcat.slot", default=None)
    table: str | None = msgspec.field(name="objcat.table", default=None)
    attempt: str = msgspec.field(name="objcat.attempt", default="")
    since: int = msgspec.field(name="objcat.since", default=0)
    oldest: int = msgspec.field(name="objcat.oldestSlot", default=0)
    saved: tuple[int, ...] = msgspec.field(name="objcat.savedSlots", default=())


class DeltaLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One line of a commit. One field is set; none, if it is an action that objcat does not write."""

    commit_info: DeltaCommitInfo | None = None
    protocol: DeltaProtocol | None = None
    meta_data: DeltaMetadata | None = None
    txn: DeltaTxn | None = None
    remove: DeltaRemove | None = None
    add: DeltaAdd | None = None


_ENCODER = msgspec.json.Encoder()
_LINES = msgspec.json.Decoder(DeltaLine)
_RAW = msgspec.json.Decoder(dict[str, Any])


def commit_key(folder: MirrorFolder, version: int) -> str:
    """The key of a commit."""
    return f"{folder.folder}{LOG}{version:020d}.json"


def checkpoint_key(folder: MirrorFolder, version: int) -> str:
    """The key of the checkpoint of a version."""
    return f"{folder.folder}{LOG}{version:020d}.checkpoint.parquet"


def hint_key(folder: MirrorFolder) -> str:
    """The key of the hint that names the newest checkpoint."""
    return f"{folder.folder}{HINT}"


def commit_version(key: str) -> int | None:
    """The version whose commit a key names. None for other keys."""
    return _version_of(_COMMIT, key)


def checkpoint_version(key: str) -> int | None:
    """The version whose checkpoint a key names. None for other keys."""
    return _version_of(_CHECKPOINT, key)


def _version_of(pattern: re.Pattern[str], key: str) -> int | None:
    found = pattern.fullmatch(key.rpartition("/")[2])
    return None if found is None else int(found[1])


def delta_path(folder: MirrorFolder, path: str) -> str:
    """The path of a data file in actions."""
    if is_of_lake(path) and folder.to_lake is not None:
        return folder.to_lake + encoded_path(key_in_lake(path))
    return folder.to_log + encoded_path(path)


def log_path_of(folder: MirrorFolder, path: str) -> str:
    """The path of a data file relative to the log, from that in an action. Raises CorruptMirror for one that is elsewhere."""
    if folder.to_lake is not None and path.startswith(folder.to_lake):
        return f"{OUTER}/{unquote(path.removeprefix(folder.to_lake))}"
    if not path.startswith(folder.to_log):
        raise CorruptMirror(f"The Delta mirror of {folder.name} names the file {path!r}, which is not in the table. {RESTART}")
    return unquote(path.removeprefix(folder.to_log))


def table_id(folder: MirrorFolder) -> str:
    """The id of the mirror as a Delta table: one of 128 bits, made from the table's id."""
    digest = hashlib.sha256(f"objcat table {folder.table}".encode()).hexdigest()
    return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))


def encode_lines(lines: Iterable[DeltaLine]) -> bytes:
    """The bytes of a commit, or of a part of one."""
    return b"".join(_ENCODER.encode(line) + b"\n" for line in lines)


def decode_commit(folder: MirrorFolder, version: int, data: bytes) -> list[DeltaLine]:
    """The lines of a commit, the first of which has a `commit_info` of objcat.

    Raises:
        ForeignMetadata: objcat did not write it, or wrote it for another table or slot.
        CorruptMirror: It cannot be read.
    """
    where = f"{commit_key(folder, version)} of the Delta mirror of {folder.name}"
    try:
        written = [line for line in data.splitlines() if line.strip()]
        # Actions of others may differ in any field, so who wrote it is looked at first.
        if not any({"objcat.slot", "objcat.table", "txnId"} <= set(_RAW.decode(line).get("commitInfo") or ()) for line in written):
            raise ForeignMetadata(
                f"{where} was not written by objcat. Nothing was changed. Find out who writes Delta metadata there, and remove it: only "
                "the mirror may be there."
            )
        lines = [_LINES.decode(line) for line in written]
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise CorruptMirror(f"{where} cannot be read ({error}). {RESTART}") from error
    info = next(line.commit_info for line in lines if line.commit_info is not None)
    if info.table != folder.table or info.slot != version:
        raise ForeignMetadata(
            f"{where} is of slot {info.slot} of the table {info.table}, but this is {folder.table}. Nothing was changed. Remove the "
            "metadata of the other table there."
        )
    return lines
