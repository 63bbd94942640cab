"""Manifests: found by what they name, read when that is needed, and written again when an entry goes.

For each manifest there is a sorted array of hashes of what its entries name. A million files take 8 MB. A slot that removes nothing reads
no manifest. The manifest list says from which name to which a manifest goes, so a process that knows nothing reads those alone that may
have what it looks for. Names begin with the time of their transaction, and new entries are sorted, so these ranges rarely overlap.
"""

from __future__ import annotations

import bisect
import json
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from objcat.mirror.iceberg.avro import (
    ADDED,
    DATA,
    DELETED,
    EXISTING,
    decode_avro,
    decode_names,
    decode_with_metadata,
    encode_avro,
    entry_schema,
    manifest_metadata,
)
from objcat.mirror.iceberg.objects import MirrorObjects, Uploads
from objcat.mirror.iceberg.types import Record
from objcat.mirror.model import CorruptMirror

ENTRIES_MAX = 4000
"""Entries of a manifest of data files, or of position files."""
SMALL_MANIFESTS_MAX = 32
"""Manifests that are less than half full. More are merged."""
ENDS = "objcat.names"
"""The key in the header of a manifest list."""
END_CHARS_MAX = 200
"""Characters of the names that a manifest goes from and to. Longer ones are cut."""
_READ_AT_ONCE = 16

T = TypeVar("T")

Keys: TypeAlias = npt.NDArray[np.uint64]
"""Hashes of texts, ascending, each once."""


def keys_of(texts: Iterable[str]) -> Keys:
    """The hashes of texts."""
    return np.unique(np.fromiter(map(key_of, texts), dtype=np.uint64))


def key_of(text: str) -> int:
    """The hash of a text."""
    return xxhash.xxh3_64_intdigest(text.encode())


def ends_of(names: Iterable[str]) -> tuple[str, str] | None:
    """The first and the last of some names, cut to `END_CHARS_MAX` characters, the last one upwards. None without any."""
    listed = list(names)
    if not listed:
        return None
    low, high = min(listed), max(listed)
    return low[:END_CHARS_MAX], high if len(high) <= END_CHARS_MAX else high[:END_CHARS_MAX] + chr(sys.maxunicode)


