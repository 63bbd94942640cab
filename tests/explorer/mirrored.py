"""What readers of a mirror get, read by other code than the code under test: Iceberg's and Delta's metadata as their specifications say."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pyroaring

from objcat.mirror.delta.vectors import decode_z85
from tests.explorer.facts import Facts, LogFacts, kept_slots
from tests.explorer.store import Request

FOLDERS = ("metadata/", "_delta_log/", "deltavectors/", "data/")
Objects: TypeAlias = tuple[tuple[str, bytes], ...]
"""The objects of a mirror and the data files, by key below the prefix of the log."""
Pairs: TypeAlias = tuple[tuple[int, str], ...]
"""The rows of a reader, (key, value), sorted. A row that comes twice is there twice."""


class UnreadableMirror(Exception):
    """A reader that begins with an object of a mirror does not find, or cannot read, what that names."""


def check_mirrors(log: LogFacts, facts: Facts) -> str | None:
    """P13: whatever readers of a mirror can begin with reads exactly its slot, while that can be read."""
    begin = len(log.prefix)
    found = {key[begin:]: data for key, data in facts.files.items() if key.startswith(log.prefix) and key[begin:].startswith(FOLDERS)}
    if not log.states or not any(key.startswith(("metadata/v", "_delta_log/0")) for key in found):
        return None
    (table,) = log.states[-1]
    expected = tuple((number, tuple(sorted(log.states[number][table].rows.items()))) for number in kept_slots(log, table))
    return _judged(tuple(sorted(found.items())), log.prefix, expected)


def replaced(request: Request, before: Facts, after: Facts) -> str | None:
    """P13: what is wrong with a put over an object that readers begin with. Only who has read it may replace it, by its version."""
    name = request.key.rpartition("/")[2]
    if request.kind != "put" or type(request.mode).__name__ == "Update" or not name.endswith(".json"):
        return None
    if "/metadata/v" not in request.key and "/_delta_log/" not in request.key:
        return None
    was, now = before.files.get(request.key), after.files.get(request.key)
    return None if was is None or was == now else f"P13: {request.key} was there, and is written over"


@lru_cache(maxsize=20_000)
def _judged(objects: Objects, prefix: str, expected: tuple[tuple[int, Pairs], ...]) -> str | None:
    files, rows = dict(objects), dict(expected)
    for read, slots in ((_by_iceberg, _iceberg_slots(files)), (_by_delta, _delta_slots(files))):
        for slot in slots:
            if slot not in rows:
                continue
            try:
                for found in read(files, slot, f"explorer://store/{prefix}"):
                    if found != rows[slot]:
                        return f"P13: {read.__name__[4:]} has the rows {found} at slot {slot}, and the log replays to {rows[slot]}"
            except UnreadableMirror as error:
                if not _is_dropped(files, read.__name__, slot):
                    return f"P13: {read.__name__[4:]} cannot be read at slot {slot}: {error}"
    return None


def _is_dropped(files: Mapping[str, bytes], read: str, slot: int) -> bool:
    """Whether the mirror has begun again after a slot. An erasure deletes what earlier ones name, in some order."""
    if read == "_by_iceberg":
        newest = json.loads(files[f"metadata/v{max(_iceberg_slots(files)) + 1}.metadata.json"])
        return all(snapshot["snapshot-id"] != slot + 1 for snapshot in newest["snapshots"])
    newest = _actions(files[f"_delta_log/{max(_delta_slots(files)):020d}.json"])[0]["commitInfo"]
    return bool(newest.get("objcat.since", 0) > slot)


def _read(files: Mapping[str, bytes], key: str) -> bytes:
    if key not in files:
        raise UnreadableMirror(f"{key} is missing")
    return files[key]


def _rows(data: bytes, masked: frozenset[int]) -> list[tuple[int, str]]:
    """The rows of a data file that readers see. They know nothing of deletes, which must be masked."""
    found = json.loads(data)
    return [pair for number, pair in enumerate(zip(found["k"], found["v"], strict=True)) if number not in masked]


# ---- Iceberg


def _iceberg_slots(files: Mapping[str, bytes]) -> list[int]:
    return [int(key[10:].partition(".")[0]) - 1 for key in files if key.startswith("metadata/v") and key.endswith(".metadata.json")]


def _by_iceberg(files: Mapping[str, bytes], slot: int, root: str) -> Iterator[Pairs]:
    document = json.loads(files[f"metadata/v{slot + 1}.metadata.json"])
    (snapshot,) = [one for one in document["snapshots"] if one["snapshot-id"] == document["current-snapshot-id"]]
    data: list[Any] = []
    masked: dict[str, set[int]] = {}
    for manifest in _avro(_read(files, snapshot["manifest-list"].removeprefix(root))):
        for entry in _avro(_read(files, manifest["manifest_path"].removeprefix(root))):
            if entry["status"] == 2:
                continue
            file = entry["data_file"]
            if manifest["content"] == 0:
                data.append(file["file_path"])
            else:
                for path, positions in _deletes(_read(files, file["file_path"].removeprefix(root)), file):
                    masked.setdefault(path, set()).update(positions)
    rows = [pair for uri in data for pair in _rows(_read(files, uri.removeprefix(root)), frozenset(masked.get(uri, ())))]
    yield tuple(sorted(rows))


def _avro(data: bytes) -> list[Any]:
    return list(fastavro.reader(io.BytesIO(data)))


def _deletes(data: bytes, file: Mapping[str, Any]) -> Iterator[tuple[str, list[int]]]:
    """The masked rows of a position file; of a Puffin file, those of the vector that an entry names."""
    if file["file_format"] == "PARQUET":
        rows = pq.read_table(pa.BufferReader(data)).to_pydict()
        for path, position in zip(rows["file_path"], rows["pos"], strict=True):
            yield path, [position]
    else:
        blob = data[file["content_offset"] : file["content_offset"] + file["content_size_in_bytes"]]
        yield file["referenced_data_file"], list(pyroaring.BitMap64.deserialize(blob[8:-4]))


# ---- Delta


_KNOWN = frozenset({"deletionVectors", "columnMapping", "timestampNtz", "typeWidening", "v2Checkpoint"})
"""Features of Delta that readers have. With any other in a commit, they refuse to go on."""


class _DeltaFile(NamedTuple):
    """A live file: Delta tells files of one path apart by their vectors."""

    path: str
    vector: str


def _delta_slots(files: Mapping[str, bytes]) -> list[int]:
    return [int(key[11:31]) for key in files if key.startswith("_delta_log/0") and key.endswith(".json")]


def _by_delta(files: Mapping[str, bytes], slot: int, root: str) -> Iterator[Pairs]:
    """The rows, by each way in which a reader may get to a version: from every checkpoint, and from the first version."""
    for base in (-1, *(int(key[11:31]) for key in files if key.endswith(".checkpoint.parquet"))):
        commits = [f"_delta_log/{version:020d}.json" for version in range(base + 1, slot + 1)]
        if base > slot or any(key not in files for key in commits):
            continue
        live: dict[_DeltaFile, Any] = {}
        if base >= 0:
            for add in pq.read_table(pa.BufferReader(files[f"_delta_log/{base:020d}.checkpoint.parquet"])).column("add").to_pylist():
                if add is not None:
                    live[_named(add)] = add
        for key in commits:
            actions = _actions(files[key])
            if any(not _KNOWN.issuperset(action["protocol"].get("readerFeatures") or ()) for action in actions if "protocol" in action):
                break
            for action in actions:
                if "remove" in action:
                    live.pop(_named(action["remove"]), None)
            live |= {_named(action["add"]): action["add"] for action in actions if "add" in action}
        else:
            yield tuple(sorted(pair for add in live.values() for pair in _rows(_read(files, add["path"]), _vector(files, add))))


def _actions(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


def _named(action: Mapping[str, Any]) -> _DeltaFile:
    vector = action.get("deletionVector")
    return _DeltaFile(action["path"], f"{vector['pathOrInlineDv']}@{vector['offset']}" if vector else "")


def _vector(files: Mapping[str, bytes], add: Mapping[str, Any]) -> frozenset[int]:
    vector = add.get("deletionVector")
    if not vector:
        return frozenset()
    digits = decode_z85(vector["pathOrInlineDv"][-20:]).hex()
    name = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    data = _read(files, f"{vector['pathOrInlineDv'][:-20]}/deletion_vector_{name}.bin")
    (size,) = struct.unpack(">I", data[vector["offset"] : vector["offset"] + 4])
    return frozenset(pyroaring.BitMap64.deserialize(data[vector["offset"] + 8 : vector["offset"] + 4 + size]))