def contains(keys: Keys, others: Keys) -> npt.NDArray[np.bool_]:
    """For each of `others`, whether it is among `keys`."""
    if not len(keys):
        return np.zeros(len(others), dtype=np.bool_)
    at = np.minimum(np.searchsorted(keys, others), len(keys) - 1)
    found: npt.NDArray[np.bool_] = keys[at] == others
    return found


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest that a snapshot names.

    Attributes:
        record: as its manifest list holds it.
        keys: of its live entries. None: it has not been read.
        ends: all names of its live entries lie between these two, see `ends_of`. None: it is not known.
    """

    record: Record
    keys: Keys | None = None
    ends: tuple[str, str] | None = None

    @property
    def live_count(self) -> int:
        """Entries that are not deleted."""
        return int(self.record["added_files_count"]) + int(self.record["existing_files_count"])


def encode_ends(manifests: Iterable[Manifest]) -> dict[str, str]:
    """What a manifest list says of the names in its manifests, in its header: from which to which, in the order of its records."""
    return {ENDS: json.dumps([manifest.ends for manifest in manifests], separators=(",", ":"), ensure_ascii=False)}


def listed_manifests(data: bytes) -> list[Manifest]:
    """The manifests of a manifest list. Raises ValueError, KeyError, IndexError or EOFError if it cannot be read."""
    records, metadata = decode_with_metadata(data)
    ends = json.loads(metadata.get(ENDS, "[]"))
    if len(ends) != len(records):
        # Older mirrors do not say.
        ends = [None] * len(records)
    return [Manifest(record, ends=None if said is None else (said[0], said[1])) for record, said in zip(records, ends, strict=True)]


@dataclass(slots=True)
class Tally:
    """Counts of files."""

    files: int = 0
    rows: int = 0
    bytes: int = 0

    def add(self, file: Record) -> None:
        """Count a file, given as a `data_file` record."""
        self.files += 1
        self.rows += file["record_count"]
        self.bytes += file["file_size_in_bytes"]


@dataclass(frozen=True, slots=True)
class Revision:
    """The manifests of a new snapshot.

    Attributes:
        manifests: all of them.
        added: what came.
        removed: what went.
        is_changed: whether they differ from those before.
    """

    manifests: tuple[Manifest, ...]
    added: Tally
    removed: Tally
    is_changed: bool = True


class ManifestReader:
    """Reads manifests of one content.

    Args:
        objects: of the mirror.
        key: the field of `data_file` that entries are found by.
    """

    def __init__(self, objects: MirrorObjects, key: str) -> None:
        self._objects = objects
        self.key = key
        self._known: dict[str, Keys] = {}

    def remember(self, manifests: Iterable[Manifest]) -> None:
        """Remember the keys of the manifests of a slot, and of no others."""
        kept = {manifest.record["manifest_path"]: manifest.keys for manifest in manifests}
        self._known = {uri: keys for uri, known in kept.items() if (keys := self._known.get(uri) if known is None else known) is not None}

    def entries(self, manifest: Manifest) -> list[Record]:
        """The live entries of a manifest, with everything that they inherit."""
        with self._readable(manifest) as data:
            found = decode_avro(data)
        return [_inherited(entry, manifest.record) for entry in _with_row_ids(found, manifest.record) if entry["status"] != DELETED]

    @contextmanager
    def _readable(self, manifest: Manifest) -> Iterator[bytes]:
        """The bytes of a manifest. Raises CorruptMirror if the block cannot decode them."""
        uri = manifest.record["manifest_path"]
        try:
            yield self._objects.read(uri)
        except (ValueError, KeyError, IndexError, EOFError) as error:
            raise CorruptMirror(f"The manifest {uri} cannot be read ({error}). Make the mirror again from the table.") from error

    def all_entries(self, manifests: Iterable[Manifest]) -> Iterator[Record]:
        """The live entries of all manifests. Several manifests are read beside each other."""
        for some in batches(manifests, _READ_AT_ONCE):
            self._objects.read_all([manifest.record["manifest_path"] for manifest in some])
            for manifest in some:
                yield from self.entries(manifest)

    def with_keys(self, manifests: Sequence[Manifest], names: Collection[str] | None = None) -> tuple[Manifest, ...]:
        """The manifests with keys: all of them, or as many of the newest as are needed to find some names, where these may be."""
        found = [
            manifest if manifest.keys is not None else replace(manifest, keys=self._known.get(manifest.record["manifest_path"]))
            for manifest in manifests
        ]
        wanted = None if names is None else _Wanted(names)
        for manifest in found:
            if wanted is not None and manifest.keys is not None:
                wanted.drop(manifest.keys)
        unread = [at for at, manifest in enumerate(found) if manifest.keys is None]
        unread.sort(key=lambda at: -int(found[at].record["sequence_number"]))
        for some in batches(unread, _READ_AT_ONCE):
            chosen = [at for at in some if wanted is None or wanted.may_be_in(found[at])]
            self._objects.read_all([found[at].record["manifest_path"] for at in chosen])
            for at in chosen:
                with self._readable(found[at]) as data:
                    listed = list(decode_names(data, self.key))
                keys = keys_of(listed)
                found[at] = replace(found[at], keys=keys, ends=found[at].ends or ends_of(listed))
                self._known[found[at].record["manifest_path"]] = keys
                if wanted is not None:
                    wanted.drop(keys)
        return tuple(found)

    def find(self, manifests: Sequence[Manifest], names: Collection[str]) -> dict[str, Record]:
        """The live entries of names. All manifests that may have one must have keys. Names without an entry are missing."""
        wanted = keys_of(names)
        touched = [manifest for manifest in manifests if manifest.keys is not None and contains(manifest.keys, wanted).any()]
        return {name: entry for entry in self.all_entries(touched) if (name := entry["data_file"][self.key]) in names}


class _Wanted:
    """Names that are looked for, and which of them were not found yet."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = sorted(set(names))
        self._keys = np.fromiter((key_of(name) for name in self._names), dtype=np.uint64, count=len(self._names))
        self._left = np.ones(len(self._names), np.bool_)

    def drop(self, keys: Keys) -> None:
        """Some manifest has these keys."""
        self._left &= ~contains(keys, self._keys)

    def may_be_in(self, manifest: Manifest) -> bool:
        """Whether a manifest may have one that is still looked for."""
        if manifest.ends is None:
            return bool(self._left.any())
        low, high = manifest.ends
        return bool(self._left[bisect.bisect_left(self._names, low) : bisect.bisect_right(self._names, high)].any())


@dataclass(frozen=True, slots=True)
class ManifestWriter:
    """Writes the manifests of one content for one slot.

    Attributes:
        reader: of the same content.
        objects: of the mirror.
        uploads: where new manifests go.
        content: `DATA` or `DELETES`.
        schema: of the table, with its `schema-id`.
        version: of the format.
        slot: that is written.
        entries_max: entries of a manifest.
    """

    reader: ManifestReader
    objects: MirrorObjects
    uploads: Uploads
    content: int
    schema: Record
    version: int
    slot: int
    entries_max: int = ENTRIES_MAX

    def revise(self, manifests: Sequence[Manifest], *, removed: Collection[str], added: Iterable[Record], must_exist: bool) -> Revision:
        """The manifests without some entries, and with new ones.

        A manifest that loses an entry is written again: by itself if it is at least half full, so that its names stay near each other, or
        else together with the new entries, sorted by name. Small ones are merged with them if there are too many.

        Args:
            manifests: before.
            removed: names of entries that go.
            added: `data_file` records of new entries.
            must_exist: whether a name without an entry is an error.

        Raises:
            CorruptMirror: `must_exist`, and there is no such entry.
        """
        wanted = keys_of(removed)
        found = self.reader.with_keys(manifests, removed) if removed else tuple(manifests)
        live = [manifest for manifest in found if manifest.live_count]
        touched = [at for at, manifest in enumerate(live) if manifest.keys is not None and contains(manifest.keys, wanted).any()]
        new_files = iter(added)
        first = next(new_files, None)
        if first is None and not touched:
            self._check_found(removed if must_exist else ())
            return Revision(found, Tally(), Tally(), is_changed=False)
        chosen = {*touched, *self._merged(live, set(touched))}
        left, come, gone = set(removed), Tally(), Tally()
        alone = [at for at in touched if live[at].live_count * 2 >= self.entries_max]
        entries = self._added(() if first is None else chain([first], new_files), come)
        together = [live[at] for at in sorted(chosen.difference(alone))]
        if manifests:
            # Of a mirror that begins, the files are sorted, and they may be too many for memory.
            entries = iter(
                sorted(chain(entries, self._carried(together, left, gone)), key=lambda one: str(one["data_file"][self.reader.key]))
            )
        new = [self._put(chunk) for chunk in batches(entries, self.entries_max)]
        for some in batches(alone, _READ_AT_ONCE):
            self.objects.read_all([live[at].record["manifest_path"] for at in some])
            new += [self._put(list(self._carried([live[at]], left, gone))) for at in some]
        self._check_found(left if must_exist else ())
        kept = [manifest for at, manifest in enumerate(live) if at not in chosen]
        return Revision((*kept, *new), come, gone)

    def _merged(self, live: Sequence[Manifest], touched: Collection[int]) -> list[int]:
        small = [at for at, manifest in enumerate(live) if manifest.live_count * 2 < self.entries_max and at not in touched]
        return small if len(small) >= SMALL_MANIFESTS_MAX else []

    def _check_found(self, missing: Collection[str]) -> None:
        if missing:
            raise CorruptMirror(
                f"The Iceberg mirror does not name {min(missing)}, which slot {self.slot} removes ({len(missing)} such files). Nothing was "
                "written. Make the mirror again from the table."
            )

    def _added(self, files: Iterable[Record], come: Tally) -> Iterator[Record]:
        for file in files:
            come.add(file)
            yield {
                "status": ADDED,
                "snapshot_id": self.slot + 1,
                "sequence_number": None,
                "file_sequence_number": None,
                "data_file": file,
            }

    def _carried(self, manifests: Sequence[Manifest], left: set[str], gone: Tally) -> Iterator[Record]:
        """The entries of manifests that are written again. left: names of entries that go; those that were found leave it."""
        for entry in self.reader.all_entries(manifests):
            name = entry["data_file"][self.reader.key]
            if name in left:
                left.discard(name)
                gone.add(entry["data_file"])
                yield {**entry, "status": DELETED, "snapshot_id": self.slot + 1}
            else:
                yield {**entry, "status": EXISTING}

    def _put(self, entries: Sequence[Record]) -> Manifest:
        name = self.objects.new_name("m0" if self.content == DATA else "m1", self.slot, "avro")
        metadata = manifest_metadata(self.schema, self.content, self.version)
        data = encode_avro(entry_schema(self.version), entries, metadata, sync=self.objects.fileio.env.new_id())
        self.uploads.put(self.objects.key(name), data)
        uri = self.objects.uri(name)
        self.objects.remember(uri, data)
        sequence = self.slot + 1
        live = [entry for entry in entries if entry["status"] != DELETED]
        record: Record = {
            "manifest_path": uri,
            "manifest_length": len(data),
            "partition_spec_id": 0,
            "content": self.content,
            "sequence_number": sequence,
            "min_sequence_number": min((_sequence(entry, sequence) for entry in live), default=sequence),
            "added_snapshot_id": sequence,
            "partitions": [],
        }
        for status, word in ((ADDED, "added"), (EXISTING, "existing"), (DELETED, "deleted")):
            some = [entry for entry in entries if entry["status"] == status]
            record[f"{word}_files_count"] = len(some)
            record[f"{word}_rows_count"] = sum(entry["data_file"]["record_count"] for entry in some)
        names = [entry["data_file"][self.reader.key] for entry in live]
        return Manifest(record, keys_of(names), ends_of(names))


def _sequence(entry: Record, inherited: int) -> int:
    return inherited if entry["sequence_number"] is None else int(entry["sequence_number"])


def _inherited(entry: Record, manifest: Record) -> Record:
    """An entry with the numbers that it has from its manifest."""
    found = dict(entry)
    for field in ("sequence_number", "file_sequence_number"):
        if found[field] is None:
            found[field] = manifest["sequence_number"]
    if found["snapshot_id"] is None:
        found["snapshot_id"] = manifest["added_snapshot_id"]
    return found


def _with_row_ids(entries: list[Record], manifest: Record) -> list[Record]:
    """The entries of a manifest of data files with the row ids that they inherit, from version 3 on."""
    first = manifest.get("first_row_id")
    if manifest["content"] != DATA or first is None:
        return entries
    found = []
    for entry in entries:
        file = entry["data_file"]
        if file["first_row_id"] is None and entry["status"] != DELETED:
            found.append({**entry, "data_file": {**file, "first_row_id": first}})
            first += file["record_count"]
        else:
            found.append(entry)
    return found


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of a size; the last one may be shorter."""
    left = iter(items)
    while some := list(islice(left, size)):
        yield some
